"""Times and dates out of JSON, a whole column at a time.

Texts are ISO 8601 with `Z`, an offset or no zone (then the column's zone); what is finer than the column is
cut off towards the past, as ClickHouse does. Integers count the column's own ticks: seconds for DateTime,
10^-p seconds for DateTime64(p). Every function returns values and a mask of what it could not take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FRACTION = r"^(.{19})\.([0-9]{1,9})[0-9]*(Z|[+-][0-9:]*)?$"
_ZONED = r"^.{11,}(Z|[+-][0-9:]+)$"

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Ticks = np.ndarray[Any, np.dtype[np.int64]]


def null_mask(array: pa.Array) -> Mask:
    if array.null_count == 0:
        return np.zeros(len(array), dtype=np.bool_)
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def cast_where_possible(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast what can be cast; the rest is null and marked. Halves are tried only when something fails."""
    try:
        return array.cast(target), np.zeros(len(array), dtype=np.bool_)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, target), np.ones(1, dtype=np.bool_)
        half = len(array) // 2
        left, bad_left = cast_where_possible(array.slice(0, half), target)
        right, bad_right = cast_where_possible(array.slice(half), target)
        return pa.concat_arrays([left, right]), np.concatenate([bad_left, bad_right])


def parse_times(texts: pa.Array, *, unit: str, zone: str) -> tuple[pa.Array, Mask]:
    """Instants (int64 ticks of `unit` since 1970 UTC) of ISO texts; null stays null."""
    units = [finer for finer in ("us", "ns") if _DIGITS[finer] > _DIGITS[unit]]
    for finer in (unit, *units):
        ticks = _cast_uniform(texts, unit=finer, zone=zone)
        if ticks is not None:
            return _floor_ticks(ticks, _DIGITS[finer] - _DIGITS[unit]), np.zeros(len(texts), dtype=np.bool_)
    return _parse_mixed(texts, unit=unit, zone=zone)


def _cast_uniform(texts: pa.Array, *, unit: str, zone: str) -> pa.Array | None:
    """The whole column at once, when all of it is zoned or none of it, and fine enough for `unit`."""
    for target in (pa.timestamp(unit, tz="UTC"), pa.timestamp(unit)):
        try:
            times = texts.cast(target)
        except pa.ArrowInvalid:
            continue
        return times.view(pa.int64()) if target.tz else local_to_utc(times, zone)
    return None


def local_to_utc(times: pa.Array, zone: str) -> pa.Array:
    # An hour that daylight saving repeats means its first pass; one that it skips means the end of the gap.
    if zone == "UTC":
        return times.view(pa.int64())
    return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest").view(pa.int64())


def _floor_ticks(ticks: pa.Array, digits: int) -> pa.Array:
    if digits <= 0:
        return ticks
    floored = np.floor_divide(filled(ticks), 10**digits)
    return pa.array(floored, mask=null_mask(ticks))


def filled(ticks: pa.Array) -> Ticks:
    filled: Ticks = ticks.fill_null(0).to_numpy(zero_copy_only=False)
    return filled


def _parse_mixed(texts: pa.Array, *, unit: str, zone: str) -> tuple[pa.Array, Mask]:
    """Zoned and unzoned, fine and coarse together: seconds and fractions are read apart."""
    seconds_text = pc.replace_substring_regex(texts, _FRACTION, r"\1\3")
    zoned = pc.match_substring_regex(seconds_text, _ZONED)
    with_zone, bad_zoned = cast_where_possible(
        pc.if_else(zoned, seconds_text, None), pa.timestamp("s", tz="UTC")
    )
    without, bad_local = cast_where_possible(pc.if_else(zoned, None, seconds_text), pa.timestamp("s"))
    seconds = pc.coalesce(with_zone.view(pa.int64()), local_to_utc(without, zone))
    fraction = pc.if_else(
        pc.match_substring_regex(texts, _FRACTION), pc.replace_substring_regex(texts, _FRACTION, r"\2"), "0"
    )
    nanoseconds = filled(pc.utf8_rpad(fraction, 9, padding="0").cast(pa.int64()))
    return _join_fraction(seconds, nanoseconds, unit, bad_zoned | bad_local)


def _join_fraction(seconds: pa.Array, nanoseconds: Ticks, unit: str, bad: Mask) -> tuple[pa.Array, Mask]:
    per_second = 10 ** _DIGITS[unit]
    whole = filled(seconds)
    # One second of room on both sides keeps the sum inside 64 bits as well.
    reach = (1 << 63) // per_second - 1
    fits = (whole > -reach) & (whole < reach)
    edge_bad = bad | ~fits
    ticks = np.where(fits, whole, 0) * per_second + nanoseconds // 10 ** (9 - _DIGITS[unit])
    return pa.array(ticks, mask=null_mask(seconds) | edge_bad), edge_bad & ~null_mask(seconds) | bad


def count_ticks(numbers: pa.Array, *, factor: int) -> tuple[pa.Array, Mask]:
    """Integers in a column's own ticks, as ticks of Arrow's unit, which is `factor` times finer."""
    values = filled(numbers)
    reach = ((1 << 63) - 1) // factor
    bad = (values > reach) | (values < -reach)
    return pa.array(np.where(bad, 0, values) * factor, mask=null_mask(numbers) | bad), bad


def within(ticks: pa.Array, least: int, greatest: int) -> Mask:
    """Marks what lies outside the range."""
    values = filled(ticks)
    outside: Mask = ((values < least) | (values > greatest)) & ~null_mask(ticks)
    return outside
