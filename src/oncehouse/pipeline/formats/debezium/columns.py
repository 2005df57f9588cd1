"""What Debezium's JSON holds as Arrow arrays that say what it means, a whole column at a time.

Every function returns the array and a mask of the rows that could not be read as their meaning says; None
where all could. What the declared type makes of them is `convert/convert.py`. Values that an update did not touch, and
columns of a deleted row, may be missing from the database's log: they are found, and filled with defaults, here too.
"""

from __future__ import annotations

import base64
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.convert import rows_of
from oncehouse.pipeline.convert.decimals import decimals_from_bytes
from oncehouse.pipeline.convert.masks import Mask, either, null_mask
from oncehouse.pipeline.formats.debezium.wire_types import Meaning, Wire

Meant = tuple[pa.Array, Mask | None]

_UNITS = {Meaning.MILLISECONDS: "ms", Meaning.MICROSECONDS: "us", Meaning.NANOSECONDS: "ns"}
_WIDEST_SCALE = 76


def read_meaning(  # noqa: PLR0911 - one case a meaning
    array: pa.Array, wire: Wire, type_: c.ColumnType
) -> Meant:
    """`type_` is the declared one: an integer takes the counts of times and dates as they are."""
    counted = isinstance(c.bare(type_), c.Integer)
    match wire.meaning:
        case Meaning.DAYS if not counted:
            return _read_days(array)
        case Meaning.MILLISECONDS | Meaning.MICROSECONDS | Meaning.NANOSECONDS if not counted:
            return array.view(pa.timestamp(_UNITS[wire.meaning])), None
        case Meaning.BASE64:
            return read_base64(array)
        case Meaning.BITS:
            values, bad = read_base64(array)
            return _read_bits(values, bad) if counted else (values, bad)
        case Meaning.DECIMAL:
            return _read_decimals(array, wire.scale)
        case Meaning.VARIABLE_DECIMAL:
            return _read_variable(array)
        case Meaning.LIST:
            return _read_list(array, wire, type_)
        case Meaning.STRUCT:
            return _read_struct(array, wire, type_)
        case _:
            return array, None


def _read_days(array: pa.Array) -> Meant:
    days = array.cast(pa.int32(), safe=False)
    wrong = pc.fill_null(pc.not_equal(days.cast(pa.int64()), array), False).to_numpy(zero_copy_only=False)
    return days.view(pa.date32()), wrong if wrong.any() else None


def read_base64(array: pa.Array) -> Meant:
    import polars as pl  # by the process that reads: Polars starts threads, which a fork would not carry

    decoded = pl.Series(pl.from_arrow(array)).str.decode("base64", strict=False).to_arrow().cast(pa.binary())
    bad = null_mask(decoded) & ~null_mask(array)
    return decoded, bad if bad.any() else None


def _read_bits(values: pa.Array, bad: Mask | None) -> Meant:
    """Unsigned, the lowest byte first."""
    offsets, data = text_buffers(values)
    lengths = np.diff(offsets)
    matrix = np.zeros((len(values), 8), dtype=np.uint8)
    if len(data):
        places = offsets[:-1, None] + np.arange(8)
        inside = places < offsets[1:, None]
        matrix[:] = np.where(inside, data[np.minimum(places, len(data) - 1)], 0)
    numbers = matrix.view("<u8").reshape(-1)
    return pa.array(numbers, mask=null_mask(values)), either(
        bad, lengths > 8 if (lengths > 8).any() else None
    )


def _read_decimals(array: pa.Array, scale: int) -> Meant:
    values, bad = read_base64(array)
    whole, beyond = decimals_from_bytes(pc.fill_null(values, b""))
    nulls = null_mask(values)
    if nulls.any():
        whole = pc.if_else(pa.array(nulls), pa.scalar(None, whole.type), whole)
    if scale > _WIDEST_SCALE:
        return whole, ~nulls
    return whole.view(pa.decimal256(76, scale)), either(bad, beyond if beyond.any() else None)


def _read_variable(array: pa.Array) -> Meant:
    """Each row with a scale of its own: as texts, which keep all digits."""
    scales = array.field("scale").fill_null(0).to_numpy(zero_copy_only=False)
    nulls = null_mask(array) | null_mask(array.field("value"))
    texts = pa.nulls(len(array), pa.string())
    bad = np.zeros(len(array), dtype=np.bool_)
    for scale in np.unique(scales[~nulls]).tolist():
        mine = (scales == scale) & ~nulls
        chosen = array.field("value").filter(pa.array(mine))
        numbers, wrong = _read_decimals(chosen, max(scale, 0))
        written = _shift(numbers, scale) if scale < 0 else numbers.cast(pa.string())
        texts = pc.replace_with_mask(texts, pa.array(mine), written)
        if wrong is not None:
            bad[np.flatnonzero(mine)[wrong]] = True
    return texts, bad if bad.any() else None


def _shift(numbers: pa.Array, scale: int) -> pa.Array:
    """Scales below zero are rare: numbers that end with more zeros than anybody wrote."""
    zeros = min(-scale, 100)
    shifted = [None if one is None else format(one.scaleb(zeros, _EXACT), "f") for one in numbers.to_pylist()]
    return pa.array(shifted, pa.string())


_EXACT = decimal.Context(prec=200)


def _read_list(array: pa.Array, wire: Wire, type_: c.ColumnType) -> Meant:
    bare = c.bare(type_)
    if not isinstance(bare, c.Array):
        return array, None
    items, bad = read_meaning(array.values, wire.inner[0][1], bare.item)
    return pa.ListArray.from_arrays(array.offsets, items), rows_of(bad, array.offsets.to_numpy())


def _read_struct(array: pa.Array, wire: Wire, type_: c.ColumnType) -> Meant:
    bare = c.bare(type_)
    declared = dict(bare.fields) if isinstance(bare, c.Tuple) else {}
    bad: Mask | None = None
    children = []
    for place, (name, inner) in enumerate(wire.inner):
        child, wrong = read_meaning(array.field(place), inner, declared.get(name, c.String()))
        children.append(child)
        bad = either(bad, wrong)
    names = [name for name, _ in wire.inner]
    mask = pa.array(null_mask(array)) if array.null_count else None
    return pa.StructArray.from_arrays(children, names=names, mask=mask), bad


# -- values that the log does not have --------------------------------------------------------------------
#
# A large value is stored beside its row (TOAST), and without REPLICA IDENTITY FULL an update that leaves it alone does
# not write it again. In its place stands a mark whose form depends on the column's type. Arrays of other types than
# texts, whole numbers, dates and uuids, and numbers of thousands of digits, are null instead.

_MARK = b"__debezium_unavailable_value"
# In bytea columns in base64, in arrays of uuids as the uuid that Java makes of these bytes.
_TEXTS = pa.array(
    [
        _MARK.decode(),
        base64.b64encode(_MARK).decode(),
        "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
    ]
)
_NUMBERS = list(_MARK)


def find_unavailable(array: pa.Array) -> Mask:
    """Which rows of a column as the envelope has it hold the mark in place of a value."""
    none: Mask = np.zeros(len(array), dtype=np.bool_)
    if pa.types.is_string(array.type):
        found: Mask = pc.is_in(array, value_set=_TEXTS).to_numpy(zero_copy_only=False)
        return found
    if not pa.types.is_list(array.type):
        return none
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    if pa.types.is_string(array.type.value_type):
        return _find_lists(array, lengths == 1, [[text] for text in _TEXTS.to_pylist()])
    if pa.types.is_integer(array.type.value_type):
        return _find_lists(array, lengths == len(_NUMBERS), [_NUMBERS])
    return none


def _find_lists(array: pa.Array, likely: Mask, marks: list[list[str]] | list[list[int]]) -> Mask:
    found: Mask = np.zeros(len(array), dtype=np.bool_)
    places = np.flatnonzero(likely)
    found[places] = [one in marks for one in array.take(pa.array(places)).to_pylist()]
    return found


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
