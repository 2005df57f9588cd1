"""What the bytes of a message show before it is parsed, for a whole block at once.

What leaves here is safe to be joined by newlines: valid UTF-8 without control bytes or raw newlines, within
the limits of size and depth, beginning with `{` and ending with `}`. Such a message cannot swallow the next
one, because no string spans a newline and no `{` may follow a `}` inside an object; so as many rows as
messages prove one row each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, text_buffers, text_type
from oncehouse.pipeline.convert.masks import Mask, cast_where_possible, null_mask
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.formats.json.brackets import count_opening, measure_depth

if TYPE_CHECKING:
    from collections.abc import Callable

_SPACE = " \t\r\n"
_NEWLINE, _TAB, _RETURN = 10, 9, 13


class Block:
    """The messages still standing; each step takes some of them out, with a reason."""

    def __init__(self, index: Offsets, texts: pa.Array) -> None:
        self.index = index
        """Place in the block of each text that is left."""
        self.texts = texts
        self.rejected: list[Rejection] = []

    def reject(self, bad: Mask, explain: Callable[[int], RejectionCause]) -> None:
        if not bad.any():
            return
        self.rejected += [explain(row).at(int(self.index[row])) for row in np.flatnonzero(bad).tolist()]
        self.keep(~bad)

    def keep(self, good: Mask) -> None:
        self.index = self.index[good]
        self.texts = self.texts.filter(pa.array(good))

    def buffers(self) -> tuple[Offsets, Bytes]:
        return text_buffers(self.texts)


def screen_bytes(values: pa.Array, *, max_message_bytes: int) -> Block:
    """Without messages that have no value, are too large, or are no text; white space at their ends is gone."""
    block = Block(np.arange(len(values), dtype=np.int64), values)
    nulls = null_mask(values)
    if nulls.any():
        block.keep(~nulls)
    _reject_size(block, max_message_bytes)
    _reject_utf8(block)
    _reject_control(block)
    _trim(block)
    return block


def screen_structure(block: Block, *, max_depth: int, explain: Callable[[bytes], RejectionCause]) -> None:
    """Without messages that are nested too deeply or are surely no object."""
    _reject_depth(block, max_depth)
    in_braces = _are_in_braces(*block.buffers())
    block.reject(~in_braces, lambda row: explain(block.texts[row].as_py()))


def _reject_size(block: Block, limit: int) -> None:
    lengths = np.diff(block.buffers()[0])
    block.reject(
        lengths > limit,
        lambda row: RejectionCause(
            reason=Reason.TOO_BIG, detail=f"{lengths[row]} bytes, max_message_bytes is {limit}"
        ),
    )


def _reject_utf8(block: Block) -> None:
    _, bad = cast_where_possible(block.texts, text_type(block.texts))
    block.reject(bad, lambda _: RejectionCause(reason=Reason.BAD_UTF8, detail="the bytes are not UTF-8"))


def _reject_control(block: Block) -> None:
    """No raw control byte belongs to JSON, except white space; ends of lines become tabs.

    Inside a string both are wrong, outside both mean nothing: the message keeps its meaning, or its fault.
    """
    offsets, data = block.buffers()
    base = int(offsets[0])
    inside = data[base : offsets[-1]]
    if inside.min(initial=32) >= 32:
        return
    low = np.flatnonzero(inside < 32)
    kinds = inside[low]
    ends_line = (kinds == _NEWLINE) | (kinds == _RETURN)
    if ends_line.any():
        changed = inside.copy()
        changed[low[ends_line]] = _TAB
        block.texts = _binary_array(offsets - base, changed)
    wrong = low[~ends_line & (kinds != _TAB)]
    bad = np.zeros(len(block.index), dtype=np.bool_)
    bad[np.searchsorted(offsets - base, wrong, side="right") - 1] = True
    block.reject(bad, lambda _: RejectionCause(reason=Reason.NOT_JSON, detail="a raw control byte"))


def _binary_array(offsets: Offsets, data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _trim(block: Block) -> None:
    if _are_in_braces(*block.buffers()).all():
        return
    texts = block.texts
    block.texts = pc.ascii_trim(texts.view(text_type(texts)), _SPACE).view(texts.type)
    empty = np.diff(block.buffers()[0]) == 0
    block.reject(empty, lambda _: RejectionCause(reason=Reason.EMPTY, detail="nothing but white space"))


def _reject_depth(block: Block, max_depth: int) -> None:
    """Depth bombs, and messages of very many objects, which would make a row each before they are refused."""
    offsets, data = block.buffers()
    suspects = np.flatnonzero(count_opening(data, offsets, enough=max_depth) > max_depth)
    if len(suspects) == 0:
        return
    suspect_offsets, suspect_data = text_buffers(block.texts.take(pa.array(suspects)))
    deepest, goes_on = measure_depth(suspect_data, suspect_offsets)
    bad = np.zeros(len(block.index), dtype=np.bool_)
    bad[suspects] = (deepest > max_depth) | goes_on
    too_deep = set(suspects[deepest > max_depth].tolist())

    def explain(row: int) -> RejectionCause:
        if row in too_deep:
            return RejectionCause(
                reason=Reason.TOO_DEEP, detail=f"nested deeper than {max_depth}, which is max_depth"
            )
        return RejectionCause(
            reason=Reason.SEVERAL_OBJECTS, detail="more brackets follow the end of the first value"
        )

    block.reject(bad, explain)


def _are_in_braces(offsets: Offsets, data: Bytes) -> Mask:
    if len(data) == 0:
        return np.zeros(len(offsets) - 1, dtype=np.bool_)
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    last = data[np.maximum(offsets[1:] - 1, 0)]
    in_braces: Mask = (first == ord("{")) & (last == ord("}")) & (np.diff(offsets) >= 2)
    return in_braces
