"""A typed row as bytes, and back: how rows that never were messages are kept in the ledger.

Exact for every type of a declared field, NaNs and bytes that are no text included, and the same row always gives
the same bytes. A row is a mark and then its columns, each as validity, lengths and values; lists are written by
columns too, so that both directions go over whole blocks and never over single rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.convert import list_items

MARK = b"\x00"
"""No text begins with it."""

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Counts = np.ndarray[Any, np.dtype[np.int64]]


# -- to bytes ---------------------------------------------------------------------------------------------


def encode_rows(rows: pa.RecordBatch) -> pa.Array:
    """The bytes of each row."""
    bounds = np.arange(rows.num_rows + 1, dtype=np.int64)
    pieces = [_piece(np.full(rows.num_rows, MARK[0], dtype=np.uint8), bounds)]
    for column in rows.columns:
        pieces += _encode(column, bounds)
    empty = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*pieces, empty).cast(pa.binary())


def _encode(array: pa.Array, bounds: _Counts) -> list[pa.Array]:
    """For each row the bytes of its items, which stand between its bounds."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    pieces = [_piece(valid.astype(np.uint8), bounds)]
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            pieces += _encode(child, bounds)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        offsets, items = list_items(array) or (bounds, array)
        pieces.append(_piece(_as_bytes(np.diff(offsets)), bounds * 4))
        pieces += _encode(items, offsets[bounds])
    elif pa.types.is_string(kind):
        offsets, data = _text(array)
        pieces.append(_piece(_as_bytes(np.diff(offsets)), bounds * 4))
        pieces.append(_piece(data, offsets[bounds]))
    else:
        data, width = _fixed(array, valid)
        pieces.append(_piece(data, bounds * width))
    return pieces


def _as_bytes(lengths: _Counts) -> _Bytes:
    return np.ascontiguousarray(lengths, dtype="<i4").view(np.uint8)


def _piece(data: _Bytes, bounds: _Counts) -> pa.Array:
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def _text(array: pa.Array) -> tuple[_Counts, _Bytes]:
    """Nothing of what a null may hide is written."""
    seen = array.view(pa.binary()).fill_null(b"") if array.null_count else array.view(pa.binary())
    _, stored, data = seen.buffers()
    if not len(seen) or stored is None:
        return np.zeros(len(seen) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(stored, dtype=np.int32)[seen.offset : seen.offset + len(seen) + 1]
    whole = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return (offsets - offsets[0]).astype(np.int64), whole[offsets[0] : offsets[-1]]


def _fixed(array: pa.Array, valid: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[_Bytes, int]:
    if pa.types.is_boolean(array.type):
        return array.fill_null(fill_value=False).to_numpy(zero_copy_only=False).astype(np.uint8), 1
    width = array.type.bit_width // 8
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) * width, dtype=np.uint8), width
    start = array.offset * width
    data = np.frombuffer(buffer, dtype=np.uint8)[start : start + len(array) * width]
    if array.null_count:
        data = np.where(np.repeat(valid, width), data, 0).astype(np.uint8)
    return data, width


# -- from bytes -------------------------------------------------------------------------------------------


def decode_rows(values: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """The rows that the bytes hold; raises ValueError when they are no rows of this schema."""
    cursor = _Cursor(values)
    ones = np.ones(len(values), dtype=np.int64)
    if (cursor.read(ones, 1) != MARK[0]).any():
        raise ValueError("these bytes are no row")
    columns = [_decode(cursor, ones, field.type) for field in schema]
    cursor.require_end()
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Cursor:
    """Where each row is read next."""

    def __init__(self, values: pa.Array) -> None:
        offsets, self._data = _text(values)
        self._at = offsets[:-1].copy()
        self._ends = offsets[1:]

    def read(self, counts: _Counts, width: int) -> _Bytes:
        """The next `counts` items of each row, all behind each other."""
        lengths = counts * width
        if (counts < 0).any() or (self._at + lengths > self._ends).any():
            raise ValueError("these bytes end within a row")
        found = self._slices(lengths)
        self._at += lengths
        return found

    def _slices(self, lengths: _Counts) -> _Bytes:
        before = np.cumsum(lengths) - lengths
        return self._data[np.repeat(self._at - before, lengths) + np.arange(int(lengths.sum()))]

    def require_end(self) -> None:
        if (self._at != self._ends).any():
            raise ValueError("these bytes go on after the row")


def _decode(cursor: _Cursor, counts: _Counts, kind: pa.DataType) -> pa.Array:
    valid = cursor.read(counts, 1).astype(np.bool_)
    total = len(valid)
    if pa.types.is_struct(kind):
        children = [_decode(cursor, counts, field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(~valid))
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_string(kind):
        lengths = cursor.read(counts, 4).view("<i4").astype(np.int64)
        inside = _sums(lengths, counts)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        if pa.types.is_string(kind):
            buffers = [_bits(valid), pa.py_buffer(offsets), pa.py_buffer(cursor.read(inside, 1))]
            return pa.Array.from_buffers(kind, total, buffers)
        pair = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else None
        items = _decode(cursor, inside, pair or kind.value_type)
        return pa.Array.from_buffers(kind, total, [_bits(valid), pa.py_buffer(offsets)], children=[items])
    if pa.types.is_boolean(kind):
        return pa.array(cursor.read(counts, 1).astype(np.bool_), mask=~valid)
    data = cursor.read(counts, kind.bit_width // 8)
    return pa.Array.from_buffers(kind, total, [_bits(valid), pa.py_buffer(data)])


def _bits(valid: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _sums(lengths: _Counts, counts: _Counts) -> _Counts:
    """The sum of each row's lengths."""
    if (lengths < 0).any():
        raise ValueError("these bytes hold a length below zero")
    total = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.cumsum(counts)
    sums: _Counts = total[ends] - total[ends - counts]
    return sums
