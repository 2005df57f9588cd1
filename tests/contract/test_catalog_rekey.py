"""A changed identity rule in the catalog: key files, segments, rule and request together, or nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import event, text, update

from ledger_examples import (
    IDENTITY,
    make_file,
    make_registration,
    make_segment,
    register_epochs,
)
from oncehouse.errors import ConfigurationError, FencedError, PermanentError
from oncehouse.ledger.catalog import epochs, leases, packs, requests, segments
from oncehouse.ledger.catalog import retention as expiry
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.packs import Move, move_files
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.rekey import (
    Change,
    RekeyProgress,
    change_identity,
    count_unprepared,
    give_up,
    has_changed,
    list_unprepared,
    note_prepared,
    read_progress,
)
from oncehouse.ledger.catalog.schema import garbage
from oncehouse.ledger.catalog.schema import requests as requests_table
from oncehouse.ledger.models import LedgerIdentity, RequestKind, Stage

OTHER = LedgerIdentity(fingerprint="sha256:id(order_id, line)", buckets=32)


def state(catalog):
    return (
        catalog.identity(),
        epochs.list_key_files(catalog),
        segments.list_segments(catalog),
        requests.open_requests(catalog),
        packs.kept_garbage(catalog),
    )


def ask(catalog) -> int:
    arguments = {"fingerprint": OTHER.fingerprint, "buckets": OTHER.buckets}
    return requests.add_request(catalog, RequestKind.REKEY, arguments)


def prepare(catalog, token, *, files: int = 2, keys: bool = True, name: str = "anew") -> None:
    """New keys for so many key files, in one file, and a segment."""
    made = [
        (found, replace(make_file("keys/anew"), row=number * 10) if keys else None)
        for number, (_, _, found) in enumerate(epochs.list_key_files(catalog)[:files])
    ]
    note_prepared(catalog, token, 1, made, [make_segment(name)])


def change(catalog, token, identity=OTHER):
    return change_identity(catalog, token, identity, request=1, rule="{}")


@pytest.fixture
def token(catalog) -> int:
    token = register_epochs(catalog, 2)
    segments.replace_segments(catalog, token, old=[], new=[make_segment("first")])
    ask(catalog)
    return token


def test_everything_changes_at_once_and_the_old_files_are_garbage(catalog, token):
    assert requests.pending_rekey(catalog) == OTHER
    raw = [found.raw for _, _, found in epochs.list_key_files(catalog)]
    prepare(catalog, token)
    assert change(catalog, token) == Change(events=20, keys=10, segments=1)
    assert catalog.identity() == OTHER
    assert catalog.rule() == "{}"
    found = [key_file for _, _, key_file in epochs.list_key_files(catalog)]
    assert [(key_file.keys.path, key_file.keys.row) for key_file in found] == [
        ("keys/anew", 0),
        ("keys/anew", 10),
    ]
    assert [key_file.raw for key_file in found] == raw
    assert [segment.segment for segment in segments.list_segments(catalog)] == ["anew"]
    assert requests.open_requests(catalog) == ()
    assert requests.pending_rekey(catalog) is None
    assert packs.kept_garbage(catalog) == {"keys/1", "keys/2"}


def test_only_the_buckets_may_change(catalog, token):
    before = epochs.list_key_files(catalog)
    prepare(catalog, token, keys=False)
    other = replace(IDENTITY, buckets=32)
    assert change(catalog, token, other) == Change(events=0, keys=10, segments=1)
    assert catalog.identity() == other
    assert epochs.list_key_files(catalog) == before
    assert packs.kept_garbage(catalog) == set()


@pytest.mark.parametrize("lacks", [{"files": 1}, {"keys": False}])
def test_a_key_file_that_is_not_prepared_undoes_all_of_it(catalog, token, lacks):
    prepare(catalog, token, **lacks)
    before = state(catalog)
    with pytest.raises(PermanentError, match="are not prepared"):
        change(catalog, token)
    assert state(catalog) == before


def test_an_epoch_that_came_meanwhile_has_to_be_prepared_too(catalog, token):
    prepare(catalog, token)
    register(catalog, token, make_registration(3, start=20, end=30))
    assert [epoch for epoch, _, _ in list_unprepared(catalog, 1, limit=9)] == [3]
    assert read_progress(catalog, 1) == RekeyProgress(
        request=1, key_files=3, key_files_done=2, events=30, events_done=20
    )
    with pytest.raises(PermanentError, match="1 key files are not prepared"):
        change(catalog, token)


def test_what_is_prepared_is_named_until_it_is_given_up(catalog, token):
    prepare(catalog, token)
    assert {"keys/anew", "segments/anew"} <= expiry.registered_paths(catalog)
    give_up(catalog, token, keep=1)
    assert list_unprepared(catalog, 1, limit=9) == ()
    give_up(catalog, token)
    assert len(list_unprepared(catalog, 1, limit=9)) == 2
    assert packs.kept_garbage(catalog) == {"keys/anew", "segments/anew"}
    assert not {"keys/anew", "segments/anew"} & expiry.registered_paths(catalog)


def test_who_has_lost_the_lease_changes_nothing(catalog, token):
    prepare(catalog, token)
    before = state(catalog)
    for write in (change, prepare):
        with pytest.raises(FencedError):
            write(catalog, token - 1)
    assert state(catalog) == before


def test_a_request_that_was_taken_back_meanwhile_undoes_all_of_it(catalog, token):
    prepare(catalog, token)
    requests.withdraw_requests(catalog, RequestKind.REKEY)
    before = state(catalog)
    for write in (change, prepare):
        with pytest.raises(PermanentError, match="unknown or done already"):
            write(catalog, token)
    assert state(catalog) == before


def test_an_epoch_with_ids_of_another_rule_is_refused(catalog, token):
    mine = make_registration(3, start=20, end=30, identity=IDENTITY)
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        register(catalog, token, replace(mine, identity=OTHER))
    register(catalog, token, mine)


def test_the_first_that_are_left_are_listed_and_all_of_them_counted(catalog, token):
    register(catalog, token, make_registration(3, start=20, end=30))
    assert [epoch for epoch, _, _ in list_unprepared(catalog, 1, limit=2)] == [1, 2]
    assert count_unprepared(catalog, 1) == 30
    prepare(catalog, token, files=2)
    assert [epoch for epoch, _, _ in list_unprepared(catalog, 1, limit=9)] == [3]
    for since in (None, 2):
        assert count_unprepared(catalog, 1, since=since) == 10
        assert [epoch for epoch, _, _ in list_unprepared(catalog, 1, since=since, limit=9)] == [3]
    assert count_unprepared(catalog, 2) == 30, "what was prepared for another request does not count"
    assert count_unprepared(catalog, 1, since=3) == 10, "of the epoch that was begun, what is left"


@contextmanager
def held_before_commit(catalog):
    """Transactions of this catalog wait at their end, until they are let go."""
    reached, go = threading.Event(), threading.Event()

    def wait(_connection):
        reached.set()
        assert go.wait(30)

    event.listen(catalog.engine, "commit", wait)
    try:
        yield reached, go
    finally:
        go.set()
        event.remove(catalog.engine, "commit", wait)


def wait_for_a_lock(catalog):
    """Until somebody waits for another's transaction, where the database can tell."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while catalog.engine.dialect.name == "postgresql":
        with catalog.read() as connection:
            if connection.execute(waiting).scalar_one():
                return
        time.sleep(0.01)


def test_a_pack_that_is_under_way_is_waited_for_and_its_own_file_becomes_garbage(catalog, catalog_url, token):
    prepare(catalog, token)
    packer = Catalog(catalog_url, "shop", retry_seconds=())
    retention = leases.acquire(packer, Stage.RETENTION, holder="packer", lease_seconds=60)
    moves = [
        Move(old=found.keys, new=replace(make_file("shop/packs/1-x.keys.arrow"), row=number * 10))
        for number, (_, _, found) in enumerate(epochs.list_key_files(catalog))
    ]
    with ThreadPoolExecutor(2) as pool, held_before_commit(packer) as (reached, go):
        packing = pool.submit(move_files, packer, retention.token, moves)
        assert reached.wait(30)
        changing = pool.submit(change, catalog, token)
        wait_for_a_lock(catalog)
        go.set()
        packing.result(30)
        assert changing.result(30) == Change(events=20, keys=10, segments=1)
    packer.close()
    assert {found.keys.path for _, _, found in epochs.list_key_files(catalog)} == {"keys/anew"}
    assert packs.kept_garbage(catalog) == {"keys/1", "keys/2", "shop/packs/1-x.keys.arrow"}


def test_a_pack_that_comes_too_late_changes_nothing(catalog, token):
    prepare(catalog, token)
    retention = leases.acquire(catalog, Stage.RETENTION, holder="packer", lease_seconds=60)
    moves = [Move(old=found.keys, new=make_file("packs/x")) for _, _, found in epochs.list_key_files(catalog)]
    change(catalog, token)
    before = state(catalog)
    with pytest.raises(PermanentError, match="has gone while it was packed"):
        move_files(catalog, retention.token, moves)
    assert state(catalog) == before


def test_what_is_garbage_already_does_not_refuse_the_change(catalog, token):
    prepare(catalog, token)
    rows = {"pipeline": "shop", "file_path": "keys/1", "since": 1.0}
    catalog.change(lambda connection: connection.execute(garbage.insert().values(rows)))
    change(catalog, token)
    assert packs.kept_garbage(catalog) == {"keys/1", "keys/2"}


def test_whether_a_rule_took_effect_can_be_asked_by_its_holder_alone(catalog, token):
    prepare(catalog, token)
    assert not has_changed(catalog, token, OTHER)
    change(catalog, token)
    assert has_changed(catalog, token, OTHER)
    with pytest.raises(FencedError):
        has_changed(catalog, token - 1, OTHER)


def test_requests_that_are_done_are_not_read_to_find_the_open_ones(catalog, token):
    requests.finish_request(catalog, token, 1, "done")
    number = ask(catalog)
    unreadable = update(requests_table).where(requests_table.c.request == 1).values(kind="of another time")
    catalog.change(lambda connection: connection.execute(unreadable))
    assert [found.request for found in requests.open_requests(catalog)] == [number]
