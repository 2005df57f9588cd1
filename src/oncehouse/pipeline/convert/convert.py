"""Any Arrow array into the Arrow type of a declared column: exact, or marked as bad.

What decoders, engines and files give (numbers of another width, texts, bytes, lists, structs) becomes the type
of a part, a whole column at a time. A value that the declared type cannot hold is never rounded, wrapped or
guessed: its row is marked. Only digits of a time that are finer than the column are cut off, as ClickHouse does.
Null is bad where the type takes none, except that a missing list or map is an empty one. Why a row is bad is
`value_errors.py`; what the values of a format mean is that format's own business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import Offsets
from oncehouse.pipeline.convert.masks import Mask, either, null_mask
from oncehouse.pipeline.convert.scalars import Converted, convert_scalar

__all__ = ["Converted", "convert"]

Items = tuple[Offsets, pa.Array]


def convert(array: pa.Array, type_: c.ColumnType) -> Converted:
    array = plain(array)
    match c.bare(type_):
        case c.Array(item=item):
            return _convert_list(array, item)
        case c.Map() as map_type:
            return _convert_map(array, map_type)
        case c.Tuple() as tuple_type:
            converted = _convert_tuple(array, tuple_type)
        case leaf:
            converted = convert_scalar(array, leaf)
    if array.null_count and not c.is_nullable(type_):
        return Converted(converted.array, either(converted.bad, null_mask(array)))
    return converted


def plain(array: pa.Array) -> pa.Array:
    """The values themselves, without chunks, dictionaries, runs, views or a name around them."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    if pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.binary())
    return array


def _all_bad(array: pa.Array, target: pa.DataType) -> Converted:
    """Another kind of value altogether; the caller decides about nulls."""
    bad = ~null_mask(array)
    return Converted(pa.nulls(len(array), target), bad if bad.any() else None)


# -- lists and maps ---------------------------------------------------------------------------------------


def list_items(array: pa.Array) -> Items | None:
    """Offsets from 0 and the items between them, whatever kind of list it is; None when it is no list."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_large_list(kind):
        return _packed(array)
    if pa.types.is_fixed_size_list(kind):
        return _packed(array.cast(pa.list_(kind.value_type)))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return _bounds(lengths), array.flatten()
    return None


def _bounds(lengths: np.ndarray[Any, Any]) -> Offsets:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _packed(array: pa.Array) -> Items:
    """A slice keeps the items of the whole, and a null may keep items that are not visible."""
    wide = pa.types.is_large_list(array.type)
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(1, dtype=np.int64), _children(array).slice(0, 0)
    stored = np.frombuffer(buffer, dtype=np.int64 if wide else np.int32)
    offsets = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    hidden = null_mask(array) & (lengths > 0)
    items = _children(array)
    if not hidden.any():
        return offsets - offsets[0], items.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    kept = np.where(hidden, 0, lengths)
    bounds = _bounds(kept)
    within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], kept)
    return bounds, items.take(pa.array(np.repeat(offsets[:-1], kept) + within))


def _children(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    return array.values


def rows_of(bad_items: Mask | None, bounds: Offsets) -> Mask | None:
    """Rows whose list holds a bad item."""
    if bad_items is None:
        return None
    before = _bounds(bad_items)
    rows: Mask = before[bounds[1:]] > before[bounds[:-1]]
    return rows


def _convert_list(array: pa.Array, item: c.ColumnType) -> Converted:
    found = list_items(array)
    target = pa.list_(c.arrow_type(item))
    if found is None:
        return _all_empty(array, target)
    bounds, items = found
    converted = convert(items, item)
    lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), converted.array, type=target)
    return Converted(lists, rows_of(converted.bad, bounds))


def _all_empty(array: pa.Array, target: pa.DataType) -> Converted:
    """Empty lists or maps for what is missing; everything else is bad."""
    buffers = [None, pa.py_buffer(np.zeros(len(array) + 1, dtype=np.int32))]
    inner = target.field(0).type if pa.types.is_list(target) else _pair_type(target)
    empty = pa.Array.from_buffers(target, len(array), buffers, children=[pa.nulls(0, inner)])
    bad = ~null_mask(array)
    return Converted(empty, bad if bad.any() else None)


def _pair_type(target: pa.MapType) -> pa.DataType:
    return pa.struct([target.key_field, target.item_field])


def _convert_map(array: pa.Array, map_type: c.Map) -> Converted:
    found = list_items(array)
    target = c.arrow_type(map_type)
    if found is None or not (pa.types.is_struct(found[1].type) and found[1].type.num_fields == 2):
        return _all_empty(array, target)
    bounds, pairs = found
    keys = convert(pairs.field(0), map_type.key)
    values = convert(pairs.field(1), map_type.value)
    bad = either(either(keys.bad, values.bad), repeated_keys(keys.array, bounds))
    bad = either(bad, null_mask(pairs) if pairs.null_count else None)
    maps = pa.MapArray.from_arrays(
        pa.array(bounds, pa.int32()),
        keys.array if keys.array.null_count == 0 else pc.fill_null(keys.array, _any_value(keys.array.type)),
        values.array,
        type=target,
    )
    return Converted(maps, rows_of(bad, bounds))


def _any_value(key_type: pa.DataType) -> pa.Scalar:
    """Stands in for a key that could not be converted, in a row that will be dropped: maps hold no null keys."""
    if pa.types.is_fixed_size_binary(key_type):
        return pa.scalar(bytes(key_type.byte_width), key_type)
    if pa.types.is_string(key_type):
        return pa.scalar("", key_type)
    return pa.scalar(0, pa.int32() if pa.types.is_date32(key_type) else pa.int64()).cast(key_type)


def repeated_keys(keys: pa.Array, bounds: Offsets) -> Mask | None:
    if len(keys) == 0:
        return None
    row = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    together = row * (len(keys) + 1) + codes
    _, first = np.unique(together, return_index=True)
    if len(first) == len(together):
        return None
    repeated = np.ones(len(together), dtype=np.bool_)
    repeated[first] = False
    return repeated


# -- tuples -----------------------------------------------------------------------------------------------


def _convert_tuple(array: pa.Array, tuple_type: c.Tuple) -> Converted:
    target = c.arrow_type(tuple_type)
    if not pa.types.is_struct(array.type):
        return _all_bad(array, target)
    bad: Mask | None = None
    children = []
    for name, inner in tuple_type.fields:
        place = array.type.get_field_index(name)
        child = convert(array.field(place) if place >= 0 else pa.nulls(len(array)), inner)
        children.append(child.array)
        bad = either(bad, child.bad)
    mask = pa.array(null_mask(array)) if array.null_count else None
    return Converted(pa.StructArray.from_arrays(children, fields=list(target), mask=mask), bad)
