"""Scalars of any Arrow type into the Arrow type of a declared scalar column.

One function a declared type; each looks at what kind of array came and marks what the type cannot hold. A kind
that has no exact meaning for the type (a text in a Bool that is neither true nor false, a time in an integer)
is bad wherever it is not null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert import decimals, numbers, times
from oncehouse.pipeline.convert.arrow_buffers import (
    fixed_from_texts,
    is_bytes,
    is_text,
    text_buffers,
    uuids_from_texts,
)
from oncehouse.pipeline.convert.masks import Mask, null_mask

if TYPE_CHECKING:
    from collections.abc import Callable


class Converted(NamedTuple):
    array: pa.Array
    """Of the declared type; what stands in bad rows means nothing."""
    bad: Mask | None
    """Rows that cannot be of the type; None when all can."""


def convert_scalar(array: pa.Array, leaf: c.ColumnType) -> Converted:
    target = c.arrow_type(leaf)
    if pa.types.is_null(array.type):
        return Converted(pa.nulls(len(array), target), None)
    conversion = _CONVERSIONS[type(leaf)](array, leaf)
    if conversion is None:
        return Converted(pa.nulls(len(array), target), ~null_mask(array))
    converted, bad = conversion
    if bad is not None:
        bad &= ~null_mask(array)
    return Converted(converted, bad if bad is not None and bad.any() else None)


def accepts_kind(array: pa.Array, leaf: c.ColumnType) -> bool:
    """Whether values of this Arrow type can stand for the declared one at all."""
    return _CONVERSIONS[type(leaf)](array, leaf) is not None


Conversion = tuple[pa.Array, Mask | None] | None


def _to_bool(array: pa.Array, _: c.Bool) -> Conversion:
    if pa.types.is_boolean(array.type):
        return array, None
    if pa.types.is_integer(array.type):
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array(values == 1, mask=null_mask(array)), (values != 0) & (values != 1)
    if is_text(array.type):
        lower = pc.utf8_lower(array)
        known = pc.is_in(lower, value_set=pa.array(["true", "false"], array.type))
        return pc.equal(lower, "true"), ~known.to_numpy(zero_copy_only=False)
    return None


def _to_string(array: pa.Array, _: c.String) -> Conversion:
    if pa.types.is_string(array.type):
        return array, None
    if is_text(array.type) or pa.types.is_time(array.type):
        return array.cast(pa.string()), None
    if is_bytes(array.type):
        # ClickHouse's String holds any bytes, and neither Parquet nor ArrowStream looks into them.
        return array.cast(pa.binary()).view(pa.string()), None
    return None


def _to_fixed_string(array: pa.Array, leaf: c.FixedString) -> Conversion:
    if array.type == c.arrow_type(leaf):
        return array, None
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    return fixed_from_texts(array, leaf.length) if is_text(array.type) or is_bytes(array.type) else None


def _to_uuid(array: pa.Array, _: c.Uuid) -> Conversion:
    if array.type == pa.binary(16):
        return array, None
    if is_text(array.type):
        return uuids_from_texts(array)
    if is_bytes(array.type):
        variable = array.cast(pa.binary())
        converted, _too_long = fixed_from_texts(variable, 16)
        return converted, np.diff(text_buffers(variable)[0]) != 16
    return None


def _to_enum(array: pa.Array, leaf: c.Enum) -> Conversion:
    names = pa.array([name for name, _ in leaf.members], pa.string())
    if is_text(array.type):
        array = array.cast(pa.string())
        return array, ~pc.is_in(array, value_set=names).to_numpy(zero_copy_only=False)
    if not pa.types.is_integer(array.type):
        return None
    members = np.array([number for _, number in leaf.members], dtype=np.int64)
    converted, beyond = numbers.to_integer(array, c.Integer(bits=16, signed=True))
    wanted = converted.fill_null(0).to_numpy(zero_copy_only=False)
    place = np.minimum(np.searchsorted(members, wanted), len(members) - 1)
    bad = members[place] != wanted
    taken = names.take(pa.array(place, mask=null_mask(array)))
    return taken, bad if beyond is None else bad | beyond


def _to_integer(array: pa.Array, leaf: c.Integer) -> Conversion:
    if array.type == c.arrow_type(leaf):
        return array, None
    return numbers.to_integer(numbers.counted(array), leaf) if numbers.is_number(array.type) else None


def _to_float(array: pa.Array, leaf: c.Float) -> Conversion:
    return numbers.to_float(numbers.counted(array), leaf) if numbers.is_number(array.type) else None


def _to_decimal(array: pa.Array, leaf: c.Decimal) -> Conversion:
    return decimals.to_decimal(numbers.counted(array), leaf) if numbers.is_number(array.type) else None


_CONVERSIONS: dict[type[c.ColumnType], Callable[..., Conversion]] = {
    c.Integer: _to_integer,
    c.Float: _to_float,
    c.Decimal: _to_decimal,
    c.Bool: _to_bool,
    c.String: _to_string,
    c.Enum: _to_enum,
    c.FixedString: _to_fixed_string,
    c.Uuid: _to_uuid,
    c.Date: times.to_date,
    c.DateTime: times.to_datetime,
    c.DateTime64: times.to_datetime,
}
