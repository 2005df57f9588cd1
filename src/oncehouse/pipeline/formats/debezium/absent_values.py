"""Values that the database's log does not have: where they are missing, and what stands in for them.

A large value is stored outside its row (TOAST), and without REPLICA IDENTITY FULL an update that leaves it alone does
not write it again. In its place stands a mark whose form depends on the column's type. Arrays of booleans and of types
that older connectors do not know, and numbers of thousands of digits, are null instead, or look like a value.
"""

from __future__ import annotations

import base64
import decimal
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.convert import list_items, plain
from oncehouse.pipeline.convert.masks import Mask, flags

_MARK = "__debezium_unavailable_value"
# In bytea columns in base64, in arrays of uuids as the uuid that Java makes of these bytes, in hstore columns as JSON
# (hstore.handling.mode) as a map of the mark to itself.
_TEXTS = pa.array(
    [
        _MARK,
        base64.b64encode(_MARK.encode()).decode(),
        "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
        json.dumps({_MARK: _MARK}, separators=(",", ":")),
    ]
)
# In arrays of numbers one item for each byte; decimals have each byte as the digits without their point.
_CODES = np.frombuffer(_MARK.encode(), dtype=np.uint8).astype(np.float64)
_DIGITS = sorted(set(_MARK.encode()))
_DIGIT_TEXTS = pa.array([base64.b64encode(bytes([digit])).decode() for digit in _DIGITS])


def find_unavailable(array: pa.Array) -> Mask:
    """Which rows of a column as the envelope has it hold the mark in place of a value."""
    if pa.types.is_string(array.type):
        return _are_marks(array)
    none: Mask = np.zeros(len(array), dtype=np.bool_)
    found = list_items(array)
    if found is None:
        return none
    bounds, items = found
    lengths = np.diff(bounds)
    if pa.types.is_map(array.type):
        return _hold_one(
            bounds, lengths, _are_marks(plain(items.field(0))) & _are_marks(plain(items.field(1)))
        )
    items = plain(items)
    single = _hold_one(bounds, lengths, _are_marks(items)) if pa.types.is_string(items.type) else none
    return single | _hold_codes(bounds, lengths, items)


def _are_marks(texts: pa.Array) -> Mask:
    if not pa.types.is_string(texts.type):
        return np.zeros(len(texts), dtype=np.bool_)
    return flags(pc.is_in(texts, value_set=_TEXTS))


def _hold_one(bounds: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], marks: Mask) -> Mask:
    """Lists of a single item, which is the mark."""
    found: Mask = lengths == 1
    found[found] = marks[bounds[:-1][found]]
    return found


def _hold_codes(bounds: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], items: pa.Array) -> Mask:
    """Lists of as many numbers as the mark has bytes, each of which is its byte."""
    found: Mask = lengths == len(_CODES)
    if found.any():
        chosen = bounds[:-1][found][:, None] + np.arange(len(_CODES))
        numbers = _numbers(items.take(pa.array(chosen.reshape(-1)))).reshape(-1, len(_CODES))
        found[found] = (numbers == _CODES).all(axis=1)
    return found


def _numbers(items: pa.Array) -> np.ndarray[Any, Any]:
    """Items as the numbers that the mark's bytes would be; NaN for what is none."""
    kind = items.type
    numbers: np.ndarray[Any, Any] = np.full(len(items), np.nan)
    if pa.types.is_struct(kind) and _is_scaled(kind):
        unscaled = flags(pc.equal(items.field("scale"), 0))
        numbers = np.where(unscaled, _numbers(items.field("value")), np.nan)
    elif pa.types.is_string(kind):
        places = pc.fill_null(pc.index_in(items, value_set=_DIGIT_TEXTS), len(_DIGITS)).to_numpy()
        numbers = np.array([*_DIGITS, np.nan])[places]
    elif pa.types.is_fixed_size_binary(kind):
        wide = np.frombuffer(items.fill_null(bytes(kind.byte_width)).buffers()[1], dtype=np.uint8)
        matrix = wide.reshape(-1, kind.byte_width)[items.offset : items.offset + len(items)]
        numbers = np.where((matrix[:, 1:] == 0).all(axis=1), matrix[:, 0], np.nan)
    elif pa.types.is_timestamp(kind):
        numbers = items.view(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = items.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _is_scaled(kind: pa.StructType) -> bool:
    types = {field.name: field.type for field in kind}
    return set(types) == {"scale", "value"} and pa.types.is_integer(types["scale"])


def without(array: pa.Array, rows: Mask) -> pa.Array:
    """The array with null in these rows, whatever its type."""
    if not rows.any():
        return array
    return array.take(pa.array(np.arange(len(array)), mask=rows))


def fill_defaults(array: pa.Array, type_: c.ColumnType, missing: Mask) -> pa.Array:
    """The array with the type's default in the rows that miss a value; Nullable ones stay null."""
    if c.is_nullable(type_) or not missing.any():
        return array
    default = pa.array([default_of(type_)], array.type)
    picked = np.where(missing, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, default]).take(pa.array(picked))


def default_of(type_: c.ColumnType) -> Any:  # noqa: PLR0911 - one case a type
    """What ClickHouse itself takes for a value that an insert leaves out."""
    match type_:
        case c.Nullable():
            return None
        case c.LowCardinality(inner=inner):
            return default_of(inner)
        case c.Array() | c.Map():
            return []
        case c.Tuple(fields=fields):
            return {name: default_of(inner) for name, inner in fields}
        case c.Enum(members=members):
            return members[0][0]
        case c.String():
            return ""
        case c.Bool():
            return False
        case _:
            return _zero(c.arrow_type(type_))


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    return decimal.Decimal(0) if pa.types.is_decimal(kind) else 0
