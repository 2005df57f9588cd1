"""What a process notices by itself when its catalog has lost transactions that it had confirmed."""

from __future__ import annotations

import threading

import pytest

from ledger_examples import make_batch, make_registration, register_epochs, take_lease
from lost_commits import answers_of_commits_lost
from lost_transactions import lose_since, remember
from oncehouse.errors import FencedError, PermanentError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.batches import create_batches, open_parts, start_attempt
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import Heartbeat, acquire, list_leases, note_pause, release, renew
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import Stage

BEHIND = "has lost"


def test_an_epoch_is_not_registered_over_one_that_was_lost(catalog):
    token = register_epochs(catalog)
    moment = remember(catalog)
    register(catalog, token, make_registration(2, start=10, end=20))
    lose_since(catalog, moment)
    with pytest.raises(PermanentError, match=BEHIND):
        register(catalog, token, make_registration(2, start=10, end=20))
    assert epochs.next_epoch(catalog) == 2


def test_an_attempt_is_not_started_again_over_one_that_was_lost(catalog):
    register_epochs(catalog)
    token = take_lease(catalog, Stage.LOAD)
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, token, [batch])
    moment = remember(catalog)
    start_attempt(catalog, token, batch.batch_id)
    lose_since(catalog, moment)
    with pytest.raises(PermanentError, match=BEHIND):
        start_attempt(catalog, token, batch.batch_id)


def test_a_lease_is_not_renewed_in_a_catalog_that_has_lost_a_write(catalog):
    lease = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=600)
    moment = remember(catalog)
    register(catalog, lease.token, make_registration())
    lose_since(catalog, moment)
    with pytest.raises(PermanentError, match=BEHIND):
        renew(catalog, lease, lease_seconds=600)


def test_a_heartbeat_tells_of_a_catalog_that_has_lost_a_write(catalog):
    lease = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=600)
    moment = remember(catalog)
    register(catalog, lease.token, make_registration())
    lose_since(catalog, moment)
    told: list[Exception] = []
    lost = threading.Event()

    def on_lost(error: Exception) -> None:
        told.append(error)
        lost.set()

    heartbeat = Heartbeat(catalog, (lease,), lease_seconds=0.03, on_lost=on_lost)
    assert lost.wait(60)
    heartbeat.stop()
    assert BEHIND in str(told[0])


def test_a_lease_that_was_lost_is_told_apart_from_one_that_was_taken_over(catalog):
    moment = remember(catalog)
    lease = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=600)
    lose_since(catalog, moment)
    with pytest.raises(PermanentError, match=BEHIND):
        renew(catalog, lease, lease_seconds=600)
    with pytest.raises(PermanentError, match=BEHIND):
        register(catalog, lease.token, make_registration())


def test_of_two_processes_that_were_given_one_token_only_the_one_in_the_catalog_works(catalog, catalog_url):
    moment = remember(catalog)
    first = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=600)
    lose_since(catalog, moment)
    other = Catalog(catalog_url, "shop", retry_seconds=())
    second = acquire(other, Stage.INGEST, holder="second", lease_seconds=600)
    assert first.token == second.token
    for refused in (
        lambda: renew(catalog, first, lease_seconds=600),
        lambda: note_pause(catalog, first, "no room"),
        lambda: register(catalog, first.token, make_registration()),
    ):
        with pytest.raises(PermanentError, match=BEHIND):
            refused()
    release(catalog, first)
    assert list_leases(other) == (second,)
    register(other, second.token, make_registration())
    assert epochs.next_epoch(catalog) == 2
    other.close()


def test_a_process_that_was_overtaken_is_fenced_and_not_told_of_a_loss(catalog):
    old = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=-1)
    register(catalog, old.token, make_registration())
    acquire(catalog, Stage.INGEST, holder="second", lease_seconds=600)
    with pytest.raises(FencedError, match="taken over"):
        register(catalog, old.token, make_registration(2, start=10, end=20))


def test_a_commit_whose_answer_was_lost_counts_as_known(catalog):
    token = register_epochs(catalog)
    moment = remember(catalog)
    with answers_of_commits_lost(catalog, 1):
        register(catalog, token, make_registration(2, start=10, end=20))
    lose_since(catalog, moment)
    with pytest.raises(PermanentError, match=BEHIND):
        register(catalog, token, make_registration(2, start=10, end=20))


def test_what_one_stage_lost_does_not_stop_a_stage_that_lost_nothing(catalog):
    lease = acquire(catalog, Stage.INGEST, holder="first", lease_seconds=600)
    load = take_lease(catalog, Stage.LOAD)
    register(catalog, lease.token, make_registration())
    moment = remember(catalog)
    create_batches(catalog, load, [make_batch(*open_parts(catalog))])
    lose_since(catalog, moment)
    renew(catalog, lease, lease_seconds=600)
