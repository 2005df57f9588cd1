from __future__ import annotations

import pytest
from sqlalchemy import update

from ledger_examples import TABLE, make_batch, make_part, make_registration, race, register_epochs, take_lease
from oncehouse.errors import ConfigurationError, FencedError, PermanentError
from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.batches import (
    create_batches,
    find_batch,
    finish_attempt,
    list_attempts,
    list_batches,
    load_parts,
    open_parts,
    retry_parked,
    start_attempt,
    waiting_batches,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, DuplicateFile, FileRef, Stage


@pytest.fixture
def token(catalog) -> int:
    """Three open parts of ten rows, and the load lease."""
    register_epochs(catalog, 3)
    return take_lease(catalog, Stage.LOAD)


def make_one(catalog, token: int) -> str:
    batch = make_batch(open_parts(catalog)[0])
    create_batches(catalog, token, [batch])
    return batch.batch_id


def bring_to(catalog, token: int, status: BatchStatus) -> str:
    batch_id = make_one(catalog, token)
    if status is BatchStatus.NEW:
        return batch_id
    attempt = start_attempt(catalog, token, batch_id)
    if status is not BatchStatus.IN_PROCESS:
        finish_attempt(
            catalog, token, attempt, status=status, outcome="failed", detail="why", wait_seconds=60
        )
    return batch_id


def test_batches_take_their_parts_in_order(catalog, token):
    first, second, third = open_parts(catalog)
    batch = make_batch(second, first)
    create_batches(catalog, token, [batch, make_batch(third)])
    assert open_parts(catalog) == ()
    assert [loaded.part.part for loaded in load_parts(catalog, batch.batch_id)] == [second.part, first.part]
    made = find_batch(catalog, batch.batch_id)
    assert (made.table, made.status, made.rows, made.size_bytes) == (TABLE, BatchStatus.NEW, 20, 2000)
    assert made.attempts == 0
    assert [found.rows for found in list_batches(catalog)] == [20, 10]


def test_batches_stand_in_the_order_in_which_they_were_made(catalog, token):
    made = [make_one(catalog, token) for _ in range(3)]
    assert [batch.batch_id for batch in waiting_batches(catalog)] == made


def test_a_part_is_taken_once_and_a_refused_plan_leaves_nothing(catalog, token):
    first, second, _ = open_parts(catalog)
    create_batches(catalog, token, [make_batch(first)])
    with pytest.raises(PermanentError, match=first.part):
        create_batches(catalog, token, [make_batch(second), make_batch(first)])
    assert len(list_batches(catalog)) == 1
    assert second in open_parts(catalog)


def test_a_part_goes_into_no_batch_of_another_table(catalog, token):
    with pytest.raises(PermanentError, match="another table"):
        create_batches(catalog, token, [make_batch(open_parts(catalog)[0], table="shop.other")])
    assert list_batches(catalog) == ()


def test_of_two_that_put_the_same_parts_into_batches_one_is_refused(catalog, catalog_url, token):
    # Two catalogs, as two threads of one process wait for each other before they reach the database.
    other = Catalog(catalog_url, catalog.pipeline, retry_seconds=(0.0,))
    found = open_parts(catalog)
    answers = race([lambda c=c: create_batches(c, token, [make_batch(*found)]) for c in (catalog, other)])
    assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", "PermanentError"]
    (batch,) = list_batches(catalog)
    assert len(load_parts(catalog, batch.batch_id)) == len(found)
    other.close()


def test_a_part_without_live_rows_is_not_open(catalog):
    token = take_lease(catalog)
    register(catalog, token, make_registration(parts=(make_part("empty", live_rows=0),)))
    assert open_parts(catalog) == ()


def test_a_part_is_loaded_without_the_duplicates_of_the_epoch_that_read_it(catalog):
    ingest, load = take_lease(catalog), take_lease(catalog, Stage.LOAD)
    file = FileRef(path="duplicates/1", size_bytes=1, checksum="0" * 64)
    register(catalog, ingest, make_registration(duplicate_files=(DuplicateFile(rows=2, file=file),)))
    # Rows written again for a table stand in a later epoch, their keys and duplicates in the first.
    again = make_part("again", epoch=1, table="shop.again")
    register(catalog, ingest, make_registration(2, 10, 10, ranges=(), key_files=(), parts=(again,)))
    batch = make_batch(again, table="shop.again")
    create_batches(catalog, load, [batch])
    (loaded,) = load_parts(catalog, batch.batch_id)
    assert (loaded.part.epoch, loaded.events, loaded.duplicate_files) == (2, 10, (file,))


def test_an_attempt_is_written_down_before_anything_is_sent(catalog, token):
    batch_id = make_one(catalog, token)
    attempt = start_attempt(catalog, token, batch_id)
    assert attempt.query_id == f"{batch_id}-1"
    assert list_attempts(catalog, batch_id) == (attempt,)
    assert attempt.outcome is None
    assert find_batch(catalog, batch_id).status is BatchStatus.IN_PROCESS


def test_an_attempt_whose_driver_died_stays_visible_beside_the_next(catalog, token):
    batch_id = make_one(catalog, token)
    start_attempt(catalog, token, batch_id)
    later = take_lease(catalog, Stage.LOAD)
    second = start_attempt(catalog, later, batch_id)
    finish_attempt(catalog, later, second, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED)
    outcomes = [(found.query_id, found.outcome) for found in list_attempts(catalog, batch_id)]
    assert outcomes == [(f"{batch_id}-1", None), (f"{batch_id}-2", "inserted")]


def test_a_loaded_batch_is_done(catalog, token):
    batch_id = make_one(catalog, token)
    attempt = start_attempt(catalog, token, batch_id)
    finish_attempt(catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED)
    batch = find_batch(catalog, batch_id)
    assert (batch.status, batch.reason) == (BatchStatus.IN_CLICKHOUSE, None)
    assert batch.loaded_at is not None
    assert waiting_batches(catalog) == ()


def test_a_failed_attempt_says_why_and_when_the_next_is_due(catalog, token):
    batch_id = bring_to(catalog, token, BatchStatus.RETRY)
    batch = find_batch(catalog, batch_id)
    (attempt,) = list_attempts(catalog, batch_id)
    assert (batch.status, batch.reason, batch.loaded_at) == (BatchStatus.RETRY, "why", None)
    assert batch.next_attempt_at == attempt.finished_at + 60
    assert waiting_batches(catalog) == (batch,)


@pytest.mark.parametrize("status", [BatchStatus.PARKED, BatchStatus.IN_CLICKHOUSE])
def test_a_batch_that_is_parked_or_loaded_is_not_sent(catalog, token, status):
    batch_id = bring_to(catalog, token, status)
    with pytest.raises(PermanentError, match=f"{batch_id} is {status}"):
        start_attempt(catalog, token, batch_id)
    assert len(list_attempts(catalog, batch_id)) == 1
    assert find_batch(catalog, batch_id).status is status


@pytest.mark.parametrize("status", [BatchStatus.PARKED, BatchStatus.RETRY])
def test_a_parked_or_waiting_batch_can_be_tried_again_at_once(catalog, token, status):
    batch_id = bring_to(catalog, token, status)
    retry_parked(catalog, batch_id)
    batch = find_batch(catalog, batch_id)
    assert (batch.status, batch.next_attempt_at) == (BatchStatus.RETRY, 0.0)


@pytest.mark.parametrize("status", [BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.IN_CLICKHOUSE])
def test_no_other_batch_can_be_tried_again(catalog, token, status):
    batch_id = bring_to(catalog, token, status)
    with pytest.raises(ConfigurationError, match=f"is {status}"):
        retry_parked(catalog, batch_id)
    assert find_batch(catalog, batch_id).status is status


def test_an_unknown_batch_is_named(catalog):
    with pytest.raises(ConfigurationError, match="no batch nowhere"):
        retry_parked(catalog, "nowhere")


def test_a_loader_that_lost_its_lease_changes_no_batch(catalog, token):
    batch_id = make_one(catalog, token)
    attempt = start_attempt(catalog, token, batch_id)
    take_lease(catalog, Stage.LOAD)
    with pytest.raises(FencedError):
        finish_attempt(
            catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED
        )
    with pytest.raises(FencedError):
        create_batches(catalog, token, [make_batch(open_parts(catalog)[0])])
    assert [batch.status for batch in list_batches(catalog)] == [BatchStatus.IN_PROCESS]


def test_batches_can_be_listed_by_status_and_table(catalog, token):
    parked = bring_to(catalog, token, BatchStatus.PARKED)
    new = make_one(catalog, token)
    with catalog.engine.begin() as connection:
        connection.execute(
            update(schema.batches).where(schema.batches.c.batch_id == new).values(table_name="other")
        )
    assert [batch.batch_id for batch in list_batches(catalog, statuses=[BatchStatus.PARKED])] == [parked]
    assert [batch.batch_id for batch in list_batches(catalog, table="other")] == [new]
