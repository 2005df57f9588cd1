"""Avro's scalars as Arrow arrays, in the kind that says most about them: logical types included.

Dates and timestamps become Arrow's own, unless an integer is declared: then they are the counts that stand in
the message, as times of day always are. What the declared type makes of them is `fit.py`.
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, text_buffers
from oncehouse.pipeline.convert.rejection import Problem, Reason
from oncehouse.pipeline.convert.timestamps import Mask, cast_where_possible
from oncehouse.pipeline.formats.avro import schema as s
from oncehouse.pipeline.formats.avro.cursor import Cursor
from oncehouse.pipeline.formats.avro.lists import read_choices

_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_WIDTH = 32
_AT_ONCE = 1 << 16  # rows of a decimal column whose bytes are turned together
_WHOLE = pa.decimal256(76, 0)
_GREATEST = pa.scalar(decimal.Decimal(10**76 - 1), _WHOLE)
_LEAST = pa.scalar(decimal.Decimal(1 - 10**76), _WHOLE)


def read_leaf(  # noqa: PLR0911 - one case a kind
    cursor: Cursor, node: s.Node, type_: c.ColumnType, path: str
) -> pa.Array:
    match node:
        case s.Primitive(name="null"):
            return pa.nulls(len(cursor))
        case s.Primitive(name="int" | "long"):
            return _read_numbers(cursor, node, type_, path)
        case s.Primitive(name="string"):
            return _read_texts(cursor, path)
        case s.Primitive(name="bytes"):
            return _meaning(cursor, cursor.read_bytes(path), node, path)
        case s.Primitive(name="boolean"):
            return _read_booleans(cursor, path)
        case s.Primitive(name=name):
            width = 4 if name == "float" else 8
            words = cursor.read_words(width, path)
            return pa.array(words.view(f"<f{width}").reshape(-1))
        case s.Fixed(size=size):
            return _meaning(cursor, cursor.read_fixed(size, path), node, path)
        case s.Enum(symbols=symbols):
            chosen = read_choices(cursor, len(symbols), path)
            return pa.array(symbols, pa.string()).take(pa.array(chosen))
    raise AssertionError(node)


def _read_booleans(cursor: Cursor, path: str) -> pa.Array:
    letters = cursor.read_words(1, path).reshape(-1)
    cursor.reject_malformed(letters > 1, path, "a boolean that is neither 0 nor 1")
    return pa.array(letters == 1)


def _read_texts(cursor: Cursor, path: str) -> pa.Array:
    texts, bad = cast_where_possible(cursor.read_bytes(path), pa.string())
    cursor.reject(bad, lambda _: Problem(reason=Reason.BAD_UTF8, detail=f"{path}: the text is not UTF-8"))
    return texts


def _read_numbers(cursor: Cursor, node: s.Primitive, type_: c.ColumnType, path: str) -> pa.Array:
    numbers = cursor.read_numbers(path)
    logical = node.logical
    if logical is None or logical.startswith("time-") or isinstance(c.bare(type_), c.Integer):
        return pa.array(numbers)
    if logical == "date":
        days = numbers.astype(np.int32)
        wrong = days != numbers
        cursor.reject(
            wrong,
            lambda _: Problem(reason=Reason.OUT_OF_RANGE, detail=f"{path}: a date of more than 32 bits"),
        )
        return pa.array(days).view(pa.date32())
    zone = None if logical.startswith("local-") else "UTC"
    return pa.array(numbers).view(pa.timestamp(_UNITS[logical.rpartition("-")[2]], tz=zone))


def _meaning(cursor: Cursor, values: pa.Array, node: s.Primitive | s.Fixed, path: str) -> pa.Array:
    if node.logical == "decimal":
        return _decimals(cursor, values, node.scale, path)
    return values


def read_duration(cursor: Cursor, path: str) -> pa.Array:
    words = cursor.read_words(12, path).view("<u4").reshape(-1, 3)
    columns = [pa.array(np.ascontiguousarray(words[:, place])) for place in range(3)]
    return pa.StructArray.from_arrays(columns, names=["months", "days", "millis"])


# -- decimals ---------------------------------------------------------------------------------------------


def _decimals(cursor: Cursor, values: pa.Array, scale: int, path: str) -> pa.Array:
    wide, bad = decimals_from_bytes(values)
    cursor.reject(
        bad, lambda _: Problem(reason=Reason.OUT_OF_RANGE, detail=f"{path}: a decimal of more than 76 digits")
    )
    return wide.view(pa.decimal256(76, scale))


def decimals_from_bytes(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Whole numbers out of big-endian bytes in two's complement, and which have more than 76 digits."""
    pieces = [_turn(values.slice(start, _AT_ONCE)) for start in range(0, len(values), _AT_ONCE)]
    matrix = np.concatenate([piece for piece, _ in pieces]) if pieces else np.zeros((0, _WIDTH), np.uint8)
    too_long: Mask = np.concatenate([wrong for _, wrong in pieces]) if pieces else np.zeros(0, dtype=np.bool_)
    whole = pa.Array.from_buffers(_WHOLE, len(values), [None, pa.py_buffer(np.ascontiguousarray(matrix))])
    beyond = pc.or_(pc.greater(whole, _GREATEST), pc.less(whole, _LEAST))
    return whole, too_long | beyond.to_numpy(zero_copy_only=False)


def _turn(values: pa.Array) -> tuple[Bytes, Mask]:
    """Each value as 32 little-endian bytes, filled up with its sign."""
    offsets, data = text_buffers(values)
    lengths = np.diff(offsets)
    wide = int(min(lengths.max(initial=0), _WIDTH))
    matrix = np.zeros((len(values), _WIDTH), dtype=np.uint8)
    if wide == 0:
        return matrix, np.zeros(len(values), dtype=np.bool_)
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    filling = np.where((first >= 128) & (lengths > 0), 255, 0).astype(np.uint8)
    matrix[:] = filling[:, None]
    places = offsets[1:, None] - 1 - np.arange(wide)
    inside = places >= offsets[:-1, None]
    matrix[:, :wide] = np.where(inside, data[np.maximum(places, 0)], filling[:, None])
    return matrix, _longer(offsets, data, lengths, filling, matrix)


def _longer(offsets: Offsets, data: Bytes, lengths: Offsets, filling: Bytes, matrix: Bytes) -> Mask:
    """Values of more than 32 bytes are right if those before only repeat the sign."""
    wrong: Mask = np.zeros(len(lengths), dtype=np.bool_)
    for row in np.flatnonzero(lengths > _WIDTH).tolist():
        before = data[offsets[row] : offsets[row + 1] - _WIDTH]
        negative = bool(matrix[row, _WIDTH - 1] >= 128)
        wrong[row] = bool((before != filling[row]).any()) or negative != bool(filling[row])
    return wrong
