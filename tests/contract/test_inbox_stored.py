"""The stored inbox on each database: idempotent storing, order by key, retries, parking, fencing."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from inbox_examples import effect, effects_by_key, message, messages, prepare, read_effects
from oncehouse.common.backoff import Backoff
from oncehouse.common.database import begin, open_engine
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.inbox.ids import plain_id
from oncehouse.messaging.inbox.store_messages import Receipt
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.tables import InboxState, inbox, lease_tables
from oncehouse.messaging.inbox.types import StoreResult, WorkerSettings

QUICK = WorkerSettings(
    concurrency=4,
    max_attempts=3,
    backoff=Backoff(base_seconds=0.0, longest_seconds=0.0),
    lease_seconds=20.0,
    poll_seconds=0.05,
    rest_seconds=0.05,
    drain_seconds=20.0,
)


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    opened = open_engine(catalog_url, setting="database")
    prepare(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def stored(engine) -> StoredInbox:
    return StoredInbox("orders", engine)


def bill(session, given):
    session.execute(effect(given))


def rows(engine: Engine) -> dict[str, object]:
    with engine.connect() as connection:
        found = connection.execute(select(inbox).order_by(inbox.c.sequence)).all()
    return {plain_id(row.message_id): row for row in found}


def states(engine: Engine) -> dict[str, str]:
    return {message_id: row.state for message_id, row in rows(engine).items()}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_messages_are_stored_once_with_all_they_have(engine, stored):
    given = [replace(message("1", value=b"\0\xff"), timestamp_ms=7), message("2", key=None, offset=1)]
    assert stored.store(given) == StoreResult(new=2, repeated=0)
    assert stored.store([*given, message("3")]) == StoreResult(new=1, repeated=2)
    assert stored.counts == StoreResult(new=3, repeated=2)
    assert stored.store([]) == StoreResult(new=0, repeated=0)
    seen = []
    stored.worker(lambda _session, one: seen.append(one), settings=QUICK).run(once=True)
    assert sorted(seen, key=lambda one: one.message_id) == [*given, message("3")]


def test_a_message_twice_in_one_call_is_stored_once(stored):
    assert stored.store([message("1"), message("1")]) == StoreResult(new=1, repeated=1)


def test_inboxes_in_one_database_do_not_mix(engine, stored):
    other = StoredInbox("mail", engine)
    for one in (stored, other):
        assert one.store([message("1")]).new == 1
    stored.worker(bill, settings=QUICK).run(once=True)
    assert read_effects(engine) == ["1"]


def test_a_repeat_is_told_from_another_message_under_its_id(stored):
    assert stored.store_one(message("1")) is Receipt.NEW
    assert stored.store_one(message("1")) is Receipt.REPEATED
    assert stored.store_one(message("1", value=b"other")) is Receipt.CONFLICT


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_workers_handle_each_message_once_and_in_order_by_key(engine, stored, kind):
    given = messages(60, keys=7)
    for at in range(0, 60, 20):
        stored.store(given[at : at + 20])

    async def bill_later(session, one):
        await session.execute(effect(one))

    worker = stored.worker(bill if kind == "plain" else bill_later, settings=QUICK)
    worker.run(once=True)
    stored.store(given)
    stored.worker(bill, settings=QUICK).run(once=True)
    with engine.connect() as connection:
        found = effects_by_key(connection)
    assert {key: [int(one.split("-")[1]) for one in ids] for key, ids in found.items()} == {
        f"key-{key}": list(range(len(found[f"key-{key}"]))) for key in range(7)
    }
    assert len(read_effects(engine)) == 60
    assert worker.counts.done == 60


def test_one_key_never_runs_twice_at_a_time_and_other_keys_run_beside_it(stored, engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    stored.store(messages(40, keys=4))
    running: Counter[bytes] = Counter()
    most, lock = [0], threading.Lock()
    gate = threading.Barrier(4, timeout=20)

    def handler(_session, one):
        with lock:
            running[one.key] += 1
            assert running[one.key] == 1
            most[0] = max(most[0], sum(running.values()))
        if one.message_id.endswith("-0"):
            gate.wait()  # passes only when all four keys run side by side
        with lock:
            running[one.key] -= 1

    worker = stored.worker(handler, settings=QUICK)
    worker.run(once=True)
    assert (worker.counts.done, worker.counts.failed, most[0]) == (40, 0, 4)


def test_a_failing_message_holds_back_its_key_and_no_other(engine, stored):
    stored.store(messages(6, keys=2))
    tries: Counter[str] = Counter()

    def handler(session, one):
        tries[one.message_id] += 1
        bill(session, one)
        if one.message_id == "0-0" and (tries["0-0"] < 3 or len(read_effects(engine)) < 3):
            raise ValueError("not before the other key is through")

    patient = replace(QUICK, max_attempts=1_000, backoff=Backoff(base_seconds=0.02, longest_seconds=0.02))
    worker = stored.worker(handler, settings=patient)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: len(read_effects(engine)) == 6)
    worker.stop()
    thread.join(30)
    assert read_effects(engine) == ["1-0", "1-1", "1-2", "0-0", "0-1", "0-2"]
    assert {key: count for key, count in tries.items() if key != "0-0"} == dict.fromkeys(
        ["0-1", "0-2", "1-0", "1-1", "1-2"], 1
    )
    assert rows(engine)["0-0"].attempts == tries["0-0"]


def test_a_message_that_keeps_failing_is_parked_with_its_reason(engine, stored):
    stored.store([message("1"), message("2")])

    def handler(session, one):
        if one.message_id == "1":
            raise ValueError("bad\0 amount")
        bill(session, one)

    worker = stored.worker(handler, settings=QUICK)
    worker.run(once=True)
    assert states(engine) == {"1": InboxState.PARKED, "2": InboxState.DONE}
    row = rows(engine)["1"]
    assert (row.attempts, row.error) == (3, "ValueError: bad\\0 amount")
    assert (worker.counts.failed, worker.counts.parked) == (3, 1)


class WordlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_error_whose_text_nobody_can_write_is_a_failure_like_any_other(engine, stored, kind):
    stored.store([message("half", key="a"), message("none", key="b"), message("exit", key="c"), message("2")])

    def handler(session, one):
        match one.message_id:
            case "half":
                raise ValueError(json.loads('"half of a pair: \\ud800"'))
            case "none":
                raise WordlessError
            case "exit":
                sys.exit(3)

    async def async_handler(session, one):
        handler(session, one)

    worker = stored.worker(handler if kind == "plain" else async_handler, settings=QUICK)
    worker.run(once=True)
    assert states(engine) == dict.fromkeys(("half", "none", "exit"), InboxState.PARKED) | {
        "2": InboxState.DONE
    }
    assert rows(engine)["half"].error == "ValueError: half of a pair: \\ud800"
    assert rows(engine)["none"].error == "WordlessError (its text cannot be read)"
    assert rows(engine)["exit"].error == "SystemExit: 3"


def test_an_async_handler_that_lets_a_cancellation_of_its_own_out_has_failed(engine, stored):
    stored.store([message("1")])

    async def handler(_session, _one):
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    stored.worker(handler, settings=QUICK).run(once=True)
    assert rows(engine)["1"].error.startswith("CancelledError")
    assert states(engine) == {"1": InboxState.PARKED}


def test_a_database_that_loses_commits_makes_no_dead_letters(engine, stored):
    """Attempts that came to nothing though their worker lived are none that it died of."""
    stored.store([message("1")])
    lost = [0]
    worker = stored.worker(bill, settings=replace(QUICK, rest_seconds=0.0))
    attempts = worker._attempts

    def fence(connection, row):
        lost[0] += 1
        if lost[0] <= 5:
            raise TransientError("the connection is gone")
        attempts.fence(connection, row)

    worker._attempts = replace(attempts, fence=fence)
    worker.run(once=True)
    assert (lost[0], worker.counts.withdrawn, states(engine)) == (6, 5, {"1": InboxState.DONE})
    assert read_effects(engine) == ["1"]


def test_a_permanent_error_parks_at_once(engine, stored):
    stored.store([message("1")])

    def handler(_session, _one):
        raise PermanentError("never")

    stored.worker(handler, settings=QUICK).run(once=True)
    assert rows(engine)["1"].attempts == 1
    assert states(engine) == {"1": InboxState.PARKED}


def test_a_parked_message_holds_its_key_where_that_is_asked_for(engine, stored):
    stored.store(messages(6, keys=2))

    def handler(session, one):
        if one.message_id == "0-0":
            raise PermanentError("never")
        bill(session, one)

    stored.worker(handler, settings=replace(QUICK, parked_holds_key=True)).run(once=True)
    assert read_effects(engine) == ["1-0", "1-1", "1-2"]
    assert states(engine)["0-1"] == InboxState.WAITING


def test_an_error_at_commit_is_the_messages_own(engine, stored):
    """A session writes at the latest when it is flushed; what the database refuses then counts as a failure."""
    from sqlalchemy.orm import DeclarativeBase

    from inbox_examples import effects

    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __table__ = effects

    stored.store([message("1")])

    def handler(session, _one):
        session.add(Effect(message=None))

    stored.worker(handler, settings=QUICK).run(once=True)
    assert "IntegrityError" in rows(engine)["1"].error
    assert states(engine) == {"1": InboxState.PARKED}


def test_two_workers_share_an_inbox_and_nothing_is_done_twice(engine, stored):
    stored.store(messages(80, keys=16))
    sharing = replace(QUICK, lease_seconds=2.0)
    workers = [stored.worker(bill, settings=sharing, holder=name) for name in "ab"]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    until(lambda: len(read_effects(engine)) >= 80)
    stored.store([message(f"later-{n}", key=f"later-{n}") for n in range(40)])
    until(lambda: len(read_effects(engine)) >= 120)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(30)
    done = read_effects(engine)
    assert len(done) == len(set(done)) == 120
    assert sum(worker.counts.done for worker in workers) == 120


def run_out(engine: Engine, holder: str) -> None:
    """As if this worker had been silent for longer than its lease."""
    for table in (lease_tables.leases, lease_tables.members):
        with begin(engine, whose="test") as connection:
            connection.execute(update(table).where(table.c.holder == holder).values(expires_at=1.0))


def take_over(engine: Engine) -> None:
    """As `run_out` and another worker's take-over, for all buckets."""
    with begin(engine, whose="test") as connection:
        leases = lease_tables.leases
        connection.execute(
            update(leases).values(
                holder="other", token=leases.c.token + 1, expires_at=leases.c.expires_at + 60
            )
        )


@pytest.fixture
def overtaken(stored, engine) -> Callable[..., list[str]]:
    """Effects after a worker's buckets were taken over while its handler was at work."""

    def run(*, fenced: bool = True) -> list[str]:
        stored.store([message("1")])
        begun, go_on = threading.Event(), threading.Event()

        def handler(session, one):
            begun.set()
            go_on.wait(20)
            session.execute(effect(one, "frozen"))

        worker = stored.worker(handler, settings=replace(QUICK, lease_seconds=60.0))
        if not fenced:
            object.__setattr__(worker._attempts, "fence", lambda _connection, _row: None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert begun.wait(20)
        if engine.dialect.name == "sqlite":
            # The handler's transaction holds SQLite's only lock, so the take-over is seen through its own eyes.
            worker._dispatcher._share = replace(worker._dispatcher._share, tokens={})
        else:
            take_over(engine)
        go_on.set()
        until(lambda: worker.counts.withdrawn + worker.counts.done > 0)
        worker.stop()
        thread.join(30)
        return read_effects(engine)

    return run


def test_a_worker_whose_bucket_was_taken_over_commits_nothing(overtaken, engine):
    assert overtaken() == []
    assert states(engine) == {"1": InboxState.WAITING}


def test_the_take_over_would_show_if_the_lease_were_ignored(overtaken):
    assert overtaken(fenced=False) == ["1"]


def test_a_message_held_by_a_frozen_worker_keeps_only_its_key_waiting(engine, stored):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    stored.store(messages(4, keys=2))
    with Session(engine) as frozen:
        frozen.execute(
            update(inbox).where(inbox.c.message_id == "header:orders/0-0").values(state=InboxState.DONE)
        )
        frozen.flush()
        worker = stored.worker(bill, settings=QUICK)
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: len(read_effects(engine)) == 2)
        assert read_effects(engine) == ["1-0", "1-1"]
        frozen.rollback()
    until(lambda: len(read_effects(engine)) == 4)
    worker.stop()
    thread.join(30)
    assert read_effects(engine)[2:] == ["0-0", "0-1"]


def test_what_a_worker_died_of_runs_alone_and_is_parked_in_the_end(engine, stored):
    stored.store([message(str(n), key=str(n)) for n in range(4)])
    with begin(engine, whose="test") as connection:
        connection.execute(
            update(inbox)
            .where(inbox.c.message_id.in_(["header:orders/0", "header:orders/1"]))
            .values(attempts=2)
        )
        connection.execute(update(inbox).where(inbox.c.message_id == "header:orders/1").values(attempts=3))
    running, beside = [0], {}

    def handler(_session, one):
        running[0] += 1
        time.sleep(0.02)
        beside[one.message_id] = running[0]
        running[0] -= 1

    stored.worker(handler, settings=QUICK).run(once=True)
    assert states(engine) == {
        "0": InboxState.DONE,
        "1": InboxState.PARKED,
        "2": InboxState.DONE,
        "3": InboxState.DONE,
    }
    assert beside["0"] == 1
    assert "died while it handled this message, 3 times" in rows(engine)["1"].error


def test_finished_messages_are_forgotten_after_their_time_and_others_never(engine, stored):
    stored.store([message("done"), message("waiting", key="w"), message("parked", key="p")])

    def handler(session, one):
        if one.key == b"p":
            raise PermanentError("never")
        if one.key == b"w":
            raise ValueError("later")
        bill(session, one)

    slow = replace(QUICK, backoff=Backoff(base_seconds=3600, longest_seconds=3600))
    stored.worker(handler, settings=slow, keep="1d").run(once=True)
    assert stored.clean_up().messages == 0
    with begin(engine, whose="test") as connection:
        connection.execute(update(inbox).values(keep_until=inbox.c.keep_until - 90_000, received_at=1.0))
    assert stored.clean_up().messages == 1
    assert states(engine) == {"waiting": InboxState.WAITING, "parked": InboxState.PARKED}
    assert stored.store([message("done")]).new == 1


def test_an_async_worker_that_is_stopped_lets_handlers_end(engine, stored):
    stored.store([message("1")])
    begun = threading.Event()

    async def handler(session, one):
        begun.set()
        await asyncio.sleep(0.2)
        await session.execute(effect(one))

    worker = stored.worker(handler, settings=QUICK)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(20)
    worker.stop()
    thread.join(30)
    assert read_effects(engine) == ["1"]


def test_an_async_handler_that_outlasts_the_drain_is_cancelled_and_undone(engine, stored):
    stored.store([message("1")])
    begun = threading.Event()

    async def handler(session, one):
        await session.execute(effect(one))
        begun.set()
        await asyncio.sleep(60)

    worker = stored.worker(handler, settings=replace(QUICK, drain_seconds=0.1))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(20)
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert read_effects(engine) == []
    assert states(engine) == {"1": InboxState.WAITING}
    row = rows(engine)["1"]
    assert (row.attempts, row.answered) == (1, 1)


def test_a_worker_without_tables_says_how_they_are_made(catalog_url):
    unmade = StoredInbox("orders", catalog_url)
    with pytest.raises(ConfigurationError, match="oncehouse inbox init --yes"):
        unmade.store([message("1")])
    with pytest.raises(ConfigurationError, match="oncehouse inbox init --yes"):
        unmade.worker(bill, settings=QUICK).run(once=True)
    unmade.create_tables()
    assert unmade.store([message("1")]).new == 1
    unmade.close()


@pytest.mark.parametrize("name", ["", "a/b", "x" * 101, "Ä"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ConfigurationError, match="is not a name for an inbox"):
        StoredInbox(name, "sqlite://")
