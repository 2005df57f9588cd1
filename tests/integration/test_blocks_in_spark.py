"""The blocks that Spark cuts when they are counted, and an epoch that is read twice for one large record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from live_pipeline import make_event
from oncehouse.pipeline.spark.arrow_batches import (
    BYTES_SETTING,
    ROWS_SETTING,
    SETTINGS,
    CountedHandover,
    OutsizeRecordError,
    cutting,
    hand_to_workers,
    require_usual_size,
)
from oncehouse.pipeline.stages import kafka_stream

SMALL = 100
RECORDS = 3000
COUNTED = CountedHandover(rows=700, record_bytes=2000)
WAYS = [COUNTED, None]


@pytest.fixture
def session(spark) -> SparkSession:
    """With settings of its own."""
    return spark.newSession()


def make_records(session: SparkSession, *, large_at: int | None = None, headers: bool = False) -> DataFrame:
    """In one partition; every seventh has no value, every third a key."""
    value = f.repeat(f.lit("v"), SMALL)
    if large_at is not None:
        value = f.when(f.col("id") == large_at, f.repeat(f.lit("L"), 300_000)).otherwise(value)
    return session.range(0, RECORDS, 1, 1).select(
        f.lit(65_536).cast("int").alias("source"),
        f.col("id").alias("offset"),
        f.when(f.col("id") % 3 == 0, f.lit("key")).cast("binary").alias("key"),
        f.when(f.col("id") % 7 != 0, value).cast("binary").alias("value"),
        *([f.lit("header").alias("headers")] if headers else []),
    )


def read_blocks(records: DataFrame, counted: CountedHandover | None) -> list[dict[str, int]]:
    def describe(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            value, marks = block.column("value"), pc.equal(block.column("source"), -1)
            told = {
                "rows": block.num_rows,
                "bytes": pc.sum(pc.binary_length(value)).as_py(),
                "marks": pc.sum(marks).as_py(),
                "marked_bytes": pc.sum(pc.binary_length(value.filter(marks))).as_py() or 0,
            }
            yield pa.RecordBatch.from_pylist([told])

    handed = hand_to_workers(records, counted)
    with cutting(records.sparkSession, counted):
        told = handed.mapInArrow(describe, "rows long, bytes long, marks long, marked_bytes long").collect()
    return [row.asDict() for row in told]


def test_counted_blocks_hold_so_many_records_whatever_their_bytes(session):
    session.conf.set(BYTES_SETTING, "10000")
    found = read_blocks(make_records(session), COUNTED)
    assert [block["rows"] for block in found] == [700, 700, 700, 700, 200]
    assert [block["marks"] for block in found] == [0] * 5


def test_weighed_blocks_are_cut_by_their_bytes_and_the_users_number(session):
    session.conf.set(BYTES_SETTING, "10000")
    rows = [block["rows"] for block in read_blocks(make_records(session), None)]
    assert sum(rows) == RECORDS
    assert max(rows) <= 10_000 // SMALL
    session.conf.set(ROWS_SETTING, "9")
    assert max(block["rows"] for block in read_blocks(make_records(session), None)) == 9


def test_a_record_that_is_too_large_is_marked_and_its_bytes_are_not_handed_over(session):
    found = read_blocks(make_records(session, large_at=1500), COUNTED)
    assert [block["marks"] for block in found] == [0, 0, 1, 0, 0]
    assert found[2]["marked_bytes"] == 0
    assert max(block["bytes"] for block in found) <= 700 * SMALL
    by_weight = read_blocks(make_records(session, large_at=1500), None)
    assert sum(block["marks"] for block in by_weight) == 0
    assert max(block["bytes"] for block in by_weight) >= 300_000


def test_key_and_value_count_together_and_the_bound_itself_is_usual(session):
    records = make_records(session)
    bound = SMALL + len("key")
    both = sum(1 for number in range(RECORDS) if number % 3 == 0 and number % 7 != 0)

    def marks(record_bytes: int) -> int:
        return sum(
            block["marks"]
            for block in read_blocks(records, CountedHandover(rows=700, record_bytes=record_bytes))
        )

    assert marks(bound) == 0
    assert marks(bound - 1) == both


@pytest.mark.parametrize("counted", WAYS)
def test_columns_and_values_arrive_as_they_were(session, counted):
    records = make_records(session, headers=True)
    handed = hand_to_workers(records, counted)
    assert [(field.name, field.dataType) for field in handed.schema] == [
        (field.name, field.dataType) for field in records.schema
    ]
    assert handed.exceptAll(records).count() == 0
    assert handed.count() == RECORDS


@pytest.mark.parametrize("counted", WAYS)
def test_the_sessions_settings_are_what_they_were_also_after_a_failure(session, counted):
    session.conf.set(ROWS_SETTING, "123")
    before = {name: session.conf.get(name) for name in SETTINGS}
    read_blocks(make_records(session), counted)
    assert {name: session.conf.get(name) for name in SETTINGS} == before
    with pytest.raises(ZeroDivisionError), cutting(session, counted):
        raise ZeroDivisionError
    assert {name: session.conf.get(name) for name in SETTINGS} == before


def test_a_task_may_end_at_the_mark_and_leave_the_rest_unread(session):
    """Blocks enough that Spark still writes to the worker when it has gone."""

    def stop_at_mark(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for block in require_usual_size(blocks):
                rows += block.num_rows
        except OutsizeRecordError:
            rows = -1
        yield pa.record_batch({"rows": pa.array([rows])})

    records = make_records(session, large_at=10).crossJoin(session.range(0, 200, 1, 1).select())
    for _ in range(3):
        with cutting(session, COUNTED):
            told = (
                hand_to_workers(records, COUNTED).coalesce(1).mapInArrow(stop_at_mark, "rows long").collect()
            )
        assert [row.rows for row in told] == [-1]


# -- on the pipeline -------------------------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch) -> list[tuple[int, bool]]:
    """Each reading of an epoch: which, and whether its blocks were counted."""
    seen: list[tuple[int, bool]] = []
    right = kafka_stream.read_dataframe

    def noting(frame, plan):
        seen.append((plan.epoch, plan.counted is not None))
        return right(frame, plan)

    monkeypatch.setattr(kafka_stream, "read_dataframe", noting)
    return seen


@pytest.mark.parametrize(
    "small_epoch", [pytest.param(kafka_stream.SMALL_EPOCH_RECORDS, marks=pytest.mark.long), 0]
)
def test_a_large_record_among_small_ones_costs_a_second_reading_and_nothing_else(
    make_pipeline, readings, monkeypatch, small_epoch
):
    monkeypatch.setattr(kafka_stream, "SMALL_EPOCH_RECORDS", small_epoch)
    live_pipeline = make_pipeline(partitions=2)
    events = [make_event(number) for number in range(150)]
    live_pipeline.send(events[:50])
    with live_pipeline.start() as running:
        running.wait_for_rows(50)
        live_pipeline.send_raw([None])
        live_pipeline.send(events[50:90], partition=1)
        running.wait_for_rows(90)
        # Of the very first epoch the size of records may not be known.
        assert readings[1:], readings
        assert all(counted for _, counted in readings[1:]), readings
        calm = len(readings)
        live_pipeline.send(events[100:101], note="x" * 300_000)
        live_pipeline.send(events[101:150])
        live_pipeline.send(events[90:100], partition=1)
        running.wait_for_rows(150)
    epochs = [epoch for epoch, _ in readings]
    twice = [epoch for epoch in set(epochs) if epochs.count(epoch) == 2]
    assert len(twice) == 1, readings
    assert [reading for reading in readings if reading[0] == twice[0]] == [
        (twice[0], True),
        (twice[0], False),
    ]
    assert epochs.index(twice[0]) >= calm
    assert not readings[epochs.index(twice[0]) + 1][1]
    assert {name: live_pipeline.spark.conf.get(name) for name in SETTINGS} == SETTINGS
    live_pipeline.assert_exact()


@pytest.mark.long
def test_with_settings_of_the_users_own_every_epoch_is_weighed(make_pipeline, readings):
    live_pipeline = make_pipeline(spark={"settings": {BYTES_SETTING: "1000000"}})
    live_pipeline.send([make_event(number) for number in range(50)])
    live_pipeline.run()
    assert readings
    assert not any(counted for _, counted in readings)
    live_pipeline.assert_exact()
