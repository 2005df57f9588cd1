"""`@inbox.once` on each database: what was handled is skipped, what rolled back comes again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import Engine, create_engine, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from inbox_examples import effect, message, prepare, read_effects
from oncehouse.common.database import begin, open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.expiry import clean_up
from oncehouse.messaging.inbox.once import Inbox, InboxCounts
from oncehouse.messaging.inbox.stored import open_async_engine
from oncehouse.messaging.inbox.tables import handled_ids


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    opened = open_engine(catalog_url, setting="database")
    prepare(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def bill(session, given):
    session.execute(effect(given))


def bill_all(session, given):
    for one in given:
        session.execute(effect(one))


def deliver(engine: Engine, handler, given) -> None:
    with Session(engine) as session, session.begin():
        handler(session, given)


def test_a_message_that_comes_again_is_skipped_and_counted(engine, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    for message_id in ("1", "2", "1", "1"):
        deliver(engine, handler, message(message_id))
    assert read_effects(engine) == ["1", "2"]
    assert inbox.counts == {"billing": InboxCounts(handled=2, repeated=2)}


def test_consumers_remember_apart(engine, inbox):
    for consumer in ("billing", "mail"):
        deliver(engine, inbox.once(consumer=consumer, keep="7d")(bill), message("1"))
    assert read_effects(engine) == ["1", "1"]


def test_what_rolled_back_is_not_remembered(engine, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    with Session(engine) as session:
        handler(session, message("1"))
        session.rollback()
    deliver(engine, handler, message("1"))
    assert read_effects(engine) == ["1"]


def test_a_caller_who_swallows_the_error_and_commits_has_not_remembered_the_message(engine, inbox):
    failing = [True]

    @inbox.once(consumer="billing", keep="7d")
    def handler(session, given):
        if failing.pop():
            raise RuntimeError("no")
        session.execute(effect(given))

    with Session(engine) as session, session.begin(), suppress(RuntimeError):
        handler(session, message("1"))
    failing[:] = [False]
    deliver(engine, handler, message("1"))
    assert read_effects(engine) == ["1"]


def test_a_plain_connection_serves_as_a_session(engine, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    for _ in range(2):
        with engine.begin() as connection:
            handler(connection, message("1"))
    assert read_effects(engine) == ["1"]


def test_of_a_batch_the_handler_gets_only_what_is_new(engine, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill_all)
    deliver(engine, handler, [message("2"), message("1"), message("2")])
    deliver(engine, handler, [message(str(n)) for n in range(4)])
    deliver(engine, handler, [message("0")])
    deliver(engine, handler, [])
    assert read_effects(engine) == ["2", "1", "0", "3"]
    assert inbox.counts["billing"] == InboxCounts(handled=4, repeated=4)


def test_a_large_batch_is_one_statement(engine, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(lambda _session, _given: None)
    deliver(engine, handler, [message(str(n)) for n in range(5_000)])
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(handled_ids)).scalar() == 5_000


@pytest.mark.parametrize(
    "strange", ["", "a\0b", "x" * 5_000, "sha256:1", "\x1b[31m", "'; DROP TABLE effects; --", "ünïcödé"]
)
def test_an_id_of_any_kind_is_remembered(engine, inbox, strange):
    handler = inbox.once(consumer="billing", keep="7d")(lambda session, _given: bill(session, message("1")))
    for _ in range(2):
        deliver(engine, handler, message(strange))
    assert read_effects(engine) == ["1"]


def test_an_async_handler_sees_each_message_once(engine, inbox):
    @inbox.once(consumer="billing", keep="7d")
    async def handler(session, given):
        await session.execute(effect(given))

    async def run() -> None:
        opened = open_async_engine(engine)
        for message_id in ("1", "1", "2"):
            async with AsyncSession(opened) as session, session.begin():
                await handler(session, message(message_id))
        async with opened.begin() as connection:
            await handler(connection, message("2"))
        async with AsyncSession(opened) as session:
            await handler(session, message("3"))
            await session.rollback()
        await opened.dispose()

    asyncio.run(run())
    assert read_effects(engine) == ["1", "2"]
    assert inbox.counts["billing"] == InboxCounts(handled=3, repeated=2)


def test_sessions_and_handlers_of_different_kinds_are_told_apart(engine, inbox):
    plain = inbox.once(consumer="plain", keep="7d")(bill)

    @inbox.once(consumer="async", keep="7d")
    async def later(session, given):
        raise AssertionError

    async def give_async_session() -> None:
        opened = open_async_engine(engine)
        async with AsyncSession(opened) as session:
            plain(session, message("1"))

    with pytest.raises(
        ConfigurationError, match="bill is a plain function and was called with an async session"
    ):
        asyncio.run(give_async_session())
    with (
        Session(engine) as session,
        pytest.raises(
            ConfigurationError, match="later is an async function and was called with a plain session"
        ),
    ):
        asyncio.run(later(session, message("1")))


def test_missing_tables_are_named_with_the_command_that_makes_them(catalog_url, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    engine = create_engine(catalog_url)
    with (
        engine.begin() as connection,
        pytest.raises(ConfigurationError, match=r"Inbox of billing: .*oncehouse inbox init --yes"),
    ):
        handler(connection, message("1"))
    engine.dispose()


def test_two_handlers_of_one_consumer_are_refused(inbox):
    inbox.once(consumer="billing", keep="7d")(bill)
    with pytest.raises(ConfigurationError, match="has a handler already"):
        inbox.once(consumer="billing", keep="7d")


@pytest.mark.parametrize(
    ("consumer", "keep"), [("", "7d"), ("a\nb", "7d"), ("a", "soon"), ("a", 0), ("a", "0s")]
)
def test_a_bad_name_or_time_is_refused(inbox, consumer, keep):
    with pytest.raises(ConfigurationError):
        inbox.once(consumer=consumer, keep=keep)


def make_older(engine: Engine, seconds: float) -> None:
    with begin(engine, whose="test") as connection:
        connection.execute(update(handled_ids).values(keep_until=handled_ids.c.keep_until - seconds))


def remembered(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(select(handled_ids.c.message_id)).scalars())


def run_cleaning(engine: Engine, batch_rows: int = 100) -> list[int]:
    """How many ids each transaction deleted."""
    deleted = []

    def transact(change):
        with begin(engine, whose="test") as connection:
            deleted.append(change(connection))
            return deleted[-1]

    assert clean_up(transact, batch_rows=batch_rows).ids == sum(deleted)
    return deleted[:-1]


def test_cleaning_forgets_what_is_past_its_time_and_nothing_younger(engine, inbox):
    week = inbox.once(consumer="week", keep="7d")(bill)
    day = inbox.once(consumer="day", keep="1d")(bill)
    deliver(engine, week, message("week"))
    deliver(engine, day, message("day"))
    make_older(engine, 86_000)
    assert run_cleaning(engine) == [0]
    make_older(engine, 1_000)
    assert run_cleaning(engine) == [1]
    assert remembered(engine) == ["header:orders/week"]
    deliver(engine, day, message("day"))
    assert read_effects(engine) == ["week", "day", "day"]


def test_cleaning_goes_on_in_batches_of_bounded_size(engine, inbox):
    handler = inbox.once(consumer="billing", keep="1s")(bill_all)
    deliver(engine, handler, [message(str(n)) for n in range(10)])
    make_older(engine, 10)
    assert run_cleaning(engine, batch_rows=4) == [4, 4, 2]


def test_a_repeat_does_not_make_the_memory_longer(engine, inbox):
    handler = inbox.once(consumer="billing", keep="1d")(bill)
    deliver(engine, handler, message("1"))
    make_older(engine, 90_000)
    deliver(engine, handler, message("1"))
    assert run_cleaning(engine) == [1]


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_delivery_waits_for_the_first_and_runs_only_if_that_rolled_back(
    engine, inbox, first_commits
):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    writer = engine.execution_options(oncehouse_writes=True)
    done = threading.Event()

    def second() -> None:
        with Session(writer) as session, session.begin():
            handler(session, message("1"))
        done.set()

    with Session(writer) as session:
        handler(session, message("1"))
        thread = threading.Thread(target=second)
        thread.start()
        assert not done.wait(0.3), "the second delivery did not wait"
        session.commit() if first_commits else session.rollback()
    thread.join(30)
    assert read_effects(engine) == ["1"]
    counts = inbox.counts["billing"]
    assert (counts.handled, counts.repeated) == ((1, 1) if first_commits else (2, 0))


def test_a_connection_that_commits_by_itself_is_refused(postgres_url, inbox):
    handler = inbox.once(consumer="billing", keep="7d")(bill)
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="commits every statement by itself"),
    ):
        handler(connection, message("1"))
    engine.dispose()
