"""Dates and times of any Arrow type into Date, Date32, DateTime and DateTime64, within ClickHouse's ranges.

Instants keep their moment; times without a zone, and texts without one, are read in the column's zone. What
is finer than the column is cut off towards the past. Integers count the column's own ticks.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert import timestamps as times
from oncehouse.pipeline.convert.timestamps import Mask, cast_where_possible, null_mask, within

_DAYS = {False: (0, 65535), True: (-25567, 120529)}
_DAY_SECONDS = 86_400
_SECONDS_1900, _SECONDS_2299 = -2208988800, 10413791999
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

Times = tuple[pa.Array, Mask | None] | None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def fit_date(array: pa.Array, leaf: c.Date) -> Times:
    kind = array.type
    bad = np.zeros(len(array), dtype=np.bool_)
    if _is_text(kind):
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
    return _dates(times.filled(array.view(pa.int64())), _DAY_SECONDS * 1000, null_mask(array))


def _midnights(array: pa.Array) -> tuple[pa.Array, Mask]:
    """A time is a date only when it is the beginning of one, where it was written."""
    array, ancient = _without_ancient(array)
    local = pc.local_timestamp(array) if array.type.tz else array
    day = _DAY_SECONDS * _PER_SECOND[array.type.unit]
    dates, bad = _dates(times.filled(local.view(pa.int64())), day, null_mask(array))
    return dates, bad | ancient


def _dates(ticks: times.Ticks, day: int, nulls: Mask) -> tuple[pa.Array, Mask]:
    days, rest = np.divmod(ticks, day)
    fits = (rest == 0) & (np.abs(days) < 1 << 31)
    return pa.array(np.where(fits, days, 0).astype(np.int32), mask=nulls).view(pa.date32()), ~fits


def _without_ancient(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Zones move times by hours, which wraps those around that are near the least integer."""
    ticks = times.filled(array.view(pa.int64()))
    ancient = ticks < (_SECONDS_1900 - 2 * _DAY_SECONDS) * _PER_SECOND[array.type.unit]
    if not ancient.any():
        return array, ancient
    return pa.array(np.where(ancient, 0, ticks), mask=null_mask(array)).view(array.type), ancient


def fit_datetime(array: pa.Array, leaf: c.DateTime | c.DateTime64) -> Times:
    target = c.arrow_type(leaf)
    step, factor, least, greatest = tick_range(leaf)
    if pa.types.is_integer(array.type):
        ticks, bad = _count(array, step)
    elif _is_text(array.type):
        ticks, bad = times.parse_times(array.cast(pa.string()), unit=target.unit, zone=c.zone_of(leaf))
    elif pa.types.is_timestamp(array.type):
        ticks, bad = _shift(array, factor, c.zone_of(leaf))
    elif pa.types.is_date(array.type):
        dates, unusual = _days(array)
        ticks, bad = _shift(dates.cast(pa.timestamp("s")), factor, c.zone_of(leaf))
        bad = bad | unusual
    else:
        return None
    if step > 1:
        whole = times.filled(ticks)
        ticks = pa.array(whole - whole % step, mask=null_mask(ticks))
    bad = bad | within(ticks, least * factor, min(greatest * factor + factor - 1, (1 << 63) - 1))
    return ticks.view(target), bad


def _count(array: pa.Array, step: int) -> tuple[pa.Array, Mask]:
    if array.type == pa.uint64():
        beyond = times.filled(array) > np.uint64((1 << 63) - 1)
        ticks, bad = times.count_ticks(array.cast(pa.int64(), safe=False), factor=step)
        return ticks, bad | beyond
    return times.count_ticks(array.cast(pa.int64()), factor=step)


def _shift(array: pa.Array, factor: int, zone: str) -> tuple[pa.Array, Mask]:
    """Ticks of the column's unit, `factor` of them a second, from those of the array's."""
    per_second = _PER_SECOND[array.type.unit]
    array, ancient = _without_ancient(array)
    ticks = array.view(pa.int64()) if array.type.tz else times.local_to_utc(array, zone)
    if per_second > factor:
        coarse = np.floor_divide(times.filled(ticks), per_second // factor)
        return pa.array(coarse, mask=null_mask(array)), ancient
    counted, beyond = times.count_ticks(ticks, factor=factor // per_second)
    return counted, beyond | ancient


def tick_range(leaf: c.DateTime | c.DateTime64) -> tuple[int, int, int, int]:
    """Arrow ticks in one tick of the type, Arrow ticks in a second, and ClickHouse's range in seconds."""
    if isinstance(leaf, c.DateTime):
        return 1, 1, 0, (1 << 32) - 1
    factor = _PER_SECOND[c.unit_of(leaf)]
    return factor // 10**leaf.precision, factor, _SECONDS_1900, _SECONDS_2299
