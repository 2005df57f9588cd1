from __future__ import annotations

import pytest

from ledger_examples import TABLE, make_batch, register_epochs, take_lease
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import packs, rollup
from oncehouse.ledger.catalog import retention as expiry
from oncehouse.ledger.catalog.batches import (
    create_batches,
    finish_attempt,
    list_batches,
    open_parts,
    start_attempt,
)
from oncehouse.ledger.catalog.epochs import list_epochs, list_key_files, list_ranges, next_epoch, total_counts
from oncehouse.ledger.catalog.packs import Move
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, FileRef, Stage
from oncehouse.ledger.stats.summary import sum_epochs

FOREVER = 1e12


@pytest.fixture
def retention(catalog) -> int:
    """Four epochs of ten rows; the first two loaded as one batch. Gives the retention token."""
    register_epochs(catalog, 4)
    load = take_lease(catalog, Stage.LOAD)
    batch = make_batch(*open_parts(catalog)[:2])
    create_batches(catalog, load, [batch])
    attempt = start_attempt(catalog, load, batch.batch_id)
    finish_attempt(catalog, load, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED)
    return take_lease(catalog, Stage.RETENTION)


def test_epochs_whose_files_have_gone_are_added_up_and_no_total_changes(catalog, retention):
    before = total_counts(catalog)
    expiry.drop_key_files(catalog, retention, before=FOREVER)
    assert rollup.roll_up_epochs(catalog, retention, before=FOREVER) == 2
    assert [row.epoch for row in list_epochs(catalog)] == [4, 3]
    assert total_counts(catalog) == before
    assert sum_epochs(catalog)[0].epochs == 4
    assert next_epoch(catalog) == 5


def test_ranges_of_added_up_epochs_become_one_and_still_join_the_next(catalog, retention):
    expiry.drop_key_files(catalog, retention, before=FOREVER)
    rollup.roll_up_epochs(catalog, retention, before=FOREVER)
    spans = [(epoch, span.start, span.end) for epoch, span in list_ranges(catalog)]
    assert spans == [(rollup.ROLLED_UP, 0, 20), (3, 20, 30), (4, 30, 40)]


def test_epochs_with_files_and_the_last_one_stay_as_they_are(catalog, retention):
    assert rollup.roll_up_epochs(catalog, retention, before=FOREVER) == 0
    assert len(list_epochs(catalog)) == 4


def test_batches_are_added_up_once_their_parts_have_gone(catalog, retention):
    assert rollup.roll_up_batches(catalog, retention, before=FOREVER) == 0
    expiry.drop_key_files(catalog, retention, before=FOREVER)
    assert rollup.roll_up_batches(catalog, retention, before=FOREVER) == 1
    assert list_batches(catalog) == ()
    assert rollup.rolled_up_rows(catalog) == {TABLE: 20}


def test_only_loaded_epochs_are_offered_for_packing(catalog, retention):
    bundles = packs.list_bundles(catalog)
    assert [bundle.epoch for bundle in bundles] == [1, 2]
    assert [part.part for part in bundles[0].parts] == ["part-1"]


def test_moved_files_are_found_at_their_new_place_and_the_old_ones_become_garbage(catalog, retention):
    bundles = packs.list_bundles(catalog)
    pack = FileRef(path="shop/packs/1-x.raw.parquet", size_bytes=9, checksum="1" * 64, row=10)
    old = bundles[1].key_files[0].raw
    packs.move_files(catalog, retention, [Move(old=old, new=pack)])
    assert list_key_files(catalog)[1][2].raw == pack
    assert packs.kept_garbage(catalog) == {old.path}
    assert packs.old_garbage(catalog, before=0.0) == ()
    assert packs.old_garbage(catalog, before=FOREVER) == (old.path,)
    packs.forget_garbage(catalog, retention, [old.path])
    assert packs.kept_garbage(catalog) == set()


def test_a_file_that_has_gone_meanwhile_refuses_the_whole_move(catalog, retention):
    bundles = packs.list_bundles(catalog)
    pack = FileRef(path="shop/packs/1-x.raw.parquet", size_bytes=9, checksum="1" * 64)
    known, gone = bundles[0].key_files[0].raw, FileRef(path="raw/gone", size_bytes=1, checksum="2" * 64)
    with pytest.raises(PermanentError, match="raw/gone has gone"):
        packs.move_files(catalog, retention, [Move(old=known, new=pack), Move(old=gone, new=pack)])
    assert list_key_files(catalog)[0][2].raw == known
    assert packs.kept_garbage(catalog) == set()
