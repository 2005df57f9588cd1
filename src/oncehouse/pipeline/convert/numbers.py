"""Numbers of any Arrow type into integers and floats: the same number, or marked.

Integers of every width, floats, decimals, booleans, durations and texts come in. Arrow's own casts are not
trusted at the edges: some take more than digits (hexadecimal), some turn what is too large into infinity. Decimals are
in `decimals.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import fixed_array, integers_from_decimals
from oncehouse.pipeline.convert.decimals import MOST_DIGITS, to_decimal
from oncehouse.pipeline.convert.masks import Mask, cast_where_possible, filled, flags, null_mask, only

_WIDE = pa.decimal256(76, 0)
_DIGITS = r"^[+-]?[0-9]+$"
_INFINITE = r"(?i)^[+-]?inf(inity)?$"

Numbers = tuple[pa.Array, Mask | None]


def is_number(kind: pa.DataType) -> bool:
    """Kinds that can stand for a number: numbers, booleans, texts of them, and counted time."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time(kind)
    )


def counted(array: pa.Array) -> pa.Array:
    """Durations and times of day as what they count; booleans as 0 and 1; half floats as floats."""
    kind = array.type
    if pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64())
    if pa.types.is_time32(kind):
        return array.view(pa.int32())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    return array


# -- integers ---------------------------------------------------------------------------------------------


def to_integer(array: pa.Array, leaf: c.Integer) -> Numbers:
    if pa.types.is_decimal(array.type):
        whole, bad = to_decimal(array, c.Decimal(precision=MOST_DIGITS, scale=0))
        converted, beyond = _integers_from_wide(whole, leaf)
        return converted, beyond if bad is None else beyond | bad
    if pa.types.is_floating(array.type):
        return _integers_from_floats(array, leaf)
    if not pa.types.is_integer(array.type):
        return _integers_from_texts(array, leaf)
    if leaf.bits > 64:
        return _integers_from_wide(array.cast(pa.decimal128(20, 0)).cast(_WIDE), leaf)
    return _resize(array, leaf)


def _resize(array: pa.Array, leaf: c.Integer) -> Numbers:
    target = c.arrow_type(leaf)
    span = pc.min_max(array)
    least, greatest = span["min"].as_py(), span["max"].as_py()
    if least is None or (least >= leaf.least and greatest <= leaf.greatest):
        return array.cast(target), None
    values = filled(array)
    limits = np.iinfo(values.dtype)
    bad = (values < max(leaf.least, int(limits.min))) | (values > min(leaf.greatest, int(limits.max)))
    return array.cast(target, safe=False), bad


def _integers_from_wide(array: pa.Array, leaf: c.Integer) -> tuple[pa.Array, Mask]:
    """Out of decimal256(76, 0), whose low bytes are the integer's."""
    converted, bad = integers_from_decimals(array, leaf)
    if leaf.bits > 64:
        return converted, bad
    buffers = [converted.buffers()[0], converted.buffers()[1]]
    return pa.Array.from_buffers(c.arrow_type(leaf), len(converted), buffers), bad


def _integers_from_floats(array: pa.Array, leaf: c.Integer) -> Numbers:
    values = filled(array).astype(np.float64)
    with np.errstate(invalid="ignore"):
        good = np.isfinite(values) & (np.floor(values) == values)
        # The greatest integer may not be a float, the one above it always is.
        good &= (values >= float(leaf.least)) & (values < float(leaf.greatest + 1))
    if leaf.bits > 64:
        whole = [int(value) for value in np.where(good, values, 0.0).tolist()]
        return _from_python(whole, leaf, null_mask(array)), ~good
    kept = np.where(good, values, 0.0).astype(c.arrow_type(leaf).to_pandas_dtype())
    return pa.array(kept, c.arrow_type(leaf), mask=null_mask(array)), ~good


def _integers_from_texts(array: pa.Array, leaf: c.Integer) -> Numbers:
    array = array.cast(pa.string())
    # The cast alone would also take hexadecimal, and no plus sign.
    digits = flags(pc.match_substring_regex(array, _DIGITS))
    texts = pc.replace_substring_regex(array, r"^\+?(-?)0*([0-9])", r"\1\2")
    if not leaf.signed:
        texts = pc.replace_substring_regex(texts, r"^-0$", "0")  # the cast would refuse it
    if leaf.bits <= 64:
        converted, beyond = cast_where_possible(only(texts, digits), c.arrow_type(leaf))
        return converted, ~digits | beyond
    long = digits & (_lengths(texts) > MOST_DIGITS)
    wide, _ = cast_where_possible(only(texts, digits & ~long), _WIDE)
    converted, beyond = _integers_from_wide(wide, leaf)
    if long.any():
        converted, beyond = _put_long(converted, beyond, texts, long, leaf)
    return converted, ~digits | beyond


def _put_long(
    converted: pa.Array, beyond: Mask, texts: pa.Array, long: Mask, leaf: c.Integer
) -> tuple[pa.Array, Mask]:
    """The few integers of 77 and 78 digits, which no decimal holds, one at a time."""
    places = np.flatnonzero(long)
    # Longer ones are beyond every type; Python would take long to read them.
    shortened = [text if len(text) <= 80 else "9" * 80 for text in texts.take(pa.array(places)).to_pylist()]
    values = [int(text) for text in shortened]
    outside = np.array([not leaf.least <= value <= leaf.greatest for value in values])
    kept = [0 if wrong else value for value, wrong in zip(values, outside, strict=True)]
    put = _from_python(kept, leaf, np.zeros(len(kept), dtype=np.bool_))
    beyond = beyond.copy()
    beyond[places] = outside
    return pc.replace_with_mask(converted, pa.array(long), put), beyond


def _from_python(values: list[int], leaf: c.Integer, nulls: Mask) -> pa.Array:
    width = leaf.bits // 8
    data = b"".join(value.to_bytes(width, "little", signed=leaf.signed) for value in values)
    return fixed_array(np.frombuffer(data, dtype=np.uint8).reshape(-1, width), nulls)


def _lengths(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = filled(pc.binary_length(texts)).astype(np.int64)
    return lengths


# -- floats -----------------------------------------------------------------------------------------------


def to_float(array: pa.Array, leaf: c.Float) -> Numbers:
    target = c.arrow_type(leaf)
    if array.type == target:
        return array, None
    if pa.types.is_floating(array.type):
        return _narrow_float(array, target)
    if pa.types.is_integer(array.type):
        return _floats_from_integers(array, target)
    if pa.types.is_decimal(array.type):
        return _floats_from_decimals(array, target)
    return _floats_from_texts(array.cast(pa.string()), target)


def _narrow_float(array: pa.Array, target: pa.DataType) -> Numbers:
    if target == pa.float64():
        return array.cast(target), None
    values = filled(array)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    bad = (narrow.astype(np.float64) != values) & ~np.isnan(values)
    return pa.array(narrow, mask=null_mask(array)), bad


def _floats_from_integers(array: pa.Array, target: pa.DataType) -> Numbers:
    floats = array.cast(target, safe=False)
    exact = 1 << (24 if target == pa.float32() else 53)
    values = filled(array)
    if values.dtype.itemsize * 8 <= (16 if target == pa.float32() else 32):
        return floats, None
    suspects = np.flatnonzero((values > exact) | (values < -exact if values.dtype.kind == "i" else False))
    bad = np.zeros(len(values), dtype=np.bool_)
    # In Python's integers: the way back from a float may overflow the width.
    back = filled(floats)[suspects].tolist()
    bad[suspects] = [
        int(number) != value for number, value in zip(back, values[suspects].tolist(), strict=True)
    ]
    return floats, bad


def _floats_from_decimals(array: pa.Array, target: pa.DataType) -> Numbers:
    """The nearest float, where it still has all digits of the decimal."""
    floats = array.cast(target)
    back, bad = cast_where_possible(floats, array.type)
    return floats, bad | flags(pc.not_equal(back, array))


def _floats_from_texts(array: pa.Array, target: pa.DataType) -> Numbers:
    floats, bad = cast_where_possible(array, target)
    endless = np.isinf(filled(floats))
    if endless.any():
        bad = bad | (endless & ~flags(pc.match_substring_regex(array, _INFINITE)))
    return floats, bad
