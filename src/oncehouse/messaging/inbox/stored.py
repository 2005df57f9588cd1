"""`StoredInbox`: messages are stored first and handled later, at the workers' own pace, in order by key.

`store` is a handler for the batch consumer: once it returns, the messages are committed, and so may be the offset. A
repeated message is only counted, as long as the first one is kept.
"""

from __future__ import annotations

import inspect
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from oncehouse.common.database import keepalive_arguments, open_engine
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.database import check_dialect, open_reader, transact
from oncehouse.messaging.inbox.dispatcher import Dispatcher
from oncehouse.messaging.inbox.expiry import Cleaned, clean_database
from oncehouse.messaging.inbox.handler_call import HandlerCaller
from oncehouse.messaging.inbox.ids import NO_SOURCES, Sources, check_inbox_name, check_keep, check_sources
from oncehouse.messaging.inbox.store_messages import Receipt, store_messages, store_one_message
from oncehouse.messaging.inbox.tables import ABSENT, create_tables, inbox
from oncehouse.messaging.inbox.types import StoreResult, WorkerSettings
from oncehouse.messaging.inbox.worker import InboxWorker
from oncehouse.messaging.message import Message


class StoredInbox:
    def __init__(self, name: str, database: str | Engine, *, sources: Sources = NO_SOURCES) -> None:
        """`database` is a URL or an SQLAlchemy engine: PostgreSQL or SQLite.

        `sources` maps topics to the topic whose ids they share, such as {"orders-mirror": "orders"}.
        """
        self.name = check_inbox_name(name)
        self._sources = check_sources(sources)
        self.engine = open_engine(database, setting="database") if isinstance(database, str) else database
        check_dialect(self.engine.dialect.name)
        self._lock = threading.Lock()
        self._stored = StoreResult(new=0, repeated=0)

    @property
    def counts(self) -> StoreResult:
        """New and repeated messages since this process started."""
        with self._lock:
            return self._stored

    def create_tables(self) -> None:
        """Create the tables of the inbox; existing ones are kept."""
        with transact(self.engine, "Creating the tables of the inbox", absent=ABSENT) as connection:
            create_tables(connection)

    def check(self) -> None:
        """Raises TransientError if the database is unavailable, ConfigurationError if the tables are missing."""
        with open_reader(
            self.engine, f"Inbox {self.name}: looking for its table", absent=ABSENT
        ) as connection:
            connection.execute(select(inbox.c.sequence).limit(1))

    def store(self, messages: Iterable[Message]) -> StoreResult:
        """Store the messages that are new; returns once they are committed."""
        listed = list(messages)
        with transact(self.engine, f"Inbox {self.name}: storing messages", absent=ABSENT) as connection:
            stored = store_messages(connection, self.name, listed, self._sources)
        self._count(stored)
        return stored

    def store_one(self, message: Message) -> Receipt:
        """As `store`, and distinguishes a repeat from another message with the same id."""
        with transact(self.engine, f"Inbox {self.name}: storing a message", absent=ABSENT) as connection:
            receipt = store_one_message(connection, self.name, message, self._sources)
        new = int(receipt is Receipt.NEW)
        self._count(StoreResult(new=new, repeated=1 - new))
        return receipt

    def _count(self, stored: StoreResult) -> None:
        with self._lock:
            self._stored = StoreResult(
                new=self._stored.new + stored.new, repeated=self._stored.repeated + stored.repeated
            )

    def clean_up(self) -> Cleaned:
        """Delete expired ids and messages of every inbox in this database."""
        return clean_database(self.engine)

    def worker(
        self,
        handler: Callable[..., Any],
        *,
        keep: str | float | None = None,
        settings: WorkerSettings | None = None,
        sessions: Callable[[], Any] | None = None,
        holder: str | None = None,
        report: Callable[[TransientError], None] | None = None,
    ) -> InboxWorker:
        """A worker for a handler `(session, message)`, plain or async, that writes through the given session.

        `sessions` opens sessions (a sessionmaker, or an async_sessionmaker for an async handler) of the same
        database; by default they use this inbox's engine. `keep` is how long a finished message is kept, so that
        repeats are skipped (7 days). `report` is called when the database is unavailable.
        """
        chosen = settings or WorkerSettings()
        if keep is not None:
            chosen = replace(chosen, keep_seconds=check_keep(keep))
        dispatcher = Dispatcher(self.engine, self.name, chosen, holder=holder or make_holder())
        dispose = None
        if sessions is None and inspect.iscoroutinefunction(handler):
            own = open_async_engine(self.engine, connections=chosen.concurrency)
            sessions, dispose = async_sessionmaker(own), own.dispose
        attempts = HandlerCaller(
            handler=handler,
            sessions=sessions or sessionmaker(self.engine.execution_options(oncehouse_writes=True)),
            keep_seconds=chosen.keep_seconds,
            fence=dispatcher.fence,
        )
        return InboxWorker(
            dispatcher,
            attempts,
            concurrency=chosen.concurrency,
            drain_seconds=chosen.drain_seconds,
            report=report,
            dispose=dispose,
        )

    def close(self) -> None:
        self.engine.dispose()


def open_async_engine(engine: Engine, *, connections: int = 8) -> AsyncEngine:
    """The same database for async sessions. psycopg supports both kinds; SQLite needs aiosqlite."""
    on_sqlite = engine.dialect.name == "sqlite"
    url = engine.url.set(drivername="sqlite+aiosqlite") if on_sqlite else engine.url
    arguments = {} if on_sqlite else keepalive_arguments(url)
    try:
        return create_async_engine(url, pool_size=connections, pool_pre_ping=True, connect_args=arguments)
    except ModuleNotFoundError:
        raise ConfigurationError(
            "An async handler on SQLite needs the package aiosqlite; install it, or write a plain handler."
        ) from None


def make_holder() -> str:
    """The holder's name in leases: host, process, and a random part that distinguishes workers of one process."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
