"""Snapshots of a catalog: whole, checked, and entered again together with what tables know beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from ledger_examples import (
    IDENTITY,
    TABLE,
    make_batch,
    make_file,
    make_registration,
    make_segment,
    register_epochs,
    take_lease,
)
from lost_commits import answers_of_commits_lost, commits_undone
from oncehouse.errors import CorruptFileError, FencedError, PermanentError
from oncehouse.ledger.catalog import epochs, leases, schema, snapshots, table_adoption
from oncehouse.ledger.catalog.batches import (
    create_batches,
    find_batch,
    finish_attempt,
    list_batches,
    list_parts,
    start_attempt,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.file_replacement import Restored, enter_duplicates, enter_files
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request, open_requests
from oncehouse.ledger.catalog.rollup import rolled_up_rows
from oncehouse.ledger.catalog.table_adoption import Adoption
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, RequestKind, Stage
from oncehouse.ledger.storage.file_store import FileStore


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path / "files"))


def rows_of(catalog: Catalog) -> dict[str, list[tuple[object, ...]]]:
    with catalog.read() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(select(table)).all())
            for table in schema.metadata.sorted_tables
            if "pipeline" in table.c
        }


@pytest.fixture
def empty(tmp_path) -> Catalog:
    opened = Catalog(f"sqlite:///{tmp_path / 'empty.db'}", "shop", retry_seconds=())
    opened.prepare()
    yield opened
    opened.close()


def test_a_snapshot_holds_every_row_of_the_pipeline(catalog, store):
    register_epochs(catalog, 3)
    found = snapshots.write_snapshot(catalog, store)
    assert found.epoch == 3
    with snapshots.open_snapshot(store, found, "shop") as copy:
        assert rows_of(copy) == rows_of(catalog)


def test_the_newest_sound_snapshot_is_found_and_old_ones_go(catalog, store):
    token = take_lease(catalog)
    for epoch in range(1, 6):
        register(catalog, token, make_registration(epoch, start=epoch * 10, end=epoch * 10 + 10))
        snapshots.write_snapshot(catalog, store)
    kept = snapshots.list_snapshots(store, "shop")
    assert [found.epoch for found in kept] == [5, 4, 3]
    newest = Path(store.root) / kept[0].path
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(CorruptFileError), snapshots.open_snapshot(store, kept[0], "shop"):
        pass
    assert snapshots.find_snapshot(store, "shop") == kept[1]
    assert snapshots.find_snapshot(store, "other") is None


def test_a_restored_catalog_gives_no_token_twice(catalog, store, empty):
    lease = leases.acquire(catalog, Stage.INGEST, holder="old", lease_seconds=60)
    found = snapshots.write_snapshot(catalog, store)
    with snapshots.open_snapshot(store, found, "shop") as copy:
        table_adoption.restore(empty, copy, Adoption(), None)
    with pytest.raises(FencedError):
        empty.write(Stage.INGEST, lease.token, lambda _: None)
    assert leases.acquire(empty, Stage.INGEST, holder="new", lease_seconds=60).token > lease.token + 1000
    with (
        snapshots.open_snapshot(store, found, "shop") as copy,
        pytest.raises(PermanentError, match="already"),
    ):
        table_adoption.restore(empty, copy, Adoption(), None)


@pytest.mark.parametrize("fault", [answers_of_commits_lost, commits_undone])
def test_a_restore_whose_commit_answer_was_lost_is_looked_up(catalog_url, empty, store, fault):
    """To say that nothing was restored would be wrong, and to restore it twice is refused."""
    empty.adopt(IDENTITY)
    register_epochs(empty, 2)
    found = snapshots.write_snapshot(empty, store)
    lost = Catalog(catalog_url, "shop", retry_seconds=(0.0,))
    lost.prepare()
    with snapshots.open_snapshot(store, found, "shop") as copy, fault(lost, 1):
        table_adoption.restore(lost, copy, Adoption(arrived_parts=("part-1",)), None)
    assert epochs.next_epoch(lost) == 3
    assert [batch.status for batch in list_batches(lost)] == [BatchStatus.REPLACED]
    lost.close()


def test_a_catalog_that_begins_anew_has_its_rule(empty):
    blank = Catalog("sqlite://", "shop")
    blank.prepare()
    table_adoption.restore(empty, blank, Adoption(segments=(make_segment("adopted-1-x"),)), IDENTITY)
    blank.close()
    assert empty.identity() == IDENTITY
    assert epochs.next_epoch(empty) == 1


def test_what_the_tables_know_is_adopted_with_it(catalog):
    register_epochs(catalog, 2)
    add_request(catalog, RequestKind.REBUILD_INDEX, {})
    lease = leases.acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=60)
    first, second = list_parts(catalog)
    table_adoption.adopt(catalog, lease.token, Adoption(rows={TABLE: (2, 30)}, arrived_parts=(first.part,)))
    assert rolled_up_rows(catalog) == {TABLE: 30}
    assert open_requests(catalog) == ()
    (batch,) = list_batches(catalog)
    assert (batch.status, batch.rows) == (BatchStatus.REPLACED, first.live_rows)
    held = {part.part: part.batch_id for part in list_parts(catalog)}
    assert held == {first.part: batch.batch_id, second.part: None}


def test_a_file_that_was_made_again_takes_the_place_of_the_damaged_one(catalog):
    register_epochs(catalog, 1)
    lease = leases.acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=60)
    (part,) = list_parts(catalog)
    new = make_file("parts/new")
    change = [Restored(column="part", old=part.file, new=new)]
    assert enter_files(catalog, lease.token, change) == ()
    assert [found.file.path for found in list_parts(catalog)] == ["parts/new"]
    with pytest.raises(PermanentError, match="not named by the ledger any more"):
        enter_files(catalog, lease.token, change)
    with pytest.raises(PermanentError, match="not named"):
        enter_duplicates(catalog, lease.token, 1, old=[new], new=new, rows=1)


def test_only_batches_that_were_parked_for_the_file_are_released(catalog):
    token = register_epochs(catalog, 2)
    load = take_lease(catalog, Stage.LOAD)
    batches = [make_batch(part) for part in list_parts(catalog)]
    create_batches(catalog, load, batches)
    for batch, reason in zip(batches, ("The ledger's file parts/part-1 is missing", "no space"), strict=True):
        attempt = start_attempt(catalog, load, batch.batch_id)
        finish_attempt(
            catalog, load, attempt, status=BatchStatus.PARKED, outcome=AttemptOutcome.FAILED, detail=reason
        )
    change = [Restored(column="part", old=make_file("parts/part-1"), new=make_file("parts/new"))]
    assert enter_files(catalog, token, change) == (batches[0].batch_id,)
    assert [find_batch(catalog, b.batch_id).status for b in batches] == [
        BatchStatus.RETRY,
        BatchStatus.PARKED,
    ]
