"""From what Arrow's JSON reader yields to a column of the declared type, a whole column at a time.

`engine_type` says how the reader is to take a field; `convert` makes the declared type of it and marks the
rows that cannot be it. Some types may come in two ways (a 64-bit integer as number or text): the paths that
come the second way are a `Shape`, and a message has exactly one. Why a row is bad is `json_explain.py`.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse import columns as c
from oncehouse.pipeline import json_times as times
from oncehouse.pipeline.json_bytes import fixed_from_texts, integers_from_decimals, uuids_from_texts
from oncehouse.pipeline.json_times import Mask, cast_where_possible, null_mask, within

if TYPE_CHECKING:
    from collections.abc import Callable

Path = tuple[str, ...]
Shape = frozenset[Path]
ITEM = "[]"
KEY = "key"
VALUE = "value"

_WIDE_DECIMAL = pa.decimal256(76, 0)
_DAYS = {False: (0, 65535), True: (-25567, 120529)}
_SECONDS_1900, _SECONDS_2299 = -2208988800, 10413791999


class Converted(NamedTuple):
    array: pa.Array
    bad: Mask | None
    """Rows that cannot be of the type; None when all can."""


def engine_type(type_: c.ColumnType, path: Path, shape: Shape) -> pa.DataType:
    match c.bare(type_):
        case c.Array(item=item):
            return pa.list_(engine_type(item, (*path, ITEM), shape))
        case c.Map(value=value):
            inner = engine_type(value, (*path, ITEM, VALUE), shape)
            return pa.list_(pa.struct([(KEY, pa.string()), (VALUE, inner)]))
        case c.Tuple(fields=fields):
            return pa.struct([(name, engine_type(inner, (*path, name), shape)) for name, inner in fields])
        case leaf:
            first, second = leaf_types(leaf)
            return second if second is not None and path in shape else first


def leaf_types(leaf: c.ColumnType) -> tuple[pa.DataType, pa.DataType | None]:
    """How a scalar is read: the usual way, and the second way when there is one."""
    match leaf:
        case c.Integer(bits=64, signed=signed):
            return (pa.int64() if signed else pa.uint64()), pa.string()
        case c.Integer(bits=bits):
            return (pa.int64() if bits < 64 else _WIDE_DECIMAL), None
        case c.DateTime() | c.DateTime64():
            return pa.string(), pa.int64()
        case c.Float() | c.Bool() | c.Decimal():
            return c.arrow_type(leaf), None
        case _:
            return pa.string(), None


def convert(array: pa.Array, type_: c.ColumnType) -> Converted:
    match c.bare(type_):
        case c.Array(item=item):
            return _convert_array(array, item)
        case c.Map() as map_type:
            return _convert_map(array, map_type)
        case c.Tuple() as tuple_type:
            converted = _convert_tuple(array, tuple_type)
        case leaf:
            converted = _LEAVES[type(leaf)](array, leaf)
    if array.null_count and not c.is_nullable(type_):
        return Converted(converted.array, _either(converted.bad, null_mask(array)))
    return converted


def _either(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _marked(array: pa.Array, bad: Mask) -> Converted:
    return Converted(array, bad if bad.any() else None)


# -- nested -----------------------------------------------------------------------------------------------


def _rows_of(bad_items: Mask | None, offsets: pa.Array) -> Mask | None:
    """Rows whose list holds a bad item."""
    if bad_items is None:
        return None
    bounds = offsets.to_numpy()
    before = np.concatenate([[0], np.cumsum(bad_items)])
    rows: Mask = before[bounds[1:]] > before[bounds[:-1]]
    return rows


def _convert_array(array: pa.Array, item: c.ColumnType) -> Converted:
    items = convert(array.values, item)
    # The reader gives a missing list no items, so that without its null it is the empty list.
    lists = pa.ListArray.from_arrays(array.offsets, items.array, type=pa.list_(c.arrow_type(item)))
    return Converted(lists, _rows_of(items.bad, array.offsets))


def _convert_map(array: pa.Array, map_type: c.Map) -> Converted:
    pairs = array.values
    keys = convert(pairs.field(KEY), map_type.key)
    values = convert(pairs.field(VALUE), map_type.value)
    repeated = _repeated_keys(keys.array, array.offsets)
    bad = _rows_of(_either(_either(keys.bad, values.bad), repeated), array.offsets)
    maps = pa.MapArray.from_arrays(
        array.offsets,
        keys.array if keys.bad is None else pc.fill_null(keys.array, _any_value(keys.array.type)),
        values.array,
        type=c.arrow_type(map_type),
    )
    return Converted(maps, bad)


def _any_value(key_type: pa.DataType) -> pa.Scalar:
    """Stands in for a key that did not convert, in a row that will be dropped: maps hold no null keys."""
    if pa.types.is_fixed_size_binary(key_type):
        return pa.scalar(bytes(key_type.byte_width), key_type)
    return (
        pa.scalar(0, pa.int32()).cast(key_type) if pa.types.is_date32(key_type) else pa.scalar("", key_type)
    )


def _repeated_keys(keys: pa.Array, offsets: pa.Array) -> Mask | None:
    if len(keys) == 0:
        return None
    bounds = offsets.to_numpy()
    row = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    together = row * (len(keys) + 1) + codes
    _, first = np.unique(together, return_index=True)
    if len(first) == len(together):
        return None
    repeated = np.ones(len(together), dtype=np.bool_)
    repeated[first] = False
    return repeated


def _convert_tuple(array: pa.Array, tuple_type: c.Tuple) -> Converted:
    bad: Mask | None = None
    children = []
    for position, (_, inner) in enumerate(tuple_type.fields):
        child = convert(array.field(position), inner)
        children.append(child.array)
        bad = _either(bad, child.bad)
    fields = list(c.arrow_type(tuple_type))
    mask = pa.array(null_mask(array)) if array.null_count else None
    return Converted(pa.StructArray.from_arrays(children, fields=fields, mask=mask), bad)


# -- scalars ----------------------------------------------------------------------------------------------


def _convert_integer(array: pa.Array, leaf: c.Integer) -> Converted:
    target = c.arrow_type(leaf)
    if leaf.bits > 64:
        return _marked(*integers_from_decimals(array, leaf))
    if leaf.bits == 64:
        return Converted(array, None) if array.type == target else _integers_from_texts(array, target)
    span = pc.min_max(array)
    least, greatest = span["min"].as_py(), span["max"].as_py()
    if least is None or (least >= leaf.least and greatest <= leaf.greatest):
        return Converted(array.cast(target), None)
    return Converted(array.cast(target, safe=False), within(array, leaf.least, leaf.greatest))


def _integers_from_texts(array: pa.Array, target: pa.DataType) -> Converted:
    # The cast alone would also take hexadecimal.
    digits = pc.match_substring_regex(array, r"^-?[0-9]+$")
    numbers, bad = cast_where_possible(pc.if_else(digits, array, None), target)
    return _marked(numbers, bad | ~pc.fill_null(digits, True).to_numpy(zero_copy_only=False))


def _convert_float(array: pa.Array, _: c.Float) -> Converted:
    # The reader takes NaN and Infinity, which are not JSON, and turns what overflows 32 bits into infinity.
    finite = pc.all(pc.is_finite(array)).as_py()
    if finite is not False:
        return Converted(array, None)
    return Converted(array, ~pc.fill_null(pc.is_finite(array), True).to_numpy(zero_copy_only=False))


def _convert_decimal(array: pa.Array, leaf: c.Decimal) -> Converted:
    # The reader checks digits before it scales them: 12345 passes as Decimal(5, 2), which ends at 999.99.
    limit = pa.scalar(decimal.Decimal((0, (9,) * leaf.precision, -leaf.scale)), array.type)
    outside = pc.greater(pc.abs(array), limit)
    if not pc.any(outside).as_py():
        return Converted(array, None)
    return Converted(array, pc.fill_null(outside, False).to_numpy(zero_copy_only=False))


def _convert_as_it_is(array: pa.Array, _: c.ColumnType) -> Converted:
    return Converted(array, None)


def _convert_enum(array: pa.Array, leaf: c.Enum) -> Converted:
    known = pc.is_in(array, value_set=pa.array([name for name, _ in leaf.members]))
    return _marked(array, ~known.to_numpy(zero_copy_only=False) & ~null_mask(array))


def _convert_fixed_string(array: pa.Array, leaf: c.FixedString) -> Converted:
    return _marked(*fixed_from_texts(array, leaf.length))


def _convert_uuid(array: pa.Array, _: c.Uuid) -> Converted:
    return _marked(*uuids_from_texts(array))


def _convert_date(array: pa.Array, leaf: c.Date) -> Converted:
    dates, bad = cast_where_possible(array, pa.date32())
    least, greatest = _DAYS[leaf.wide]
    return _marked(dates, bad | within(dates.view(pa.int32()), least, greatest))


def _convert_datetime(array: pa.Array, leaf: c.DateTime | c.DateTime64) -> Converted:
    target = c.arrow_type(leaf)
    step, factor, least, greatest = tick_range(leaf)
    if pa.types.is_integer(array.type):
        ticks, bad = times.count_ticks(array, factor=step)
    else:
        ticks, bad = times.parse_times(array, unit=target.unit, zone=c.zone_of(leaf))
        if step > 1:
            whole = pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False)
            ticks = pa.array(whole - whole % step, mask=null_mask(ticks))
    bad = bad | within(ticks, least * factor, min(greatest * factor + factor - 1, (1 << 63) - 1))
    return _marked(ticks.view(target), bad)


def tick_range(leaf: c.DateTime | c.DateTime64) -> tuple[int, int, int, int]:
    """Arrow ticks in one tick of the type, Arrow ticks in a second, and ClickHouse's range in seconds."""
    if isinstance(leaf, c.DateTime):
        return 1, 1, 0, (1 << 32) - 1
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[c.unit_of(leaf)]
    return factor // 10**leaf.precision, factor, _SECONDS_1900, _SECONDS_2299


_LEAVES: dict[type[c.ColumnType], Callable[..., Converted]] = {
    c.Integer: _convert_integer,
    c.Float: _convert_float,
    c.Decimal: _convert_decimal,
    c.Bool: _convert_as_it_is,
    c.String: _convert_as_it_is,
    c.Enum: _convert_enum,
    c.FixedString: _convert_fixed_string,
    c.Uuid: _convert_uuid,
    c.Date: _convert_date,
    c.DateTime: _convert_datetime,
    c.DateTime64: _convert_datetime,
}
