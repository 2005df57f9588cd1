"""What became of one Kafka record, read from a ledger that was filled by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger_examples import (
    IDENTITY,
    TABLE,
    TOPIC,
    make_batch,
    make_part,
    make_registration,
    take_lease,
)
from oncehouse.cli.output import plain
from oncehouse.ledger.catalog.batches import create_batches, open_parts
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.rollup import roll_up_epochs
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    DuplicateFile,
    EpochKind,
    KeyFile,
    Stage,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys, write_keys
from oncehouse.monitoring.record_trace import Fate, RecordTrace, trace_record
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest.part_files import (
    DEAD_LETTER_SCHEMA,
    RAW_SCHEMA,
    write_blocks,
    write_dead_letters,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}", "shop", retry_seconds=())
    opened.prepare()
    opened.adopt(IDENTITY)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path / "files"))


def raw(places: list[tuple[int, int]]) -> pa.Table:
    """Records of partition 0 at these (offset, row)."""
    count = len(places)
    columns = {
        "topic": pa.array([TOPIC] * count).dictionary_encode(),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array([offset for offset, _ in places], pa.int64()),
        "row": pa.array([row for _, row in places], pa.int32()),
        "timestamp": pa.array([NOW] * count, pa.timestamp("us", tz="UTC")),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([b"{}"] * count),
        "headers": pa.nulls(count, HEADERS),
        "schema": pa.nulls(count, pa.string()),
    }
    return pa.Table.from_pydict(columns, schema=RAW_SCHEMA)


def put_key_file(store: FileStore, epoch: int, places: list[tuple[int, int]]) -> KeyFile:
    """Ids are 16 times the offset plus the row, high half; events stand in reverse in the sorted keys."""
    count = len(places)
    order = np.argsort([offset * 16 + row for offset, row in places])
    ids = np.array([places[at][0] * 16 + places[at][1] for at in order], dtype=np.uint64)
    keys = Keys(hi=ids, lo=ids + np.uint64(1), payload=ids, event=order.astype(np.uint32))
    return KeyFile(
        key_file=f"keys-{epoch}",
        ordinal=0,
        events=count,
        keys=store.put(f"keys-{epoch}", lambda path: write_keys(path, keys)),
        raw=store.put(f"raw-{epoch}.arrow", lambda path: write_blocks(path, [raw(places)])),
    )


def put_part(store: FileStore, epoch: int, events: list[int], live_rows: int):
    table = pa.table({"_event": pa.array(events, pa.uint32())})
    file = store.put(f"part-{epoch}", lambda path: pq.write_table(table, path, write_page_checksum=True))
    part = make_part(f"part-{epoch}", epoch=epoch, rows=len(events), live_rows=live_rows)
    return replace(part, file=file)


def put_duplicates(store: FileStore, epoch: int, events: list[int]) -> DuplicateFile:
    batch = pa.record_batch([[0] * len(events), events, [False] * len(events)], schema=DUPLICATE_SCHEMA)

    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
            writer.write_batch(batch)

    return DuplicateFile(rows=len(events), file=store.put(f"duplicates-{epoch}", write))


def put_dead_letters(
    store: FileStore, name: str, offset: int, kind: DeadLetterKind = DeadLetterKind.DEAD
) -> DeadLetterFile:
    letters = raw([(offset, 0)]).append_column("reason", pa.array(["not_json"]))
    letters = letters.append_column("detail", pa.array(["no\x1bjson"]))
    letters = letters.set_column(
        letters.column_names.index("schema"), "schema", pa.array(["v9"], pa.string())
    ).cast(DEAD_LETTER_SCHEMA)
    file = store.put(name, lambda path: write_dead_letters(path, letters))
    return DeadLetterFile(
        dead_letter_file=name, epoch=1, rows=1, reasons={"not_json": 1}, file=file, kind=kind
    )


@pytest.fixture
def ledger(catalog, store) -> int:
    """Epoch 1 settles offsets 0 to 9: 0 new with two rows, 1 a duplicate, 2 a dead letter, 3 waiting, 4 skipped."""
    token = take_lease(catalog)
    register(
        catalog,
        token,
        make_registration(
            counts=Counts(read=6, new=2, duplicate=1, dead_letter=1, waiting=1, skipped=1),
            key_files=(put_key_file(store, 1, [(1, 0), (0, 0), (0, 1)]),),
            parts=(put_part(store, 1, [0, 1, 2], live_rows=2),),
            duplicate_files=(put_duplicates(store, 1, [0]),),
            dead_letter_files=(
                put_dead_letters(store, "dead", 2),
                put_dead_letters(store, "waiting", 3, DeadLetterKind.WAITING),
            ),
        ),
    )
    return token


@pytest.fixture
def trace(catalog, store):
    def trace(offset: int, *, partition: int = 0, topic: str = TOPIC) -> RecordTrace:
        return trace_record(catalog, store, topic=topic, partition=partition, offset=offset)

    return trace


@pytest.mark.usefixtures("ledger")
def test_a_new_record_is_traced_row_by_row_to_its_batch(catalog, trace):
    found = trace(0)
    assert (found.fate, found.epoch, [row.row for row in found.rows]) == (Fate.NEW, 1, [0, 1])
    assert [row.unique_id for row in found.rows] == [f"{0:016x}{1:016x}", f"{1:016x}{2:016x}"]
    assert [(to.table, to.part, to.batch) for to in found.rows[0].destinations] == [(TABLE, "part-1", None)]
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, take_lease(catalog, Stage.LOAD), [batch])
    (destination,) = trace(0).rows[1].destinations
    assert (destination.batch.batch_id, destination.batch.status) == (batch.batch_id, BatchStatus.NEW)
    assert json.loads(json.dumps(plain(found)))["fate"] == "new"


@pytest.mark.usefixtures("ledger")
def test_a_duplicate_goes_nowhere(trace):
    found = trace(1)
    assert found.fate is Fate.DUPLICATE
    assert [(row.unique_id, row.destinations) for row in found.rows] == [(f"{16:016x}{17:016x}", ())]


@pytest.mark.usefixtures("ledger")
def test_letters_tell_why_and_what_they_wait_for_safe_to_print(trace):
    assert (trace(2).fate, trace(2).rows[0].reason) == (Fate.DEAD_LETTER, "not_json: no\\x1bjson")
    assert (trace(3).fate, trace(3).rows[0].reason) == (Fate.WAITING, "schema v9")


@pytest.mark.usefixtures("ledger")
def test_what_has_no_row_in_a_settled_epoch_was_skipped(trace):
    assert (trace(4).fate, trace(4).epoch, trace(4).rows) == (Fate.SKIPPED, 1, ())


@pytest.mark.usefixtures("ledger")
def test_what_no_epoch_has_settled_is_not_read_yet(trace):
    found = trace(10)
    assert (found.fate, found.epoch, found.settled_at) == (Fate.NOT_READ, None, None)
    assert trace(0, partition=1).fate is Fate.NOT_READ
    assert trace(0, topic="others").fate is Fate.NOT_READ


def test_a_letter_that_became_a_row_when_tried_again_is_new_in_that_epoch(catalog, store, ledger, trace):
    register(
        catalog,
        ledger,
        make_registration(
            2,
            kind=EpochKind.REPLAY,
            ranges=(),
            counts=Counts(read=1, new=1),
            key_files=(put_key_file(store, 2, [(2, 0)]),),
            parts=(put_part(store, 2, [0], live_rows=1),),
            tried_dead_letter_files=("dead",),
        ),
    )
    found = trace(2)
    assert (found.fate, found.epoch, [row.epoch for row in found.rows]) == (Fate.NEW, 1, [2])


def test_of_what_is_past_the_window_only_that_is_known(catalog, ledger, trace):
    register(
        catalog, ledger, make_registration(2, 10, 20, key_files=(), parts=(), counts=Counts(read=10, new=10))
    )
    assert (trace(15).fate, trace(15).epoch) == (Fate.PAST_WINDOW, 2)


def test_of_what_was_rolled_up_only_that_is_known(catalog, trace):
    token, retention = take_lease(catalog), take_lease(catalog, Stage.RETENTION)
    for epoch in (1, 2, 3):
        empty = make_registration(
            epoch, epoch * 10 - 10, epoch * 10, key_files=(), parts=(), counts=Counts(read=10, new=10)
        )
        register(catalog, token, empty)
    assert roll_up_epochs(catalog, retention, before=catalog.now() + 60) == 2
    assert (trace(5).fate, trace(5).epoch) == (Fate.PAST_WINDOW, None)
