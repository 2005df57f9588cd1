"""Which decimal a value may be: the rules of Decimal(P, S) for numbers and texts of every format.

A value becomes a decimal when the type holds all of its digits; it is never rounded. `exact_decimal` states the rule
for one text; the functions over columns keep it, a whole column at a time, and go back to it for texts with an
exponent. Arrow's own casts are not trusted at the edges: its rescaling wraps around beyond 38 or 76 digits without an
error, and it takes no exponents. What Arrow's JSON reader cannot take is in `formats/json/arrow_limits.py`.
"""

from __future__ import annotations

import decimal
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, text_buffers
from oncehouse.pipeline.convert.masks import Mask, filled, flags, only
from oncehouse.pipeline.convert.rejection import Reason

MOST_DIGITS = 76
_WIDE = pa.decimal256(MOST_DIGITS, 0)
_GREATEST = pa.scalar(decimal.Decimal(10**MOST_DIGITS - 1), _WIDE)
_LEAST = pa.scalar(decimal.Decimal(1 - 10**MOST_DIGITS), _WIDE)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN_NUMBER = r"^([+-]?)0*([0-9]*?)(?:\.([0-9]*?)0*)?$"
_HAS_DIGIT = r"[0-9]"
_WITH_EXPONENT = r"^[+-]?([0-9]{1,100}\.?[0-9]{0,100}|\.[0-9]{1,100})[eE][+-]?[0-9]{1,9}$"
_WIDTH = 32  # bytes of a decimal256
_AT_ONCE = 1 << 16  # rows of a column whose bytes are turned together


def is_number_text(text: str) -> bool:
    """Digits, with or without a sign, a point and an exponent; no infinity, no hexadecimal, no white space."""
    return _NUMBER.fullmatch(text) is not None


def exact_decimal(text: str, leaf: c.Decimal) -> decimal.Decimal | Reason:
    """The decimal that a text stands for, or why the type cannot hold it.

    Zeros around the digits count nowhere. WRONG_TYPE: the text is no number. OUT_OF_RANGE: it has more digits before or
    behind the point than the type. This verdict is the product's. Arrow's JSON reader has its own: it counts zeros too,
    refuses more than 76 digits, and must not meet exponents below -38 (`formats/json/arrow_limits.py`). A number of a
    JSON message passes when both take it; texts of other formats pass by this rule alone.
    """
    if not is_number_text(text):
        return Reason.WRONG_TYPE
    try:
        sign, digits, exponent = decimal.Decimal(text).as_tuple()
    except decimal.InvalidOperation:  # an exponent beyond Python's
        return Reason.OUT_OF_RANGE
    written = "".join(map(str, digits))
    significant = written.strip("0")
    if not significant:
        return decimal.Decimal(0)
    last_place = int(exponent) + len(written) - len(written.rstrip("0"))
    if last_place < -leaf.scale or len(significant) + last_place > leaf.precision - leaf.scale:
        return Reason.OUT_OF_RANGE
    return decimal.Decimal((sign, tuple(map(int, significant)), last_place))


def to_decimal(array: pa.Array, leaf: c.Decimal) -> tuple[pa.Array, Mask | None]:
    """Integers, floats, decimals and texts as decimals of the type, and which of them it cannot hold."""
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    if pa.types.is_floating(array.type):
        finite = np.isfinite(filled(array))
        converted, bad = _decimals_from_texts(only(array, finite).cast(pa.string()), leaf)
        return converted, ~finite if bad is None else ~finite | bad
    if not pa.types.is_decimal(array.type):
        return _decimals_from_texts(array.cast(pa.string()), leaf)
    return _rescale(array, leaf)


def _rescale(array: pa.Array, leaf: c.Decimal) -> tuple[pa.Array, Mask | None]:
    """Limits are checked on the digits without their point, before the cast, which may wrap around."""
    if array.type == c.arrow_type(leaf):
        greatest = pa.scalar(decimal.Decimal((0, (9,) * leaf.precision, -leaf.scale)), array.type)
        return array, flags(pc.greater(pc.abs(array), greatest))
    wide = array.cast(pa.decimal256(MOST_DIGITS, array.type.scale))
    finer = array.type.scale - leaf.scale
    most = 10**leaf.precision - 1
    limit = min(most * 10**finer if finer > 0 else most // 10**-finer, 10**MOST_DIGITS - 1)
    if finer >= MOST_DIGITS:
        limit = 0
    bad = flags(pc.greater(pc.abs(wide.view(_WIDE)), pa.scalar(decimal.Decimal(limit), _WIDE)))
    wide = _zero(wide, bad)
    if 0 < finer < MOST_DIGITS:
        moved = wide.view(pa.decimal256(MOST_DIGITS, finer))
        uneven = flags(pc.not_equal(pc.trunc(moved), moved))
        wide, bad = _zero(wide, uneven), bad | uneven
    return wide.cast(c.arrow_type(leaf)), bad


def _zero(array: pa.Array, where: Mask) -> pa.Array:
    if not where.any():
        return array
    return pc.if_else(pa.array(where), pa.scalar(decimal.Decimal(0), array.type), array)


def _decimals_from_texts(array: pa.Array, leaf: c.Decimal) -> tuple[pa.Array, Mask | None]:
    """By Arrow's cast, as far as it can be trusted; only texts that are written in another way take the long one."""
    target = c.arrow_type(leaf)
    if _are_short_and_plain(array, leaf):
        try:
            return array.cast(target), None
        except pa.ArrowInvalid:
            pass  # one of them is no number, or has too many digits
    usual = flags(pc.match_substring_regex(array, _usual_number(leaf)))
    converted = only(array, usual).cast(target)
    rest = np.flatnonzero(~usual)
    put, put_bad = _decimals_from_any_texts(array.take(pa.array(rest)), leaf)
    bad = np.zeros(len(array), dtype=np.bool_)
    bad[rest] = put_bad
    return pc.replace_with_mask(converted, pa.array(~usual), put), bad


def _usual_number(leaf: c.Decimal) -> str:
    """Texts with no more digits on either side of the point than the type has."""
    before = leaf.precision - leaf.scale
    return rf"^[+-]?{f'[0-9]{{1,{before}}}' if before else '0'}(\.[0-9]{{0,{leaf.scale}}})?$"


def _are_short_and_plain(texts: pa.Array, leaf: c.Decimal) -> bool:
    """Whether there are no exponents, and so few digits that no step of Arrow's cast wraps around."""
    most = (MOST_DIGITS if pa.types.is_decimal256(c.arrow_type(leaf)) else MOST_DIGITS // 2) - leaf.scale
    return bool(np.diff(text_buffers(texts)[0]).max(initial=0) <= most) and has_plain_bytes(texts)


def _decimals_from_any_texts(array: pa.Array, leaf: c.Decimal) -> tuple[pa.Array, Mask]:
    plain = flags(pc.match_substring_regex(array, _PLAIN_NUMBER)) & flags(
        pc.match_substring_regex(array, _HAS_DIGIT)
    )
    whole = _lengths(pc.replace_substring_regex(array, _PLAIN_NUMBER, r"\2"))
    behind = _lengths(pc.replace_substring_regex(array, _PLAIN_NUMBER, r"\3"))
    exact = plain & (whole <= leaf.precision - leaf.scale) & (behind <= leaf.scale)
    # Zeros around the digits count nowhere; one before the point keeps the text a number when nothing is left.
    texts = pc.replace_substring_regex(only(array, exact), _PLAIN_NUMBER, r"\10\2.\3")
    converted = texts.cast(c.arrow_type(leaf))
    powers = flags(pc.match_substring_regex(array, _WITH_EXPONENT))
    return (converted, ~exact) if not powers.any() else _put_powers(converted, ~exact, array, powers, leaf)


def _put_powers(
    converted: pa.Array, bad: Mask, texts: pa.Array, powers: Mask, leaf: c.Decimal
) -> tuple[pa.Array, Mask]:
    """Texts with an exponent, one at a time: the very large and the very small, which decimals seldom hold."""
    places = np.flatnonzero(powers)
    values = [exact_decimal(text, leaf) for text in texts.take(pa.array(places)).to_pylist()]
    refused = [isinstance(value, Reason) for value in values]
    put = pa.array(
        [decimal.Decimal(0) if isinstance(value, Reason) else value for value in values], converted.type
    )
    bad[places] = refused
    return pc.replace_with_mask(converted, pa.array(powers), put), bad


def has_plain_bytes(numbers: pa.Array) -> bool:
    """Whether texts have no bytes but digits, signs and points: no exponents, which Arrow's decimals cannot be given.

    From the plus sign to the 9 there are, besides what numbers are written with, only the comma and the slash.
    """
    offsets, data = text_buffers(numbers)
    return bool((data[offsets[0] : offsets[-1]] - np.uint8(ord("+")) <= ord("9") - ord("+")).all())


def _lengths(texts: pa.Array) -> Offsets:
    lengths: Offsets = filled(pc.binary_length(texts)).astype(np.int64)
    return lengths


# -- bytes ------------------------------------------------------------------------------------------------


def decimals_from_bytes(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Whole numbers out of big-endian bytes in two's complement, and which have more than 76 digits."""
    pieces = [_turn(values.slice(start, _AT_ONCE)) for start in range(0, len(values), _AT_ONCE)]
    matrix = np.concatenate([piece for piece, _ in pieces]) if pieces else np.zeros((0, _WIDTH), np.uint8)
    too_long: Mask = np.concatenate([wrong for _, wrong in pieces]) if pieces else np.zeros(0, dtype=np.bool_)
    whole = pa.Array.from_buffers(_WIDE, len(values), [None, pa.py_buffer(np.ascontiguousarray(matrix))])
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
