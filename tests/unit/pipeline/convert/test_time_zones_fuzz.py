"""Times next to zoneinfo in every zone that it knows, above all around the moments at which clocks are turned."""
# ruff: noqa: DTZ001 - times without a zone are what is tested

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.time_zones import local_to_utc, utc_to_local

EPOCH = datetime(1970, 1, 1)
HOUR = timedelta(hours=1)
ZONES = sorted(available_timezones() - {"localtime"})
YEARS = st.integers(1901, 2297)


def is_shown(time: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks ever show this time."""
    time = time.replace(microsecond=0)
    return datetime.fromtimestamp(time.replace(tzinfo=zone).timestamp(), zone).replace(tzinfo=None) == time


@lru_cache(maxsize=1000)
def hours_of_change(zone: str, year: int) -> tuple[datetime, ...]:
    """The hours of UTC within which the offset changes."""
    opened = ZoneInfo(zone)
    start = datetime(year, 1, 1, tzinfo=UTC)
    hours = [start + number * HOUR for number in range(366 * 24)]
    offsets = [hour.astimezone(opened).utcoffset() for hour in hours]
    return tuple(
        hour.replace(tzinfo=None)
        for hour, before, after in zip(hours, offsets, offsets[1:], strict=False)
        if before != after
    )


def first_pass(time: datetime) -> datetime:
    """Neither Arrow nor a text says which of two passes is meant."""
    return time.replace(fold=0)


@st.composite
def moments(draw) -> tuple[str, list[datetime]]:
    """A zone and times of one or two of its years, as clocks or UTC would show them."""
    zone, year = draw(st.sampled_from(ZONES)), draw(YEARS)
    turns = [*hours_of_change(zone, year), *hours_of_change(zone, year + draw(st.integers(0, 1)))]
    near = st.timedeltas(-timedelta(hours=16), timedelta(hours=16))
    times = st.datetimes(datetime(year, 1, 1), datetime(year + 2, 1, 1)).map(first_pass)
    if turns:
        times |= st.builds(lambda turn, away: turn + away, st.sampled_from(turns), near)
    return zone, draw(st.lists(times, min_size=1, max_size=20))


def ticks_of(time: datetime, unit: int) -> int:
    return (time - EPOCH) // timedelta(seconds=1 / unit)


@given(moments(), st.sampled_from([1, 1000, 1_000_000]))
@example(("Europe/Berlin", [datetime(2040, 7, 1, 12)]), 1)
@example(("Europe/Berlin", [datetime(2040, 10, 28, 2, 30)]), 1)
@example(("Europe/Berlin", [datetime(2040, 3, 25, 2, 30, 0, 500_000)]), 1000)
@example(("Australia/Lord_Howe", [datetime(2040, 10, 7, 2, 15)]), 1)
@examples(40)
def test_any_time_is_its_first_pass_or_the_end_of_its_gap(moment, unit):
    zone, times = moment
    opened = ZoneInfo(zone)
    ticks = np.array([ticks_of(time, unit) for time in times])
    for time, tick, found in zip(
        times, ticks.tolist(), local_to_utc(ticks, zone, per_second=unit).tolist(), strict=True
    ):
        if is_shown(time, opened):
            second = int(time.replace(tzinfo=opened, microsecond=0).timestamp())
            assert found == second * unit + tick % unit
            assert int(utc_to_local(np.array([found]), zone, per_second=unit)[0]) == tick
            continue
        assert found % unit == 0
        before, after = (datetime.fromtimestamp(found // unit - second, opened) for second in (1, 0))
        assert before.utcoffset() != after.utcoffset()
        assert before.replace(tzinfo=None) < time < after.replace(tzinfo=None)


@given(moments(), st.sampled_from([1, 1000]))
@examples(40)
def test_any_instant_is_what_clocks_show(moment, unit):
    zone, times = moment
    instants = np.array([ticks_of(time, unit) for time in times])
    shown = [
        time.replace(tzinfo=UTC, microsecond=0).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for time in times
    ]
    wanted = [
        ticks_of(clock, unit) + instant % unit
        for clock, instant in zip(shown, instants.tolist(), strict=True)
    ]
    assert utc_to_local(instants, zone, per_second=unit).tolist() == wanted


@given(moments())
@examples(30)
def test_texts_and_arrays_without_a_zone_are_the_instants_of_that_zone(moment):
    zone, times = moment
    opened = ZoneInfo(zone)
    times = [time.replace(microsecond=0) for time in times if is_shown(time, opened)]
    wanted = [int(time.replace(tzinfo=opened).timestamp()) for time in times]
    type_ = parse_type(f"DateTime64(0, '{zone}')")
    for array in (pa.array(times, pa.timestamp("us")), pa.array(list(map(str, times)), pa.string())):
        converted = convert(array, type_)
        assert converted.bad is None or not converted.bad.any()
        assert converted.array.view(pa.int64()).to_pylist() == wanted


@given(moments())
@examples(30)
def test_instants_are_dates_by_the_clocks_of_their_zone(moment):
    zone, times = moment
    midnights = [time.replace(hour=0, minute=0, second=0, microsecond=0) for time in times]
    midnights = [time for time in midnights if is_shown(time, ZoneInfo(zone))]
    starts = [int(time.replace(tzinfo=ZoneInfo(zone)).timestamp()) for time in midnights]
    converted = convert(pa.array(starts, pa.timestamp("s", tz=zone)), parse_type("Date32"))
    assert converted.bad is None or not converted.bad.any()
    assert converted.array.to_pylist() == [time.date() for time in midnights]
