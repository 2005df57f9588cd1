"""Times without a zone are read in their column's zone as Python reads them, in every year that a column holds."""
# ruff: noqa: DTZ001 - times without a zone are what is tested

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.convert import convert
from oncehouse.sync.model.arrow_rows import make_block

# Summer in the north and in the south, half an hour of it, less than 0 of it in winter, months of Ramadan, changes on
# other days than Sunday, no summer any more, and offsets of seconds.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Jerusalem",
    "Asia/Gaza",
    "America/Nuuk",
    "Pacific/Apia",
    "Africa/Monrovia",
    "Asia/Kolkata",
]
BEGIN, END = datetime(1970, 1, 1), datetime(2100, 1, 1)
STEP = timedelta(days=9, hours=5, minutes=30)
TIMES = [BEGIN + number * STEP for number in range((END - BEGIN) // STEP)]


def is_shown(time: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks ever show this time."""
    time = time.replace(microsecond=0)
    return datetime.fromtimestamp(time.replace(tzinfo=zone).timestamp(), zone).replace(tzinfo=None) == time


def instants(zone: str, times: list[datetime]) -> list[int]:
    return [int(time.replace(tzinfo=ZoneInfo(zone)).timestamp()) for time in times]


def seconds(array: pa.Array) -> list[int]:
    return array.view(pa.int64()).to_pylist()


@pytest.mark.parametrize("zone", ZONES)
def test_times_and_texts_without_a_zone_are_the_instants_that_python_says(zone):
    times = [time for time in TIMES if is_shown(time, ZoneInfo(zone))]
    wanted = instants(zone, times)
    type_ = parse_type(f"DateTime64(0, '{zone}')")
    texts = [str(time) for time in times]
    mixed = [text if place % 2 else f"{text}.5" for place, text in enumerate(texts)]
    for array in (pa.array(times, pa.timestamp("us")), pa.array(texts), pa.array(mixed)):
        converted = convert(array, type_)
        assert converted.bad is None or not converted.bad.any()
        assert seconds(converted.array) == wanted


@pytest.mark.parametrize("zone", ZONES)
def test_dates_begin_at_midnight_of_the_zone_and_come_back(zone):
    days = [date(year, month, 15) for year in range(1970, 2100) for month in (1, 7)]
    wanted = instants(zone, [datetime(day.year, day.month, day.day) for day in days])
    times = convert(pa.array(days), parse_type(f"DateTime64(0, '{zone}')"))
    assert seconds(times.array) == wanted
    again = convert(times.array, parse_type("Date32"))
    assert again.bad is None or not again.bad.any()
    assert again.array.to_pylist() == days


@pytest.mark.parametrize("zone", ZONES)
def test_rows_of_models_are_the_instants_that_python_says(zone):
    times = TIMES[::20]
    block = make_block({"at": parse_type(f"DateTime64(0, '{zone}')")}, [times])
    assert seconds(block.column("at")) == instants(zone, times)


@pytest.mark.parametrize("year", [2026, 2040])
@pytest.mark.parametrize(
    ("type_", "nest"),
    [
        ("Array({})", lambda time: [time, None]),
        ("Map(String, {})", lambda time: {"a": time, "b": None}),
        ("Tuple(n UInt8, t {})", lambda time: {"n": 1, "t": time}),
        ("Tuple(n UInt8, t {})", lambda time: (1, time)),
        ("Array(Tuple(t {}))", lambda time: [{"t": time}]),
        ("Map(String, Array({}))", lambda time: [("a", [time])]),
    ],
)
def test_times_inside_of_values_of_models_are_read_in_the_zone_too(type_, nest, year):
    leaf = "DateTime64(0, 'Europe/Berlin')"
    inner = leaf if type_.startswith(("Tuple", "Array(T")) else f"Nullable({leaf})"
    column = {"at": parse_type(type_.format(inner))}
    naive = datetime(year, 7, 1, 12)
    zoned = naive.replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert make_block(column, [[nest(naive)]]) == make_block(column, [[nest(zoned)]])


@pytest.mark.parametrize(
    ("ticks", "zone", "unit"),
    [
        *(
            (ticks, zone, "s")
            for ticks in (-(1 << 63), (1 << 63) - 1)
            for zone in ("Asia/Tokyo", "America/New_York")
        ),
        *((-(1 << 63) + more, zone, "ns") for more in (0, 1) for zone in ("Asia/Tokyo", "America/New_York")),
        ((1 << 63) - 1, "America/New_York", "ns"),
    ],
)
def test_times_at_the_ends_of_the_integers_are_refused_and_do_not_wrap_around(ticks, zone, unit):
    array = pa.array([ticks, 0]).view(pa.timestamp(unit))
    converted = convert(array, parse_type(f"DateTime64(9, '{zone}')"))
    assert converted.bad is not None
    assert converted.bad.tolist() == [True, False]


@pytest.mark.parametrize(("zone", "seconds_away"), [("+02:00", 7200), ("-05:30", -19800)])
def test_the_zone_of_an_array_may_be_an_offset(zone, seconds_away):
    midnight = int((datetime(2040, 7, 1) - BEGIN).total_seconds())
    array = pa.array([midnight - seconds_away]).view(pa.timestamp("s", tz=zone))
    assert convert(array, parse_type("Date")).array.to_pylist() == [date(2040, 7, 1)]
