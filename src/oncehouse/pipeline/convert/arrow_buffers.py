"""The buffers of Arrow arrays: bytes of texts, and fixed-width bytes out of texts and wide decimals.

UUIDs, fixed strings and integers beyond 64 bits are made here, a whole column at a time; those functions return the
fixed-width array and a mask of the rows that cannot be it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from oncehouse.pipeline.convert.masks import Mask, null_mask

if TYPE_CHECKING:
    from oncehouse.column_types import types as c

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]

_UUID_DASHES = [8, 13, 18, 23]
_UUID_DIGITS = [place for place in range(36) if place not in _UUID_DASHES]
_NOT_HEX = 255
_HEX = np.full(256, _NOT_HEX, dtype=np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _HEX[_digit] = _value
for _value, _digit in enumerate(b"ABCDEF"):
    _HEX[_digit] = 10 + _value


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def text_buffers(array: pa.Array) -> tuple[Offsets, Bytes]:
    """Offsets and bytes of a string or binary array, whatever slice of another it is."""
    _, offset_buffer, data_buffer = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if len(array) == 0 or offset_buffer is None:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    stored = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
    offsets: Offsets = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if data_buffer is None:
        return offsets, np.zeros(0, dtype=np.uint8)
    return offsets, np.frombuffer(data_buffer, dtype=np.uint8)


def cut(buffer: pa.Buffer, starts: Offsets, lengths: Offsets) -> pa.Array:
    """The bytes at ascending places: their borders make every other element of an array over the buffer."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    borders = np.empty(2 * count, dtype=np.int32)
    borders[0::2] = starts
    borders[1::2] = starts + lengths
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), buffer])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def text_type(array: pa.Array) -> pa.DataType:
    """Of a binary array whose bytes are text."""
    return pa.large_string() if pa.types.is_large_binary(array.type) else pa.string()


def fixed_array(matrix: Bytes, nulls: Mask) -> pa.Array:
    rows, width = matrix.shape
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [validity, data])


def uuids_from_texts(array: pa.Array) -> tuple[pa.Array, Mask]:
    offsets, data = text_buffers(array)
    nulls = null_mask(array)
    fitting = (np.diff(offsets) == 36) & ~nulls
    places = offsets[:-1][fitting]
    if fitting.all() and len(places):
        characters = data[offsets[0] : offsets[-1]].reshape(-1, 36)
    else:
        characters = data[places[:, None] + np.arange(36)] if len(places) else np.zeros((0, 36), np.uint8)
    nibbles = _HEX[characters[:, _UUID_DIGITS]]
    good = (characters[:, _UUID_DASHES] == ord("-")).all(axis=1) & (nibbles != _NOT_HEX).all(axis=1)
    matrix = np.zeros((len(array), 16), dtype=np.uint8)
    matrix[fitting] = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    bad = ~fitting & ~nulls
    bad[fitting] = ~good
    return fixed_array(matrix, nulls), bad


def fixed_from_texts(array: pa.Array, length: int) -> tuple[pa.Array, Mask]:
    """Texts as bytes, filled up with zeros as ClickHouse does."""
    offsets, data = text_buffers(array)
    nulls = null_mask(array)
    lengths = np.diff(offsets)
    bad = (lengths > length) & ~nulls
    kept = np.where(bad | nulls, 0, lengths)
    matrix = np.zeros((len(array), length), dtype=np.uint8)
    within_text = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    source = np.repeat(offsets[:-1], kept) + within_text
    target = np.repeat(np.arange(len(array)) * length, kept) + within_text
    matrix.reshape(-1)[target] = data[source]
    return fixed_array(matrix, nulls), bad


def integers_from_decimals(array: pa.Array, leaf: c.Integer) -> tuple[pa.Array, Mask]:
    """Little-endian bytes of decimal256(76, 0): the low ones, if the high ones only repeat the sign."""
    width = leaf.bits // 8
    nulls = null_mask(array)
    buffer = array.buffers()[1]
    words = np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.zeros(0, dtype=np.uint8)
    matrix = words[array.offset * 32 : (array.offset + len(array)) * 32].reshape(-1, 32)
    negative = matrix[:, 31] >= 128
    filling = np.where(negative, 255, 0).astype(np.uint8)[:, None]
    bad = (matrix[:, width:] != filling).any(axis=1)
    if leaf.signed:
        bad |= (matrix[:, width - 1] >= 128) != negative
    else:
        bad |= negative
    return fixed_array(matrix[:, :width], nulls), bad & ~nulls
