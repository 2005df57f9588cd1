"""How far a table has come: only what all of Kafka before a time says, and only once it is in ClickHouse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.config.pipeline import Declare
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.ledger.stats.table_progress import Arrival
from oncehouse.pipeline.stages.source_progress import (
    ProgressDeclarer,
    SourceSnapshot,
    SourceSnapshots,
    write_declaration,
)

P = ("orders", 0)


def arrival(
    position: int, *, next_epoch: int = 1, missing: int | None = None, waiting: int | None = None
) -> Arrival:
    return Arrival(
        positions={P: position} if position else {},
        next_epoch=next_epoch,
        missing={} if missing is None else {"t": missing},
        waiting=waiting,
    )


def reach(readings: SourceSnapshots, known: Arrival, *, waits_count: bool = True) -> int | None:
    readings.settle(known)
    return readings.reached_ms(known, "t", waits_count=waits_count)


def test_a_time_is_reached_when_all_that_was_in_kafka_then_is_settled_and_loaded():
    readings = SourceSnapshots()
    readings.add(SourceSnapshot(clock_ms=100, ends={P: 7}))
    assert reach(readings, arrival(6)) is None
    assert reach(readings, arrival(7, next_epoch=3, missing=2)) is None, "its last rows are on their way"
    assert reach(readings, arrival(9, next_epoch=4, missing=3)) == 100, "later epochs hold nothing up"
    readings.add(SourceSnapshot(clock_ms=200, ends={P: 9}))
    assert reach(readings, arrival(9, next_epoch=4, missing=3)) == 100
    assert reach(readings, arrival(9, next_epoch=4)) == 200


def test_a_topic_without_records_is_a_heartbeat():
    readings = SourceSnapshots()
    readings.add(SourceSnapshot(clock_ms=100, ends={}))
    assert reach(readings, arrival(0)) == 100


def test_rows_of_records_that_are_tried_again_hold_everything_up():
    readings = SourceSnapshots()
    readings.add(SourceSnapshot(clock_ms=100, ends={P: 7}))
    assert reach(readings, arrival(7, next_epoch=9, missing=0)) is None


def test_records_that_wait_for_their_schema_hold_up_times_of_events_alone():
    readings = SourceSnapshots()
    readings.add(SourceSnapshot(clock_ms=100, ends={P: 7}))
    known = arrival(7, next_epoch=3, waiting=2)
    assert reach(readings, known) is None
    assert reach(readings, known, waits_count=False) == 100


@given(
    st.lists(st.sampled_from(["arrives", "read", "settle", "load", "look"]), max_size=60),
    st.booleans(),
)
def test_no_declared_time_is_ahead_of_a_record_that_is_not_loaded(actions, is_forgetful):
    """Whatever order things happen in. A record's time is the clock when it came into Kafka."""
    readings = SourceSnapshots()
    kafka: list[int] = []  # times of records
    settled, epochs, loaded = 0, 0, 0
    ends_of_epochs: list[int] = []
    for clock_ms, action in enumerate(actions, 1):
        match action:
            case "arrives":
                kafka.append(clock_ms)
            case "read":
                readings.add(SourceSnapshot(clock_ms=clock_ms, ends={P: len(kafka)} if kafka else {}))
            case "settle" if len(kafka) > settled:
                settled, epochs = len(kafka), epochs + 1
                ends_of_epochs.append(settled)
            case "load" if loaded < epochs:
                loaded += 1
            case "look":
                missing = loaded + 1 if loaded < epochs else None
                found = reach(readings, arrival(settled, next_epoch=epochs + 1, missing=missing))
                arrived = ends_of_epochs[loaded - 1] if loaded else 0
                if found is not None:
                    assert all(time_ms > found for time_ms in kafka[arrived:])
                    if is_forgetful:
                        readings.forget(found)


def test_times_of_events_need_a_lateness_that_only_people_know():
    with pytest.raises(ConfigurationError, match="lateness"):
        Declare(topic="Stage", pos="event")
    assert Declare(topic="Stage", pos="event", lateness="30s").lateness == 30
    assert Declare(topic="Stage", pos="inserted").lateness == 0


def test_a_long_backlog_is_declared_as_it_is_worked_off():
    readings = SourceSnapshots()
    for clock_ms in range(1, 5_000):
        readings.add(SourceSnapshot(clock_ms=clock_ms, ends={P: clock_ms}))
    assert reach(readings, arrival(1)) == 1
    assert 1 <= (reach(readings, arrival(50)) or 0) <= 50
    last = [reach(readings, arrival(position)) or 0 for position in range(1, 5_000, 100)]
    assert last == sorted(last)
    assert last[-1] > 4_800
    for clock_ms in range(5_000, 9_000):
        readings.add(SourceSnapshot(clock_ms=clock_ms, ends={P: clock_ms}))
    assert (reach(readings, arrival(5_200)) or 0) >= 4_900, "what is settled thins out by itself"
    assert len(readings._kept) <= 1_000


def test_kafka_that_does_not_answer_in_time_stops_no_pipeline(monkeypatch):
    said: list[str] = []
    declaring = ProgressDeclarer.__new__(ProgressDeclarer)
    declaring._reported, declaring._say, declaring._readings = "", said.append, SourceSnapshots()

    def read(_self: ProgressDeclarer) -> SourceSnapshot:
        raise TimeoutError

    monkeypatch.setattr(ProgressDeclarer, "_read", read)
    declaring.update()
    declaring.update()
    assert len(said) == 1
    assert "did not answer in time" in said[0]


class Offsets:
    """The offsets' one row, as the server answers with it: time, consumer, whether it is of a topic that is built."""

    def __init__(self, *rows: tuple[int, str, int]) -> None:
        self.rows = list(rows)
        self.written = 0

    def query(self, *_: object) -> list[tuple[int, str, int]]:
        return self.rows

    def command(self, *_: object) -> None:
        self.written += 1


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((0, "oncehouse", 0), "is declared in"),
        ((0, "", 1), "is a topic that `oncehouse etl` builds"),
        ((5, "oncehouse pipeline shop", 1), "is a topic that `oncehouse etl` builds"),
        ((5, "nightly", 0), "is declared in"),
    ],
)
def test_a_row_that_is_no_declaration_of_this_pipeline_is_left_alone(row, why):
    offsets = Offsets(row)
    with pytest.raises(PermanentError, match=why):
        write_declaration(offsets, Declare(topic="Stage", pos="inserted"), 10, "oncehouse pipeline shop")
    assert not offsets.written


@pytest.mark.parametrize("rows", [[], [(0, "", 0)], [(5, "oncehouse pipeline shop", 0)], [(5, "", 0)]])
def test_a_declaration_goes_ahead(rows):
    offsets = Offsets(*rows)
    write_declaration(offsets, Declare(topic="Stage", pos="inserted"), 10, "oncehouse pipeline shop")
    assert offsets.written == 1
