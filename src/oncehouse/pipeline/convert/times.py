"""Dates and times of any Arrow type into Date, Date32, DateTime and DateTime64, within ClickHouse's ranges.

Instants keep their moment. Texts are ISO 8601 with `Z`, an offset or no zone; times and texts without a zone are read
in the column's zone. What is finer than the column is cut off towards the past, as ClickHouse does. Integers count the
column's own ticks: seconds for DateTime, 10^-p seconds for DateTime64(p).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import is_text
from oncehouse.pipeline.convert.masks import Mask, cast_where_possible, null_mask
from oncehouse.pipeline.convert.time_zones import local_to_utc, utc_to_local

_DAYS = {False: (0, 65535), True: (-25567, 120529)}
_DAY_SECONDS = 86_400
_SECONDS_1900, _SECONDS_2299 = -2208988800, 10413791999
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FRACTION = r"^(.{19})\.([0-9]{1,9})[0-9]*(Z|[+-][0-9:]*)?$"
_ZONED = r"^.{11,}(Z|[+-][0-9:]+)$"

Ticks = np.ndarray[Any, np.dtype[np.int64]]
Times = tuple[pa.Array, Mask | None] | None


def to_date(array: pa.Array, leaf: c.Date) -> Times:
    kind = array.type
    bad = np.zeros(len(array), dtype=np.bool_)
    if is_text(kind):
        dates, bad = cast_where_possible(array.cast(pa.string()), pa.date32())
    elif pa.types.is_timestamp(kind):
        dates, bad = _midnights(array)
    elif pa.types.is_date(kind):
        dates, bad = _days(array)
    else:
        return None
    least, greatest = _DAYS[leaf.wide]
    return dates, bad | within(dates.view(pa.int32()), least, greatest)


def _days(array: pa.Array) -> tuple[pa.Array, Mask]:
    if pa.types.is_date32(array.type):
        return array, np.zeros(len(array), dtype=np.bool_)
    return _dates(filled_ticks(array.view(pa.int64())), _DAY_SECONDS * 1000, null_mask(array))


def _midnights(array: pa.Array) -> tuple[pa.Array, Mask]:
    """A time is a date only when it is the beginning of one, where it was written."""
    array, ancient = _without_ancient(array)
    ticks, per_second = filled_ticks(array.view(pa.int64())), _PER_SECOND[array.type.unit]
    local = utc_to_local(ticks, array.type.tz, per_second=per_second) if array.type.tz else ticks
    dates, bad = _dates(local, _DAY_SECONDS * per_second, null_mask(array))
    return dates, bad | ancient


def _dates(ticks: Ticks, day: int, nulls: Mask) -> tuple[pa.Array, Mask]:
    days, rest = np.divmod(ticks, day)
    whole = (rest == 0) & (np.abs(days) < 1 << 31)
    return pa.array(np.where(whole, days, 0).astype(np.int32), mask=nulls).view(pa.date32()), ~whole


def _without_ancient(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Zones move times by hours, which wraps those around that are near the least integer."""
    ticks = filled_ticks(array.view(pa.int64()))
    ancient = ticks < (_SECONDS_1900 - 2 * _DAY_SECONDS) * _PER_SECOND[array.type.unit]
    if not ancient.any():
        return array, ancient
    return pa.array(np.where(ancient, 0, ticks), mask=null_mask(array)).view(array.type), ancient


def to_datetime(array: pa.Array, leaf: c.DateTime | c.DateTime64) -> Times:
    target = c.arrow_type(leaf)
    step, factor, least, greatest = tick_range(leaf)
    if pa.types.is_integer(array.type):
        ticks, bad = _count(array, step)
    elif is_text(array.type):
        ticks, bad = parse_times(array.cast(pa.string()), unit=target.unit, zone=c.zone_of(leaf))
    elif pa.types.is_timestamp(array.type):
        ticks, bad = _shift(array, factor, c.zone_of(leaf))
    elif pa.types.is_date(array.type):
        dates, unusual = _days(array)
        ticks, bad = _shift(dates.cast(pa.timestamp("s")), factor, c.zone_of(leaf))
        bad = bad | unusual
    else:
        return None
    if step > 1:
        whole = filled_ticks(ticks)
        ticks = pa.array(whole - whole % step, mask=null_mask(ticks))
    bad = bad | within(ticks, least * factor, min(greatest * factor + factor - 1, (1 << 63) - 1))
    return ticks.view(target), bad


def _count(array: pa.Array, step: int) -> tuple[pa.Array, Mask]:
    if array.type == pa.uint64():
        beyond = filled_ticks(array) > np.uint64((1 << 63) - 1)
        ticks, bad = count_ticks(array.cast(pa.int64(), safe=False), factor=step)
        return ticks, bad | beyond
    return count_ticks(array.cast(pa.int64()), factor=step)


def _shift(array: pa.Array, factor: int, zone: str) -> tuple[pa.Array, Mask]:
    """Ticks of the column's unit, `factor` of them a second, from those of the array's."""
    per_second = _PER_SECOND[array.type.unit]
    array, ancient = _without_ancient(array)
    ticks = array.view(pa.int64()) if array.type.tz else read_local(array, zone)
    if per_second > factor:
        coarse = np.floor_divide(filled_ticks(ticks), per_second // factor)
        return pa.array(coarse, mask=null_mask(array)), ancient
    counted, beyond = count_ticks(ticks, factor=factor // per_second)
    return counted, beyond | ancient


def tick_range(leaf: c.DateTime | c.DateTime64) -> tuple[int, int, int, int]:
    """Arrow ticks in one tick of the type, Arrow ticks in a second, and ClickHouse's range in seconds."""
    if isinstance(leaf, c.DateTime):
        return 1, 1, 0, (1 << 32) - 1
    factor = _PER_SECOND[c.unit_of(leaf)]
    return factor // 10**leaf.precision, factor, _SECONDS_1900, _SECONDS_2299


# -- texts and ticks --------------------------------------------------------------------------------------


def filled_ticks(ticks: pa.Array) -> Ticks:
    values: Ticks = ticks.fill_null(0).to_numpy(zero_copy_only=False)
    return values


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
        return times.view(pa.int64()) if target.tz else read_local(times, zone)
    return None


def read_local(times: pa.Array, zone: str) -> pa.Array:
    """The instants of times without a zone."""
    if zone == "UTC":
        return times.view(pa.int64())
    ticks = filled_ticks(times.view(pa.int64()))
    return pa.array(local_to_utc(ticks, zone, per_second=_PER_SECOND[times.type.unit]), mask=null_mask(times))


def _floor_ticks(ticks: pa.Array, digits: int) -> pa.Array:
    if digits <= 0:
        return ticks
    floored = np.floor_divide(filled_ticks(ticks), 10**digits)
    return pa.array(floored, mask=null_mask(ticks))


def _parse_mixed(texts: pa.Array, *, unit: str, zone: str) -> tuple[pa.Array, Mask]:
    """Zoned and unzoned, fine and coarse together: seconds and fractions are read apart."""
    seconds_text = pc.replace_substring_regex(texts, _FRACTION, r"\1\3")
    zoned = pc.match_substring_regex(seconds_text, _ZONED)
    with_zone, bad_zoned = cast_where_possible(
        pc.if_else(zoned, seconds_text, None), pa.timestamp("s", tz="UTC")
    )
    without, bad_local = cast_where_possible(pc.if_else(zoned, None, seconds_text), pa.timestamp("s"))
    seconds = pc.coalesce(with_zone.view(pa.int64()), read_local(without, zone))
    fraction = pc.if_else(
        pc.match_substring_regex(texts, _FRACTION), pc.replace_substring_regex(texts, _FRACTION, r"\2"), "0"
    )
    nanoseconds = filled_ticks(pc.utf8_rpad(fraction, 9, padding="0").cast(pa.int64()))
    return _join_fraction(seconds, nanoseconds, unit, bad_zoned | bad_local)


def _join_fraction(seconds: pa.Array, nanoseconds: Ticks, unit: str, bad: Mask) -> tuple[pa.Array, Mask]:
    per_second = 10 ** _DIGITS[unit]
    whole = filled_ticks(seconds)
    # One second of room on both sides keeps the sum inside 64 bits as well.
    reach = (1 << 63) // per_second - 1
    inside = (whole > -reach) & (whole < reach)
    edge_bad = bad | ~inside
    ticks = np.where(inside, whole, 0) * per_second + nanoseconds // 10 ** (9 - _DIGITS[unit])
    return pa.array(ticks, mask=null_mask(seconds) | edge_bad), edge_bad & ~null_mask(seconds) | bad


def count_ticks(numbers: pa.Array, *, factor: int) -> tuple[pa.Array, Mask]:
    """Integers in a column's own ticks, as ticks of Arrow's unit, which is `factor` times finer."""
    values = filled_ticks(numbers)
    reach = ((1 << 63) - 1) // factor
    bad = (values > reach) | (values < -reach)
    return pa.array(np.where(bad, 0, values) * factor, mask=null_mask(numbers) | bad), bad


def within(ticks: pa.Array, least: int, greatest: int) -> Mask:
    """Marks what lies outside the range."""
    values = filled_ticks(ticks)
    outside: Mask = ((values < least) | (values > greatest)) & ~null_mask(ticks)
    return outside
