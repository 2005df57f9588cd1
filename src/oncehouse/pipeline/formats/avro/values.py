"""Avro's scalars as Arrow arrays, in the kind that says most about them: logical types included.

Dates and timestamps become Arrow's own, unless an integer is declared: then they are the counts that stand in
the message, as times of day always are. What the declared type makes of them is `convert/convert.py`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.decimals import decimals_from_bytes
from oncehouse.pipeline.convert.masks import cast_where_possible
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.formats.avro import schema as s
from oncehouse.pipeline.formats.avro.cursor import Cursor
from oncehouse.pipeline.formats.avro.lists import read_choices

_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


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
    raise AssertionError(node)


def read_enum(cursor: Cursor, node: s.AvroEnum, newest: s.AvroEnum | None, path: str) -> pa.Array:
    """Symbols as they were written; where the newest schema has a default, it stands for those that it lacks."""
    chosen = read_choices(cursor, len(node.symbols), path)
    symbols = node.symbols
    if newest is not None and newest.default is not None:
        symbols = tuple(symbol if symbol in newest.symbols else newest.default for symbol in symbols)
    return pa.array(symbols, pa.string()).take(pa.array(chosen))


def _read_booleans(cursor: Cursor, path: str) -> pa.Array:
    octets = cursor.read_words(1, path).reshape(-1)
    cursor.reject_malformed(octets > 1, path, "a boolean that is neither 0 nor 1")
    return pa.array(octets == 1)


def _read_texts(cursor: Cursor, path: str) -> pa.Array:
    texts, bad = cast_where_possible(cursor.read_bytes(path), pa.string())
    cursor.reject(
        bad, lambda _: RejectionCause(reason=Reason.BAD_UTF8, detail=f"{path}: the text is not UTF-8")
    )
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
            lambda _: RejectionCause(
                reason=Reason.OUT_OF_RANGE, detail=f"{path}: a date of more than 32 bits"
            ),
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
        bad,
        lambda _: RejectionCause(
            reason=Reason.OUT_OF_RANGE, detail=f"{path}: a decimal of more than 76 digits"
        ),
    )
    return wide.view(pa.decimal256(76, scale))
