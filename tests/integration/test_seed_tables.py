"""The ledger seen as three plain tables on a real, local Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger_examples import IDENTITY, make_batch, make_part, make_registration, take_lease
from oncehouse.ledger.catalog.batches import create_batches, open_parts
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import Counts, DuplicateFile, KeyFile, Part, Stage
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.external import ledger_dataframes
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest.part_files import RAW_SCHEMA

VALUES = [b"zero", b"one", b"again", b"three"]


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path / "files"))


@pytest.fixture
def catalog(tmp_path, store):
    """Two epochs of four events, of which the third is a duplicate; `some` takes every second event."""
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}", "shop", retry_seconds=())
    opened.prepare()
    opened.adopt(IDENTITY)
    token = take_lease(opened)
    for epoch in (1, 2):
        register(opened, token, make_epoch(store, epoch))
    yield opened
    opened.close()


def make_epoch(store: FileStore, epoch: int):
    key_file = KeyFile(
        key_file=f"keys-{epoch}",
        ordinal=0,
        events=4,
        keys=store.put(f"{epoch}/keys", lambda path: write_keys(path, epoch)),
        raw=store.put(f"{epoch}/raw", write_raw),
    )
    duplicates = store.put(f"{epoch}/duplicates", write_duplicates)
    return make_registration(
        epoch,
        (epoch - 1) * 4,
        epoch * 4,
        counts=Counts(read=4, new=3, duplicate=1),
        key_files=(key_file,),
        parts=(
            put_part(store, epoch, "all", [0, 1, 2, 3], live_rows=3),
            put_part(store, epoch, "some", [0, 2], live_rows=1),
        ),
        duplicate_files=(DuplicateFile(rows=1, file=duplicates),),
    )


def put_part(store: FileStore, epoch: int, table: str, events: list[int], *, live_rows: int) -> Part:
    plain = make_part(f"{table}-{epoch}", epoch=epoch, table=table, rows=len(events), live_rows=live_rows)
    rows = pa.table({"_event": pa.array(events, pa.uint32())})
    file = store.put(f"{epoch}/{table}", lambda path: pq.write_table(rows, path))
    return Part(**{**vars(plain), "file": file})


def write_keys(path: str, epoch: int) -> None:
    # Events sorted by id, which is not the order in which they were read.
    hi, lo = np.array([1, 2, 2, 3], dtype=np.uint64), np.full(4, epoch, dtype=np.uint64)
    event = np.array([3, 1, 2, 0], dtype=np.uint32)
    key_index.write_keys(path, key_index.Keys(hi=hi, lo=lo, payload=hi, event=event))


def write_raw(path: str) -> None:
    columns = [
        pa.array(["orders"] * 4).dictionary_encode(),
        pa.array([0] * 4, pa.int32()),
        pa.array(range(4), pa.int64()),
        pa.array([0] * 4, pa.int32()),
        pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", tz="UTC")),
        pa.array([None] * 4, pa.binary()),
        pa.array(VALUES, pa.binary()),
        pa.nulls(4, HEADERS),
        pa.nulls(4, pa.string()),
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=RAW_SCHEMA), path)


def write_duplicates(path: str) -> None:
    batch = pa.record_batch([[0], [2], [False]], schema=DUPLICATE_SCHEMA)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def unique_id(hi: int, lo: int) -> bytes:
    return hi.to_bytes(8, "big") + lo.to_bytes(8, "big")


def test_deduplication_holds_every_first_seen_event_with_its_bytes(spark, catalog, store):
    frame = ledger_dataframes.deduplication(spark, catalog, store)
    assert frame.columns == ["uniqueId", "created_at", "proto", "schema_version"]
    found = {(bytes(row.uniqueId), bytes(row.proto)) for row in frame.collect()}
    assert found == {
        (unique_id(hi, epoch), value)
        for epoch in (1, 2)
        for hi, value in ((3, b"zero"), (2, b"one"), (1, b"three"))
    }
    assert frame.filter("schema_version = '' AND created_at > '2026-01-01'").count() == 6


def test_new_events_are_those_that_no_batch_holds(spark, catalog, store):
    taken = [part for part in open_parts(catalog) if part.epoch == 1 and part.table == "all"]
    create_batches(catalog, take_lease(catalog, Stage.LOAD), [make_batch(*taken, table="all")])
    found = sorted(
        (row.table, bytes(row.proto)) for row in ledger_dataframes.new_events(spark, catalog, store).collect()
    )
    assert found == [
        ("all", b"one"),
        ("all", b"three"),
        ("all", b"zero"),
        ("some", b"zero"),
        ("some", b"zero"),
    ]


def test_batches_are_lists_of_parts(spark, catalog):
    assert ledger_dataframes.batches(spark, catalog).collect() == []
    taken = [part for part in open_parts(catalog) if part.table == "all"]
    batch = make_batch(*taken, table="all")
    create_batches(catalog, take_lease(catalog, Stage.LOAD), [batch])
    (row,) = ledger_dataframes.batches(spark, catalog).collect()
    assert (row.batchId, row.table, row.status) == (batch.batch_id, "all", "NEW")
    assert row.batch == ["all-1", "all-2"]


def test_an_empty_ledger_has_empty_tables(spark, tmp_path, store):
    empty = Catalog(f"sqlite:///{tmp_path / 'empty.db'}", "shop", retry_seconds=())
    empty.prepare()
    assert ledger_dataframes.deduplication(spark, empty, store).count() == 0
    assert ledger_dataframes.new_events(spark, empty, store).count() == 0
    empty.close()
