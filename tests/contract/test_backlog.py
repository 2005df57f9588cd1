from __future__ import annotations

import pytest

from ledger_examples import make_batch, make_file, make_part, make_registration, register_epochs, take_lease
from oncehouse.ledger.catalog.batches import create_batches, finish_attempt, open_parts, start_attempt
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import BatchStatus, KeyFile, Stage
from oncehouse.ledger.stats.backlog import largest_epoch, sum_backlog, sum_kept

# Of an example's epoch: its keys, its raw bytes and its part.
EPOCH_BYTES = 9


def send_oldest(catalog, token: int, status: BatchStatus) -> None:
    batch = make_batch(open_parts(catalog)[0])
    create_batches(catalog, token, [batch])
    attempt = start_attempt(catalog, token, batch.batch_id)
    finish_attempt(catalog, token, attempt, status=status, outcome="failed", detail=None, wait_seconds=0)


def test_nothing_waits_in_an_empty_ledger(catalog):
    assert (sum_backlog(catalog), largest_epoch(catalog), sum_kept(catalog)) == (0, 0, None)


@pytest.mark.parametrize("status", [BatchStatus.RETRY, BatchStatus.PARKED, BatchStatus.IN_CLICKHOUSE])
def test_what_is_not_in_clickhouse_is_backlog_and_what_is_loaded_is_only_kept(catalog, status):
    register_epochs(catalog, 3)
    send_oldest(catalog, take_lease(catalog, Stage.LOAD), status)
    loaded = status is BatchStatus.IN_CLICKHOUSE
    assert sum_backlog(catalog) == (2 if loaded else 3) * EPOCH_BYTES
    kept = sum_kept(catalog)
    assert kept is not None
    assert kept.size_bytes == 3 * EPOCH_BYTES
    assert 0 <= catalog.now() - kept.since < 600


def test_keys_and_raw_bytes_wait_as_long_as_one_table_does(catalog):
    token = take_lease(catalog)
    parts = (make_part("a"), make_part("b", table="shop.others"))
    register(catalog, token, make_registration(parts=parts))
    load = take_lease(catalog, Stage.LOAD)
    assert sum_backlog(catalog) == EPOCH_BYTES + 3
    send_oldest(catalog, load, BatchStatus.IN_CLICKHOUSE)
    assert sum_backlog(catalog) == EPOCH_BYTES


def test_a_part_without_new_rows_waits_for_nothing(catalog):
    register(catalog, take_lease(catalog), make_registration(parts=(make_part("a", live_rows=0),)))
    assert sum_backlog(catalog) == 0


def test_what_lies_in_a_pack_is_no_backlog_even_if_it_is_sent_again(catalog):
    packed = KeyFile(
        key_file="keys-1",
        ordinal=0,
        events=10,
        keys=make_file("shop/packs/1-keys"),
        raw=make_file("shop/packs/1-raw"),
    )
    register(catalog, take_lease(catalog), make_registration(key_files=(packed,)))
    assert sum_backlog(catalog) == 3
    assert largest_epoch(catalog) == 3


def test_the_largest_of_the_newest_epochs_is_what_the_next_may_need(catalog):
    token = take_lease(catalog)
    parts = tuple(make_part(f"wide-{number}") for number in range(4))
    register(catalog, token, make_registration(parts=parts))
    assert largest_epoch(catalog) == EPOCH_BYTES + 3 * 3
    register(catalog, token, make_registration(2, start=10, end=20))
    assert largest_epoch(catalog) == EPOCH_BYTES + 3 * 3
    for epoch in range(3, 23):
        register(catalog, token, make_registration(epoch, start=epoch * 10 - 10, end=epoch * 10))
    assert largest_epoch(catalog) == EPOCH_BYTES
