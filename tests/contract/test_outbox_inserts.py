"""Messages are in the outbox when their transaction commits, and are not when it does not, whoever's it is.

One suite over plain and asynchronous sessions and connections of SQLAlchemy and over Django, on each database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from django_site import open_database
from oncehouse.common.database import open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.header_encoding import decode_headers
from oncehouse.messaging.outbox.encoding import OutboxMessage
from oncehouse.messaging.outbox.outbox import Outbox
from oncehouse.messaging.outbox.tables import bucket_of

OUTBOX = Outbox()


class RollBackError(Exception):
    """Ends a transaction the other way."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """In one transaction: add `first`; in a savepoint that is undone add `undone`; add `last`; end it."""

    first: list[OutboxMessage] = field(default_factory=list)
    undone: list[OutboxMessage] = field(default_factory=list)
    last: list[OutboxMessage] = field(default_factory=list)
    commits: bool = True

    def end(self) -> None:
        if not self.commits:
            raise RollBackError


class Plain:
    def __init__(self, url: str, kind: str) -> None:
        self._url, self._kind = url, kind

    def run(self, script: Script) -> list[UUID]:
        ids: list[UUID] = []
        with suppress(RollBackError), self._open() as session, session.begin():
            ids += OUTBOX.add_many(session, script.first)
            savepoint = session.begin_nested()
            OUTBOX.add_many(session, script.undone)
            savepoint.rollback()
            ids += [OUTBOX.add(session, m.topic, m.key, m.value, m.headers) for m in script.last]
            script.end()
        return ids

    @contextmanager
    def _open(self) -> Iterator[Any]:
        engine = open_engine(self._url, setting="database")
        try:
            if self._kind == "connection":
                with engine.connect() as connection:
                    yield connection
            elif self._kind == "session":
                with Session(engine) as session:
                    yield session
            else:
                scoped = scoped_session(sessionmaker(engine))
                try:
                    yield scoped
                finally:
                    scoped.remove()
        finally:
            engine.dispose()


class Asynchronous:
    def __init__(self, url: str, kind: str) -> None:
        parsed = make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        self._url = parsed.set(drivername="sqlite+aiosqlite") if sqlite else parsed
        self._kind = kind

    def run(self, script: Script) -> list[UUID]:
        return asyncio.run(self._run(script))

    async def _run(self, script: Script) -> list[UUID]:
        ids: list[UUID] = []
        with suppress(RollBackError):
            async with self._open() as session, session.begin():
                ids += await OUTBOX.add_many(session, script.first)
                savepoint = await session.begin_nested()
                await OUTBOX.add_many(session, script.undone)
                await savepoint.rollback()
                ids += [await OUTBOX.add(session, m.topic, m.key, m.value, m.headers) for m in script.last]
                script.end()
        return ids

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        engine = create_async_engine(self._url)
        try:
            if self._kind == "connection":
                async with engine.connect() as connection:
                    yield connection
            elif self._kind == "session":
                async with AsyncSession(engine) as session:
                    yield session
            else:
                scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
                try:
                    yield scoped
                finally:
                    await scoped.remove()
        finally:
            await engine.dispose()


class Django:
    def __init__(self, url: str, _kind: str) -> None:
        self._url = url

    def run(self, script: Script) -> list[UUID]:
        ids: list[UUID] = []
        with suppress(RollBackError), open_database(self._url) as alias:
            from django.db import transaction

            from oncehouse.messaging.django import outbox

            with transaction.atomic(using=alias):
                ids += outbox.add_many(script.first, using=alias)
                with suppress(RollBackError), transaction.atomic(using=alias):
                    outbox.add_many(script.undone, using=alias)
                    raise RollBackError
                ids += [outbox.add(m.topic, m.key, m.value, m.headers, using=alias) for m in script.last]
                script.end()
        return ids


WAYS = {
    "Connection": (Plain, "connection"),
    "Session": (Plain, "session"),
    "scoped_session": (Plain, "scoped"),
    "AsyncConnection": (Asynchronous, "connection"),
    "AsyncSession": (Asynchronous, "session"),
    "async_scoped_session": (Asynchronous, "scoped"),
    "Django": (Django, ""),
}


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    opened = open_engine(catalog_url, setting="database")
    yield opened
    opened.dispose()


@pytest.fixture
def made(engine) -> Engine:
    with engine.begin() as connection:
        OUTBOX.create(connection)
    return engine


@pytest.fixture(params=list(WAYS))
def writer(request, made, catalog_url):
    way, kind = WAYS[request.param]
    return way(catalog_url, kind)


def read(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(OUTBOX.table).order_by(OUTBOX.table.c.seq)).all())


def message(number: int, **changes: Any) -> OutboxMessage:
    return OutboxMessage(
        **({"topic": "orders", "key": f"key {number}", "value": {"number": number}} | changes)
    )


def test_what_a_transaction_commits_is_there_in_its_order_and_as_the_relay_reads_it(writer, made):
    headers = {"trace": "ä", "raw": b"\xff\0"}
    script = Script(
        first=[message(1, headers=headers), message(2, key=None, value=None)], last=[message(3, key=b"\0k")]
    )
    ids = writer.run(script)
    first, second, third = read(made)
    assert [first.id, second.id, third.id] == ids
    assert (first.topic, first.key, first.value) == ("orders", b"key 1", b'{"number":1}')
    assert decode_headers(first.headers) == [("trace", "ä".encode()), ("raw", b"\xff\0")]
    assert (second.key, second.value, second.headers) == (None, None, None)
    assert third.key == b"\0k"
    assert [row.bucket for row in (first, second, third)] == [
        bucket_of(b"key 1", ids[0]),
        bucket_of(None, ids[1]),
        bucket_of(b"\0k", ids[2]),
    ]
    waits = [(row.attempts, row.last_error, row.sent_at, row.parked_at) for row in (first, second, third)]
    assert waits == [(0, None, None, None)] * 3
    assert all(1.7e9 < row.created_at < 1e10 for row in (first, second, third))


def test_what_a_transaction_or_savepoint_takes_back_was_never_there(writer, made):
    writer.run(Script(first=[message(1)], undone=[message(2)], last=[message(3)], commits=False))
    assert read(made) == []
    kept = writer.run(Script(first=[message(4)], undone=[message(5), message(6)], last=[message(7)]))
    assert [row.id for row in read(made)] == kept
    assert [row.value for row in read(made)] == [b'{"number":4}', b'{"number":7}']


def test_a_message_that_cannot_be_sent_leaves_none_of_its_call(writer, made):
    with pytest.raises(ConfigurationError, match="the value is of type int"):
        writer.run(Script(first=[message(1), message(2, value=7)]))
    assert read(made) == []


def test_many_messages_keep_their_order(writer, made):
    ids = writer.run(Script(first=[message(number, key="same") for number in range(500)]))
    assert [row.id for row in read(made)] == ids
    assert len({row.bucket for row in read(made)}) == 1


def test_no_messages_are_no_rows(writer, made):
    assert writer.run(Script()) == []
    assert read(made) == []


@pytest.mark.parametrize("way", ["Connection", "Session", "AsyncSession", "Django"])
def test_without_its_table_the_outbox_says_how_it_is_made(way, catalog_url):
    kind, name = WAYS[way]
    advice = "manage.py migrate" if way == "Django" else "outbox init --yes"
    with pytest.raises(ConfigurationError, match=f"no table oncehouse_outbox .*{advice}"):
        kind(catalog_url, name).run(Script(last=[message(1)]))


def test_a_connection_that_commits_by_itself_is_refused(made):
    with (
        made.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ConfigurationError, match="connection in AUTOCOMMIT"),
    ):
        OUTBOX.add(connection, "orders", None, b"")
    assert read(made) == []


def test_an_engine_that_commits_by_itself_is_refused(postgres_url):
    """On SQLite nobody can tell: sqlite3's switch is off as well where a program begins its transactions by hand."""
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        OUTBOX.create(connection)
    with Session(engine) as session, pytest.raises(ConfigurationError, match="connection in AUTOCOMMIT"):
        OUTBOX.add(session, "orders", None, b"")
    assert read(engine) == []
    engine.dispose()


def test_an_engine_in_place_of_a_transaction_is_refused(made):
    with pytest.raises(ConfigurationError, match="was given a Engine; give it the session or connection"):
        OUTBOX.add(made, "orders", None, b"")


def test_errors_of_the_callers_own_transaction_stay_the_drivers(made, monkeypatch):
    """A retry loop around the transaction must recognise them."""
    with Session(made) as session, session.begin():
        taken = OUTBOX.add(session, "orders", "k", b"")
    monkeypatch.setattr("oncehouse.messaging.outbox.row_builder.make_id", lambda: taken)
    with Session(made) as session, pytest.raises(IntegrityError), session.begin():
        OUTBOX.add(session, "orders", "k", b"")


def test_an_outbox_may_have_another_name_and_limit(engine):
    mine = Outbox("sales_outbox", max_bytes=100)
    with engine.begin() as connection:
        mine.create(connection)
        mine.create(connection)
        mine.add(connection, "sales", None, b"x")
        with pytest.raises(ConfigurationError, match="the limit is 100"):
            mine.add(connection, "sales", None, b"x" * 100)
    with engine.connect() as connection:
        assert [row.topic for row in connection.execute(select(mine.table))] == ["sales"]


def test_metadata_makes_the_tables_too(engine):
    OUTBOX.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        OUTBOX.add(session, "orders", None, b"")
    assert len(read(engine)) == 1


def test_the_statements_are_told_for_each_database_and_for_no_other():
    assert any("TRIGGER" in statement for statement in OUTBOX.ddl("postgresql"))
    assert not any("TRIGGER" in statement for statement in OUTBOX.ddl("sqlite"))
    with pytest.raises(ConfigurationError, match="'mysql' is not a database of the outbox"):
        OUTBOX.ddl("mysql")
