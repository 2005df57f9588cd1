"""Many Avro bodies read side by side: one cursor a body, all moved by NumPy at once.

Avro has no markers, so a body is read from its begin to its end. Here all bodies of a block take each step
together; each cursor stays inside its own body, and a body that breaks the rules is rejected with a reason
while the others go on. What the bytes mean is `columns.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, cut, text_buffers
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause

_PADDING = 16  # longer than any number, so that none is read past the end of the buffer
_NUMBER_BYTES = 10
Words = np.ndarray[Any, np.dtype[np.uint64]]


class Bodies:
    """The bytes of a block, where each body ends, and which are still sound."""

    def __init__(self, texts: pa.Array) -> None:
        offsets, data = text_buffers(texts)
        first = int(offsets[0])
        self.data: Bytes = np.concatenate([data[first : offsets[-1]], np.zeros(_PADDING, dtype=np.uint8)])
        self.buffer = pa.py_buffer(self.data)
        self.starts: Offsets = offsets[:-1] - first
        self.ends: Offsets = offsets[1:] - first
        self.sound: Mask = np.ones(len(texts), dtype=np.bool_)
        self.problems: dict[int, RejectionCause] = {}

    def open(self) -> Cursor:
        return Cursor(self, np.arange(len(self.starts)), self.starts.copy())


class Cursor:
    """Slots: places in bodies, ascending. Several may stand in one body, as in the values of its lists."""

    def __init__(self, bodies: Bodies, bodies_of: Offsets, at: Offsets) -> None:
        self.bodies = bodies
        self.body = bodies_of
        self.at = at

    def __len__(self) -> int:
        return len(self.at)

    @property
    def left(self) -> Offsets:
        """Bytes up to the end of the body."""
        left: Offsets = self.bodies.ends[self.body] - self.at
        return left

    @property
    def sound(self) -> Mask:
        """Whether nothing is wrong with the body so far."""
        sound: Mask = self.bodies.sound[self.body]
        return sound

    def pick(self, slots: Offsets) -> Cursor:
        return Cursor(self.bodies, self.body[slots], self.at[slots])

    def put_back(self, slots: Offsets, moved: Cursor) -> None:
        self.at[slots] = moved.at

    def reject(self, bad: Mask, explain: Callable[[int], RejectionCause]) -> None:
        """Reject the bodies of these slots; their cursors go to the end, where nothing is left to be read."""
        if not bad.any():
            return
        slots = np.flatnonzero(bad)
        fresh = slots[self.bodies.sound[self.body[slots]]]
        _, firsts = np.unique(self.body[fresh], return_index=True)
        for slot in fresh[firsts].tolist():
            self.bodies.problems[int(self.body[slot])] = explain(slot)
        self.bodies.sound[self.body[slots]] = False
        self.at[slots] = self.bodies.ends[self.body[slots]]

    def reject_malformed(self, bad: Mask, path: str, what: str) -> None:
        self.reject(bad, lambda _: RejectionCause(reason=Reason.MALFORMED, detail=f"{path}: {what}"))

    # -- steps --------------------------------------------------------------------------------------------

    def read_numbers(self, path: str) -> Offsets:
        """Zigzag numbers of one to ten bytes."""
        data, at = self.bodies.data, self.at
        octets = data[at]
        words = (octets & 0x7F).astype(np.uint64)
        after = at + 1
        going = np.flatnonzero(octets >= 0x80)
        too_long = np.zeros(len(at), dtype=np.bool_)
        for place in range(1, _NUMBER_BYTES):
            if len(going) == 0:
                break
            octets = data[after[going]]
            words[going] |= (octets & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            after[going] += 1
            if place == _NUMBER_BYTES - 1:
                too_long[going[octets > 1]] = True
            going = going[octets >= 0x80]
        self.at = after
        self._reject_overrun(path)
        self.reject_malformed(too_long, path, "a number of more than 64 bits")
        return _unfold_zigzag(words)

    def read_lengths(self, path: str) -> Offsets:
        """How many bytes follow; all of them are there."""
        lengths = self.read_numbers(path)
        wrong = (lengths < 0) | (lengths > self.left)
        self.reject_malformed(wrong, path, "a length that the message does not have")
        lengths[wrong] = 0
        return lengths

    def read_bytes(self, path: str) -> pa.Array:
        return self._cut(self.read_lengths(path))

    def read_fixed(self, size: int, path: str) -> pa.Array:
        """Binary of this size, or empty in bodies that have fewer bytes left."""
        short = self.left < size
        self.reject_malformed(short, path, "the message ends too early")
        return self._cut(np.where(short, 0, size))

    def read_words(self, width: int, path: str) -> Bytes:
        """A row of so many bytes for each slot; only for small widths."""
        short = self.left < width
        self.reject_malformed(short, path, "the message ends too early")
        words: Bytes = self.bodies.data[self.at[:, None] + np.arange(width)]
        self.at = np.where(short, self.at, self.at + width)
        return words

    def skip(self, sizes: Offsets | int, path: str) -> None:
        self.at = self.at + sizes
        self._reject_overrun(path)

    def _reject_overrun(self, path: str) -> None:
        self.reject_malformed(self.at > self.bodies.ends[self.body], path, "the message ends too early")

    def _cut(self, lengths: Offsets) -> pa.Array:
        starts, ends = self.at, self.at + lengths
        self.at = ends
        if self.bodies.problems:
            # A broken body's cursors may stand in any order; its values are never looked at.
            starts, ends = (
                np.maximum.accumulate(np.stack([starts, ends], axis=1).reshape(-1)).reshape(-1, 2).T
            )
        return cut(self.bodies.buffer, starts, ends - starts)


def _unfold_zigzag(words: Words) -> Offsets:
    sign = -(words & np.uint64(1)).astype(np.int64)
    numbers: Offsets = (words >> np.uint64(1)).astype(np.int64) ^ sign
    return numbers
