"""Offsets and the mutex: one contract for every store, on real servers, and hosts that race for one topic."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.state import topic_lease, transitions
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets, RocksDbOffsets
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.sql_store import CatalogOffsets
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.ledger.catalog.database import Catalog

FIRST, SECOND = TopicWorker(hostid="first"), TopicWorker(hostid="second")
NEXT = Position(time_ms=1_700_000_000_123, id=2**64 - 1)


@pytest.fixture
def client(clickhouse) -> Client:
    return connect(ClickHouse(url=clickhouse.url))


@pytest.fixture(params=["rocksdb", "keepermap", "sqlite", "postgresql"])
def open_store(request, tmp_path) -> Iterator[Callable[[], OffsetStore]]:
    """Opens the same store anew with each call, as another host would."""
    catalogs: list[Catalog] = []

    def open_catalog(url: str) -> OffsetStore:
        catalogs.append(Catalog(url, "etl", retry_seconds=(0.1, 0.1)))
        return CatalogOffsets(catalogs[-1])

    match request.param:
        case "sqlite":
            yield lambda: open_catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
        case "postgresql":
            url = request.getfixturevalue("postgres_url")
            yield lambda: open_catalog(url)
        case "rocksdb":
            client, database = request.getfixturevalue("client"), request.getfixturevalue("database")
            yield lambda: RocksDbOffsets(client, f"{database}.Offsets")
        case _:
            request.getfixturevalue("zookeeper")
            client, database = request.getfixturevalue("client"), request.getfixturevalue("database")
            path = f"/{uuid.uuid4().hex}"
            yield lambda: KeeperMapOffsets(client, f"{database}.Offsets", path)
    for catalog in catalogs:
        catalog.close()


@pytest.fixture
def store(open_store) -> OffsetStore:
    opened = open_store()
    opened.prepare()
    return opened


def seen(store: OffsetStore) -> Offset:
    return store.read_all().offsets.get("facts") or topic_lease.new_offset("facts")


def test_a_new_topic_starts_at_the_beginning_and_ends_where_its_step_ended(store):
    assert store.read_all().offsets == {}
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    begun = seen(store)
    assert (begun.last, begun.next, begun.hostid, begun.is_open) == (START, NEXT, "first", True)
    transitions.commit(store, FIRST, "facts", rows=7, state=topic_lease.MORE)
    done = seen(store)
    assert (done.last, done.next, done.rows, done.state) == (NEXT, NEXT, 7, topic_lease.MORE)
    assert (done.hostid, done.is_open) == ("", False)


def test_preparing_twice_keeps_what_is_there(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    store.prepare()
    assert seen(store).next == NEXT


def test_a_second_host_is_told_who_holds_the_topic(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    with pytest.raises(MutexError, match=r"MUTEX.*first.*unlock facts"):
        transitions.begin(store, SECOND, seen(store), next_=NEXT)
    with pytest.raises(MutexError, match="first"):
        transitions.commit(store, SECOND, "facts", rows=1)
    assert seen(store).hostid == "first"


def test_a_silent_holder_is_taken_over_and_can_no_longer_commit(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    eager = TopicWorker(hostid="second", lease_seconds=0)
    transitions.begin(store, eager, seen(store), next_=NEXT)
    with pytest.raises(MutexError, match="second"):
        transitions.commit(store, FIRST, "facts", rows=1)
    with pytest.raises(MutexError, match="second"):
        transitions.beat(store, FIRST, "facts")
    transitions.commit(store, eager, "facts", rows=1)
    assert seen(store).last == NEXT


def test_a_heartbeat_moves_the_time_and_nothing_else(store):
    begun = transitions.begin(store, FIRST, seen(store), next_=NEXT)
    beaten = transitions.beat(store, FIRST, "facts")
    assert beaten.run_ms > begun.run_ms
    assert (beaten.last, beaten.next, beaten.state) == (begun.last, begun.next, begun.state)
    assert abs(store.read_all().now_ms - beaten.run_ms) < 60_000


def test_a_step_planned_from_old_offsets_is_refused(store):
    old = seen(store)
    transitions.begin(store, FIRST, old, next_=NEXT)
    transitions.commit(store, FIRST, "facts", rows=1)
    with pytest.raises(MutexError, match="moved"):
        transitions.begin(store, SECOND, old, next_=NEXT)


def test_a_failed_step_says_why_counts_and_stays_open(store):
    first = seen(store)
    transitions.begin(store, FIRST, first, next_=NEXT)
    transitions.fail(store, FIRST, first, "it's gone: 'quotes' \\ and {braces}")
    failed = seen(store)
    assert failed.state == "failed 1: it's gone: 'quotes' \\ and {braces}"
    assert (failed.next, failed.hostid) == (NEXT, "")
    transitions.begin(store, FIRST, failed, next_=NEXT)
    transitions.fail(store, FIRST, failed, "again")
    assert seen(store).state == "failed 2: again"


def test_a_range_is_narrowed_while_sized_and_fixed_afterwards(store):
    half = Position(time_ms=5, id=1)
    transitions.begin(store, FIRST, seen(store), next_=NEXT, state=topic_lease.SIZING)
    transitions.narrow(store, FIRST, "facts", next_=half, state=topic_lease.INSERTING)
    assert seen(store).next == half
    with pytest.raises(Exception, match="fixed"):
        transitions.narrow(store, FIRST, "facts", next_=START, state=topic_lease.SIZING)


def test_unlock_seek_pause_and_resume(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    with pytest.raises(MutexError, match="first"):
        transitions.seek(store, "facts", START)
    transitions.unlock(store, "facts")
    assert (seen(store).hostid, seen(store).next) == ("", NEXT)
    transitions.pause(store, "facts")
    with pytest.raises(MutexError, match="resume facts"):
        transitions.begin(store, FIRST, seen(store), next_=NEXT)
    transitions.resume(store, "facts")
    assert seen(store).is_open
    there = Position(time_ms=9, id=9)
    with pytest.raises(PermanentError, match="being built"):
        transitions.seek(store, "facts", there)
    transitions.seek(store, "facts", there, drops_open=True)
    assert (seen(store).last, seen(store).next) == (there, there)


def test_a_pause_waits_for_the_step_under_way_and_then_holds(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    asked = transitions.pause(store, "facts", lease_seconds=60)
    assert (asked.state, asked.hostid) == (topic_lease.INSERTING, "first"), "the step goes on"
    transitions.commit(store, FIRST, "facts", rows=1, state=topic_lease.MORE)
    paused = seen(store)
    assert (paused.state, paused.hostid, paused.last) == (topic_lease.PAUSED, "", NEXT)
    with pytest.raises(MutexError, match="resume facts"):
        transitions.begin(store, FIRST, paused, next_=Position(time_ms=NEXT.time_ms + 1, id=0))
    transitions.resume(store, "facts")
    transitions.begin(store, FIRST, seen(store), next_=Position(time_ms=NEXT.time_ms + 1, id=0))


def test_whether_a_pause_waits_hangs_on_the_lease_that_is_set(store):
    """A holder that is silent for longer than the lease is no longer waited for, however short that is."""
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    paused = transitions.pause(store, "facts", lease_seconds=0)
    assert (paused.state, paused.hostid, paused.next) == (topic_lease.PAUSED, "", NEXT)


def test_a_seek_makes_every_token_new(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    transitions.commit(store, FIRST, "facts", rows=1)
    there = Position(time_ms=9, id=9)
    row = transitions.seek(store, "facts", there)
    assert (row.last, row.generation) == (there, 1)
    assert seen(store) == row
    assert [(one.after, one.upto) for one in row.topic_state.segments] == [(START, there)]


def test_of_hosts_that_race_for_a_topic_exactly_one_wins_each_time(open_store, store):
    """And the winner's range is the one that stands."""
    hosts = [TopicWorker(hostid=f"host{number}") for number in range(3)]
    stores = [open_store() for _ in hosts]
    gate = threading.Barrier(len(hosts), timeout=60)
    won: list[list[str]] = []
    surprises: list[Exception] = []

    def race(host: TopicWorker, own: OffsetStore) -> None:
        try:
            for turn in range(12):
                topic = f"facts{turn}"
                gate.wait()
                try:
                    next_ = Position(time_ms=1, id=hosts.index(host) + 1)
                    transitions.begin(own, host, topic_lease.new_offset(topic), next_=next_)
                    won[turn].append(host.hostid)
                except MutexError:
                    pass
        except Exception as error:  # noqa: BLE001 - a thread's edge: shown by the assertion below
            surprises.append(error)
            gate.abort()

    won.extend([] for _ in range(12))
    threads = [threading.Thread(target=race, args=pair) for pair in zip(hosts, stores, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []
    rows = store.read_all().offsets
    for turn, winners in enumerate(won):
        assert len(winners) == 1, f"turn {turn}: {winners}"
        assert rows[f"facts{turn}"].hostid == winners[0]
        assert rows[f"facts{turn}"].next.id == int(winners[0].removeprefix("host")) + 1


def add_rows_side_by_side(stores: list[OffsetStore], times: int) -> None:
    """Each host adds to the topic's rows so often, from what it has just read."""
    surprises: list[Exception] = []

    def add(own: OffsetStore) -> None:
        try:
            for _ in range(times):
                own.change("facts", lambda row, _now_ms: replace(row, rows=row.rows + 1))
        except Exception as error:  # noqa: BLE001 - a thread's edge: shown by the assertion below
            surprises.append(error)

    threads = [threading.Thread(target=add, args=(own,)) for own in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []


def test_no_change_of_a_row_is_lost_when_hosts_race(open_store, store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    add_rows_side_by_side([open_store() for _ in range(3)], 12)
    assert seen(store).rows == 36


def test_changes_that_do_not_take_turns_would_be_caught(client, database, monkeypatch):
    """The seeded defect: every change has a query id of its own, so that two may pass their look at one row."""
    monkeypatch.setattr(RocksDbOffsets, "_query_id", lambda _self, _topic: uuid.uuid4().hex)
    store = RocksDbOffsets(client, f"{database}.Offsets")
    store.prepare()
    added = 0
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    while added < 36 * 20 and seen(store).rows == added:
        add_rows_side_by_side([RocksDbOffsets(client, f"{database}.Offsets") for _ in range(3)], 12)
        added += 36
    assert seen(store).rows < added


class RenamingClient(Client):
    """As behind a proxy that gives every query an id of its own."""

    def command(self, sql: str, parameters=None, settings=None) -> object:
        own = {"query_id": uuid.uuid4().hex} if "query_id" in (settings or {}) else {}
        return super().command(sql, parameters, {**(settings or {}), **own})


def test_a_proxy_that_changes_query_ids_is_told_and_nothing_is_written(client, database):
    store = RocksDbOffsets(RenamingClient(client.config), f"{database}.Offsets")
    store.prepare()
    with pytest.raises(ConfigurationError, match=r"changes the ids of queries.*store: catalog"):
        transitions.begin(store, FIRST, seen(store), next_=NEXT)
    assert store.read_all().offsets == {}


def test_a_row_that_was_seen_is_changed_without_reading_it_and_only_if_it_is_still_that_one(store):
    transitions.begin(store, FIRST, seen(store), next_=NEXT)
    transitions.commit(store, FIRST, "facts", rows=1)
    free = seen(store)
    begun = transitions.begin(store, FIRST, free, next_=replace(NEXT, time_ms=NEXT.time_ms + 1))
    assert seen(store) == begun, "what it says it wrote is what stands there"
    transitions.pause(store, "facts")
    transitions.commit(store, FIRST, "facts", rows=1, begun=begun)
    assert seen(store).state == topic_lease.PAUSED, "a pause that came between is not lost"
