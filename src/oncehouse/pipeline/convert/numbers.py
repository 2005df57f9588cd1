"""Numbers of any Arrow type into integers, floats and decimals: the same number, or marked.

Integers of every width, floats, decimals, booleans, durations and texts come in. Arrow's own casts are not
trusted at the edges: some wrap around (a decimal rescaled beyond 38 digits), some take more than digits
(hexadecimal), some turn what is too large into infinity.
"""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import (
    are_written_plainly,
    fixed_array,
    integers_from_decimals,
    text_buffers,
)
from oncehouse.pipeline.convert.timestamps import Mask, cast_where_possible, null_mask

_WIDE = pa.decimal256(76, 0)
_DIGITS = r"^[+-]?[0-9]+$"
_PLAIN_NUMBER = r"^([+-]?)0*([0-9]*?)(?:\.([0-9]*?)0*)?$"
_HAS_DIGIT = r"[0-9]"
_WITH_EXPONENT = r"^[+-]?([0-9]{1,100}\.?[0-9]{0,100}|\.[0-9]{1,100})[eE][+-]?[0-9]{1,9}$"
_INFINITE = r"(?i)^[+-]?inf(inity)?$"
_MOST_DIGITS = 76

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


def _counted(array: pa.Array) -> pa.Array:
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


def _filled(array: pa.Array, value: float = 0) -> np.ndarray[Any, Any]:
    filled = array.fill_null(pa.scalar(value, array.type)) if array.null_count else array
    values: np.ndarray[Any, Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _flags(array: pa.Array) -> Mask:
    flags: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return flags


def _either(left: Mask, right: Mask | None) -> Mask:
    return left if right is None else left | right


# -- integers ---------------------------------------------------------------------------------------------


def fit_integer(array: pa.Array, leaf: c.Integer) -> Numbers:
    array = _counted(array)
    if pa.types.is_decimal(array.type):
        whole, bad = fit_decimal(array, c.Decimal(precision=_MOST_DIGITS, scale=0))
        fitted, beyond = _integers_from_wide(whole, leaf)
        return fitted, _either(beyond, bad)
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
    values = _filled(array)
    limits = np.iinfo(values.dtype)
    bad = (values < max(leaf.least, int(limits.min))) | (values > min(leaf.greatest, int(limits.max)))
    return array.cast(target, safe=False), bad


def _integers_from_wide(array: pa.Array, leaf: c.Integer) -> tuple[pa.Array, Mask]:
    """Out of decimal256(76, 0), whose low bytes are the integer's."""
    fitted, bad = integers_from_decimals(array, leaf)
    if leaf.bits > 64:
        return fitted, bad
    buffers = [fitted.buffers()[0], fitted.buffers()[1]]
    return pa.Array.from_buffers(c.arrow_type(leaf), len(fitted), buffers), bad


def _integers_from_floats(array: pa.Array, leaf: c.Integer) -> Numbers:
    values = _filled(array).astype(np.float64)
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
    digits = _flags(pc.match_substring_regex(array, _DIGITS))
    texts = pc.replace_substring_regex(array, r"^\+?(-?)0*([0-9])", r"\1\2")
    if leaf.bits <= 64:
        fitted, beyond = cast_where_possible(_only(texts, digits), c.arrow_type(leaf))
        return fitted, ~digits | beyond
    long = digits & (_lengths(texts) > _MOST_DIGITS)
    wide, _ = cast_where_possible(_only(texts, digits & ~long), _WIDE)
    fitted, beyond = _integers_from_wide(wide, leaf)
    if long.any():
        fitted, beyond = _put_long(fitted, beyond, texts, long, leaf)
    return fitted, ~digits | beyond


def _put_long(
    fitted: pa.Array, beyond: Mask, texts: pa.Array, long: Mask, leaf: c.Integer
) -> tuple[pa.Array, Mask]:
    """The few integers of 77 and 78 digits, which no decimal holds, one at a time."""
    places = np.flatnonzero(long)
    # Longer ones are beyond every type; Python would take long to read them.
    given = [text if len(text) <= 80 else "9" * 80 for text in texts.take(pa.array(places)).to_pylist()]
    values = [int(text) for text in given]
    outside = np.array([not leaf.least <= value <= leaf.greatest for value in values])
    kept = [0 if wrong else value for value, wrong in zip(values, outside, strict=True)]
    put = _from_python(kept, leaf, np.zeros(len(kept), dtype=np.bool_))
    beyond = beyond.copy()
    beyond[places] = outside
    return pc.replace_with_mask(fitted, pa.array(long), put), beyond


def _from_python(values: list[int], leaf: c.Integer, nulls: Mask) -> pa.Array:
    width = leaf.bits // 8
    data = b"".join(value.to_bytes(width, "little", signed=leaf.signed) for value in values)
    return fixed_array(np.frombuffer(data, dtype=np.uint8).reshape(-1, width), nulls)


def _only(array: pa.Array, wanted: Mask) -> pa.Array:
    return array if wanted.all() else pc.if_else(pa.array(wanted), array, None)


def _lengths(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = _filled(pc.binary_length(texts)).astype(np.int64)
    return lengths


# -- floats -----------------------------------------------------------------------------------------------


def fit_float(array: pa.Array, leaf: c.Float) -> Numbers:
    array = _counted(array)
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
    values = _filled(array)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    bad = (narrow.astype(np.float64) != values) & ~np.isnan(values)
    return pa.array(narrow, mask=null_mask(array)), bad


def _floats_from_integers(array: pa.Array, target: pa.DataType) -> Numbers:
    floats = array.cast(target, safe=False)
    exact = 1 << (24 if target == pa.float32() else 53)
    values = _filled(array)
    if values.dtype.itemsize * 8 <= (16 if target == pa.float32() else 32):
        return floats, None
    suspects = np.flatnonzero((values > exact) | (values < -exact if values.dtype.kind == "i" else False))
    bad = np.zeros(len(values), dtype=np.bool_)
    # In Python's integers: the way back from a float may overflow the width.
    back = _filled(floats)[suspects].tolist()
    bad[suspects] = [
        int(number) != value for number, value in zip(back, values[suspects].tolist(), strict=True)
    ]
    return floats, bad


def _floats_from_decimals(array: pa.Array, target: pa.DataType) -> Numbers:
    """The nearest float, where it still tells all digits of the decimal."""
    floats = array.cast(target)
    back, bad = cast_where_possible(floats, array.type)
    return floats, bad | _flags(pc.not_equal(back, array))


def _floats_from_texts(array: pa.Array, target: pa.DataType) -> Numbers:
    floats, bad = cast_where_possible(array, target)
    endless = np.isinf(_filled(floats))
    if endless.any():
        bad = bad | (endless & ~_flags(pc.match_substring_regex(array, _INFINITE)))
    return floats, bad


# -- decimals ---------------------------------------------------------------------------------------------


def fit_decimal(array: pa.Array, leaf: c.Decimal) -> Numbers:
    array = _counted(array)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    if pa.types.is_floating(array.type):
        finite = np.isfinite(_filled(array))
        fitted, bad = _decimals_from_texts(_only(array, finite).cast(pa.string()), leaf)
        return fitted, _either(~finite, bad)
    if not pa.types.is_decimal(array.type):
        return _decimals_from_texts(array.cast(pa.string()), leaf)
    return _rescale(array, leaf)


def _rescale(array: pa.Array, leaf: c.Decimal) -> Numbers:
    """Limits are checked on the digits without their point, before the cast, which may wrap around."""
    if array.type == c.arrow_type(leaf):
        greatest = pa.scalar(decimal.Decimal((0, (9,) * leaf.precision, -leaf.scale)), array.type)
        return array, _flags(pc.greater(pc.abs(array), greatest))
    wide = array.cast(pa.decimal256(_MOST_DIGITS, array.type.scale))
    finer = array.type.scale - leaf.scale
    most = 10**leaf.precision - 1
    limit = min(most * 10**finer if finer > 0 else most // 10**-finer, 10**_MOST_DIGITS - 1)
    if finer >= _MOST_DIGITS:
        limit = 0
    bad = _flags(pc.greater(pc.abs(wide.view(_WIDE)), pa.scalar(decimal.Decimal(limit), _WIDE)))
    wide = _zero(wide, bad)
    if 0 < finer < _MOST_DIGITS:
        moved = wide.view(pa.decimal256(_MOST_DIGITS, finer))
        uneven = _flags(pc.not_equal(pc.trunc(moved), moved))
        wide, bad = _zero(wide, uneven), bad | uneven
    return wide.cast(c.arrow_type(leaf)), bad


def _zero(array: pa.Array, where: Mask) -> pa.Array:
    if not where.any():
        return array
    return pc.if_else(pa.array(where), pa.scalar(decimal.Decimal(0), array.type), array)


def _decimals_from_texts(array: pa.Array, leaf: c.Decimal) -> Numbers:
    """By Arrow's cast, as far as it can be trusted; only texts that are written in another way take the long one."""
    target = c.arrow_type(leaf)
    if _are_short_and_plain(array, leaf):
        try:
            return array.cast(target), None
        except pa.ArrowInvalid:
            pass  # one of them is no number, or does not fit
    usual = _flags(pc.match_substring_regex(array, _usual_number(leaf)))
    fitted = _only(array, usual).cast(target)
    rest = np.flatnonzero(~usual)
    put, put_bad = _decimals_from_any_texts(array.take(pa.array(rest)), leaf)
    bad = np.zeros(len(array), dtype=np.bool_)
    bad[rest] = put_bad
    return pc.replace_with_mask(fitted, pa.array(~usual), put), bad


def _usual_number(leaf: c.Decimal) -> str:
    """Texts with no more digits on either side of the point than the type has."""
    before = leaf.precision - leaf.scale
    return rf"^[+-]?{f'[0-9]{{1,{before}}}' if before else '0'}(\.[0-9]{{0,{leaf.scale}}})?$"


def _are_short_and_plain(texts: pa.Array, leaf: c.Decimal) -> bool:
    """Whether there are no exponents, and so few digits that no step of Arrow's cast wraps around."""
    most = (_MOST_DIGITS if pa.types.is_decimal256(c.arrow_type(leaf)) else _MOST_DIGITS // 2) - leaf.scale
    return bool(np.diff(text_buffers(texts)[0]).max(initial=0) <= most) and are_written_plainly(texts)


def _decimals_from_any_texts(array: pa.Array, leaf: c.Decimal) -> tuple[pa.Array, Mask]:
    plain = _flags(pc.match_substring_regex(array, _PLAIN_NUMBER)) & _flags(
        pc.match_substring_regex(array, _HAS_DIGIT)
    )
    whole = _lengths(pc.replace_substring_regex(array, _PLAIN_NUMBER, r"\2"))
    behind = _lengths(pc.replace_substring_regex(array, _PLAIN_NUMBER, r"\3"))
    fits = plain & (whole <= leaf.precision - leaf.scale) & (behind <= leaf.scale)
    # Zeros around the digits count nowhere; one before the point keeps the text a number when nothing is left.
    texts = pc.replace_substring_regex(_only(array, fits), _PLAIN_NUMBER, r"\10\2.\3")
    fitted = texts.cast(c.arrow_type(leaf))
    powers = _flags(pc.match_substring_regex(array, _WITH_EXPONENT))
    return (fitted, ~fits) if not powers.any() else _put_powers(fitted, ~fits, array, powers, leaf)


def _put_powers(
    fitted: pa.Array, bad: Mask, texts: pa.Array, powers: Mask, leaf: c.Decimal
) -> tuple[pa.Array, Mask]:
    """Texts with an exponent, one at a time: the very large and the very small, which decimals seldom hold."""
    places = np.flatnonzero(powers)
    values = [_exact(text, leaf) for text in texts.take(pa.array(places)).to_pylist()]
    put = pa.array([value or decimal.Decimal(0) for value in values], fitted.type)
    bad[places] = [value is None for value in values]
    return pc.replace_with_mask(fitted, pa.array(powers), put), bad


def _exact(text: str, leaf: c.Decimal) -> decimal.Decimal | None:
    sign, digits, exponent = decimal.Decimal(text).as_tuple()
    significant = "".join(map(str, digits)).strip("0")
    if not significant:
        return decimal.Decimal(0)
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    least_place = int(exponent) + trailing
    if least_place < -leaf.scale or len(significant) + least_place > leaf.precision - leaf.scale:
        return None
    return decimal.Decimal((sign, tuple(map(int, significant)), least_place))
