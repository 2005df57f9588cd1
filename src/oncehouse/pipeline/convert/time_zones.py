"""Between the clocks of a time zone and UTC, a whole column at a time, by Python's own reading of the zone files.

Arrow's reading leaves out the rule at the end of a file, which says how clocks change after the last change that the
file lists: its times after 2037 had no summer. A zone's changes are found here by asking `zoneinfo` for the years that
a column has, once a process.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

Ticks = np.ndarray[Any, np.dtype[np.int64]]

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Years of ClickHouse's times, and one on either side. What lies beyond is out of range in every zone.
_FIRST_YEAR, _LAST_YEAR = 1899, 2300
_FIRST, _LAST = -2240524800, 10445414400
_FIXED = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})")


class _OffsetChanges(NamedTuple):
    """When clocks change, in seconds of UTC, and their offsets: before the first change, and after each."""

    at: Ticks
    offsets: Ticks


def local_to_utc(ticks: Ticks, zone: str, *, per_second: int) -> Ticks:
    """An hour that clocks show twice means its first pass; one that they skip means the end of the gap."""
    if zone == "UTC" or not len(ticks):
        return ticks
    seconds, inside = _whole_seconds(ticks, per_second)
    changes = _changes_between(zone, seconds)
    # Clocks show the offset before a change up to the moment at which they are turned.
    turned = np.searchsorted(changes.at + changes.offsets[:-1], seconds, side="right")
    moved = ticks - changes.offsets[turned] * per_second
    # In a gap, the offset after the change would lead to before it.
    earliest = np.concatenate([[_FIRST - _DAY], changes.at])[turned] * per_second
    # What lies behind the last integer becomes the least one, and is left so far out of range.
    wrapped = (moved > ticks) != (changes.offsets[turned] < 0)
    return np.where(inside, np.where(wrapped, moved, np.maximum(moved, earliest)), ticks)


def utc_to_local(ticks: Ticks, zone: str, *, per_second: int) -> Ticks:
    if zone == "UTC" or not len(ticks):
        return ticks
    seconds, inside = _whole_seconds(ticks, per_second)
    changes = _changes_between(zone, seconds)
    offsets = changes.offsets[np.searchsorted(changes.at, seconds, side="right")]
    return np.where(inside, ticks + offsets * per_second, ticks)


def _whole_seconds(ticks: Ticks, per_second: int) -> tuple[Ticks, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Seconds that are inside of the years of the tables, and which are so by themselves."""
    seconds = ticks // per_second
    clipped = np.clip(seconds, _FIRST, _LAST)
    return clipped, clipped == seconds


def _changes_between(zone: str, seconds: Ticks) -> _OffsetChanges:
    first, last = (_EPOCH + timedelta(seconds=int(second)) for second in (seconds.min(), seconds.max()))
    # Clocks are less than a day away from UTC.
    return _find_changes(zone, (first - timedelta(days=2)).year, (last + timedelta(days=2)).year)


@lru_cache(maxsize=256)
def _find_changes(zone: str, first_year: int, last_year: int) -> _OffsetChanges:
    years = range(max(first_year, _FIRST_YEAR - 1), min(last_year, _LAST_YEAR + 1) + 1)
    listed = [change for year in years for change in _changes_of_year(zone, year)]
    begin = _offset(_open_zone(zone), _start_of(years[0]))
    return _OffsetChanges(
        at=np.array([at for at, _ in listed], dtype=np.int64),
        offsets=np.array([begin, *(after for _, after in listed)], dtype=np.int64),
    )


@lru_cache(maxsize=4096)
def _changes_of_year(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """No zone changes its clocks twice within a day."""
    opened = _open_zone(zone)
    changes = []
    start, end = _start_of(year), _start_of(year + 1)
    before = _offset(opened, start)
    for day in range(start + _DAY, end + 1, _DAY):
        after = _offset(opened, day)
        if after != before:
            changes.append((_find_second(opened, day - _DAY, day, before), after))
            before = after
    return tuple(changes)


def _find_second(zone: tzinfo, low: int, high: int, before: int) -> int:
    """The first second with another offset; `low` has the one before."""
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _start_of(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


def _offset(zone: tzinfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, zone).utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


def _open_zone(zone: str) -> tzinfo:
    """Arrow's zones also are plain offsets."""
    fixed = _FIXED.fullmatch(zone)
    if fixed is None:
        return ZoneInfo(zone)
    away = timedelta(hours=int(fixed[2]), minutes=int(fixed[3]))
    return timezone(-away if fixed[1] == "-" else away)
