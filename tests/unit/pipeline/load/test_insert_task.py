"""What an insert's outcome makes of its batch, and which rows of the ledger a batch is."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.insert.outcome import (
    AlreadyThere,
    Inserted,
    InsertRequest,
    PartlyThere,
    Refused,
    Retryable,
)
from oncehouse.config.pipeline import ClickHouse, Retry
from oncehouse.errors import CorruptFileError, PermanentError, TransientError
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, FileRef, LoadPart, Part
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.load.insert_rate import InsertAnswer
from oncehouse.pipeline.load.insert_task import (
    LoadPlan,
    classify_outcome,
    live_rows,
    send_batch,
)
from plan_examples import make_read_plan

RETRY = Retry(base=0.5, longest=300.0)


def try_again(*, unknown: bool = False, too_many: bool = False) -> Retryable:
    return Retryable(message="m", code=1, seconds=0.1, outcome_unknown=unknown, too_many_parts=too_many)


def refused(*, unknown: bool = False) -> Refused:
    return Refused(message="m", code=1, seconds=0.1, outcome_unknown=unknown)


PARTLY = PartlyThere(message="m", found=1, rows=2, partitions=(("all", 1),), seconds=0.1)


@pytest.mark.parametrize(
    ("outcome", "status", "word"),
    [
        (Inserted(rows=1, seconds=0.1), BatchStatus.IN_CLICKHOUSE, "inserted"),
        (
            AlreadyThere(rows=1, seconds=0.1, views_unproven=False),
            BatchStatus.IN_CLICKHOUSE,
            "already there",
        ),
        (
            AlreadyThere(rows=1, seconds=0.1, views_unproven=True),
            BatchStatus.IN_CLICKHOUSE,
            AttemptOutcome.VIEWS_UNPROVEN,
        ),
        (try_again(), BatchStatus.RETRY, AttemptOutcome.FAILED),
        (try_again(unknown=True), BatchStatus.RETRY, AttemptOutcome.UNKNOWN),
        (refused(), BatchStatus.PARKED, AttemptOutcome.FAILED),
        (refused(unknown=True), BatchStatus.PARKED, AttemptOutcome.UNKNOWN),
        (PARTLY, BatchStatus.PARKED, AttemptOutcome.UNKNOWN),
    ],
)
def test_each_outcome_has_its_status(outcome, status, word):
    result = classify_outcome(outcome, attempt=1, retry=RETRY, jitter=0.5)
    assert (result.status, result.outcome) == (status, word)


def test_what_was_refused_or_is_tried_again_says_why():
    for outcome in (try_again(), refused(), PARTLY):
        assert classify_outcome(outcome, attempt=1, retry=RETRY, jitter=0.5).detail == "m"


def test_views_that_could_not_be_checked_are_mentioned():
    result = classify_outcome(
        AlreadyThere(rows=1, seconds=0.1, views_unproven=True), attempt=2, retry=RETRY, jitter=0.5
    )
    assert "views" in (result.detail or "")


def test_what_a_failure_says_of_the_server_is_passed_on_to_the_pace():
    answers = [
        classify_outcome(outcome, attempt=1, retry=RETRY, jitter=0.5).answer
        for outcome in (
            try_again(too_many=True),
            replace(try_again(), code=241),
            replace(try_again(), code=None),
            Inserted(rows=1, seconds=0.1),
        )
    ]
    assert answers == [
        InsertAnswer.TOO_MANY_PARTS,
        InsertAnswer.TOO_LARGE,
        InsertAnswer.FAILED,
        InsertAnswer.TAKEN,
    ]


@pytest.mark.parametrize(
    ("attempt", "longest"), [(1, 0.5), (2, 1.0), (3, 2.0), (10, 256.0), (11, 300.0), (10_000, 300.0)]
)
def test_the_wait_doubles_up_to_the_longest(attempt, longest):
    assert classify_outcome(try_again(), attempt=attempt, retry=RETRY, jitter=1.0).wait_seconds == longest


@given(attempt=st.integers(1, 100_000), jitter=st.floats(0, 1))
def test_the_wait_is_spread_over_the_whole_back_off(attempt, jitter):
    waited = classify_outcome(try_again(), attempt=attempt, retry=RETRY, jitter=jitter).wait_seconds
    assert 0 <= waited <= RETRY.longest
    full = classify_outcome(try_again(), attempt=attempt, retry=RETRY, jitter=1.0).wait_seconds
    assert waited == pytest.approx(full * jitter)


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path))


def read_part(store: FileStore, numbers: list[int]) -> LoadPart:
    plan = make_read_plan(store.root, part_rows=1000, whole=True)
    block = pa.record_batch(
        [
            pa.array([0] * len(numbers), pa.int32()),
            pa.array(range(len(numbers)), pa.int64()),
            pa.array([0] * len(numbers), pa.timestamp("us", tz="UTC")),
            pa.nulls(len(numbers), pa.binary()),
            pa.array([f'{{"id": {number}}}'.encode() for number in numbers]),
        ],
        names=["source", "offset", "timestamp", "key", "value"],
    )
    chunk = read_records(plan, f"r{numbers[0]}", [block]).chunks[0]
    part = Part(
        part="part",
        epoch=1,
        table="t",
        key_file="keys",
        ordinal=0,
        rows=chunk.parts[0].rows,
        live_rows=chunk.parts[0].rows,
        size_bytes=1,
        file=chunk.parts[0].file,
    )
    return LoadPart(part=part, events=chunk.events, duplicate_files=())


def write_duplicates(store: FileStore, events: list[int]) -> FileRef:
    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
            columns = [[0] * len(events), events, [False] * len(events)]
            writer.write_batch(pa.record_batch(columns, schema=DUPLICATE_SCHEMA))

    return store.put("duplicates.arrow", write)


def test_a_batch_is_the_rows_of_its_parts_in_their_order(store):
    parts = [read_part(store, [5, 3, 9]), read_part(store, [7, 1])]
    assert live_rows(store, parts).column("id").to_pylist() == [5, 3, 9, 7, 1]


def test_duplicates_are_left_out_of_a_batch(store):
    load = read_part(store, [5, 3, 9, 5])
    duplicates = (write_duplicates(store, [1, 3]),)
    load = replace(load, part=replace(load.part, live_rows=2), duplicate_files=duplicates)
    assert live_rows(store, [load]).column("id").to_pylist() == [5, 9]


def test_a_batch_of_another_size_than_the_catalog_knows_is_never_sent(store):
    load = read_part(store, [5, 3, 9])
    duplicates = (write_duplicates(store, [1]),)
    load = replace(load, part=replace(load.part, live_rows=1), duplicate_files=duplicates)
    with pytest.raises(CorruptFileError, match="2 live rows, the catalog knows 1"):
        live_rows(store, [load])


@pytest.mark.parametrize("damage", ["gone", "shorter", "flipped"])
def test_a_damaged_part_is_named_and_never_sent(store, tmp_path, damage):
    load = read_part(store, list(range(1000)))
    path = tmp_path / load.part.file.path
    body = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(body[:-1])
    else:
        body[100] ^= 0xFF
        path.write_bytes(body)
    with pytest.raises(CorruptFileError, match=load.part.file.path):
        live_rows(store, [load])


def test_a_flipped_bit_among_the_duplicates_is_named_before_it_swaps_two_events(store, tmp_path):
    load = read_part(store, [5, 5, 9])
    file = write_duplicates(store, [1])
    path = tmp_path / file.path
    body = bytearray(path.read_bytes())
    events = body.index((1).to_bytes(4, "little"), body.index(b"ARROW1") + 8)
    body[events] ^= 1
    path.write_bytes(body)
    load = replace(load, part=replace(load.part, live_rows=2), duplicate_files=(file,))
    with pytest.raises(CorruptFileError, match="checksum"):
        live_rows(store, [load])


def test_parts_of_different_columns_are_refused_by_name(store):
    parts = [read_part(store, [5]), read_part(store, [7])]
    other = store.put(
        "other.parquet", lambda path: pq.write_table(pa.table({"id": ["x"], "_event": [0]}), path)
    )
    parts[1] = replace(parts[1], part=replace(parts[1].part, file=other))
    with pytest.raises(PermanentError, match="different columns"):
        live_rows(store, parts)


def plan_of(store: FileStore, parts: tuple[LoadPart, ...]) -> LoadPlan:
    request = InsertRequest(
        table="t",
        columns=(),
        batch_column="_batch_id",
        batch_id="0f8fad5b-d9cb-469f-a165-70867728950e",
        attempt=1,
        rows=3,
        earlier_query_ids=(),
        outcome_unknown=False,
        may_be_forgotten=False,
        merges_rows=False,
    )
    return LoadPlan(
        clickhouse=ClickHouse(url="http://127.0.0.1:1"), request=request, parts=parts, files_root=store.root
    )


class RunOf:
    """What Spark tells a task of itself."""

    def __init__(self, number: int) -> None:
        self._number = number

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self._number


@pytest.mark.parametrize("hindrance", ["refused connection", "damaged part", "busy files"])
def test_a_task_that_spark_runs_again_never_says_that_nothing_was_sent(store, monkeypatch, hindrance):
    """Its first run may have sent the rows before its executor was lost."""
    part = read_part(store, [5, 3, 9])
    if hindrance == "damaged part":
        part = replace(part, part=replace(part.part, live_rows=7))
    if hindrance == "busy files":

        def fail(*_asked: object) -> None:
            raise TransientError("busy")

        monkeypatch.setattr(insert_task, "live_rows", fail)
    plan = plan_of(store, (part,))
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: RunOf(0))
    first = send_batch(plan)
    assert not first.outcome_unknown
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: RunOf(1))
    again = send_batch(plan)
    assert isinstance(again, Retryable)
    assert again.outcome_unknown
