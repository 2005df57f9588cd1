"""`Outbox.add`: a message is a row in the caller's own transaction, and becomes real with it or not at all.

Takes SQLAlchemy's sessions and connections, plain or asynchronous; the asynchronous ones run the very same code. It
never commits, rolls back or connects by itself, and leaves the database's errors as they are: they belong to the
caller's transaction, whose retries must recognise them. Django's transactions are `messaging/django/`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar, overload
from uuid import UUID

from sqlalchemy import Connection, MetaData, Table, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from oncehouse.common.database import is_absent
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.encoding import (
    DEFAULT_MAX_BYTES,
    HeaderValues,
    Key,
    OutboxMessage,
    Value,
)
from oncehouse.messaging.outbox.row_builder import NewRow, make_rows
from oncehouse.messaging.outbox.tables import (
    DEFAULT_TABLE,
    OutboxTables,
    create_outbox,
    ddl_statements,
    outbox_tables,
)

Plain: TypeAlias = Session | scoped_session[Any] | Connection
Asynchronous: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

Answer = TypeVar("Answer")

_ASYNCHRONOUS = (AsyncSession, async_scoped_session, AsyncConnection)
_DIALECTS = {"postgresql": postgresql.dialect, "sqlite": sqlite.dialect}


class Outbox:
    """The writing side of one outbox table. Holds no connection; one for the whole program is enough."""

    def __init__(self, table: str = DEFAULT_TABLE, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._tables: OutboxTables = outbox_tables(table)
        self._max_bytes = max_bytes
        self._insert = insert(self._tables.outbox)

    @property
    def table(self) -> Table:
        return self._tables.outbox

    @property
    def metadata(self) -> MetaData:
        """The outbox and the tables of its relays, for Alembic's `target_metadata`."""
        return self._tables.outbox.metadata

    def ddl(self, dialect: str = "postgresql") -> tuple[str, ...]:
        """Every statement that makes the tables, the trigger that wakes relays included; what exists is kept."""
        if dialect not in _DIALECTS:
            raise ConfigurationError(
                f"{dialect!r} is not a database of the outbox; there is {' and '.join(_DIALECTS)}"
            )
        statements = ddl_statements(self._tables, _DIALECTS[dialect]())
        # SQLAlchemy indents with tabs and leaves blanks at line ends; people read and review this.
        return tuple(statement.replace(" \n", "\n") for statement in statements)

    def create(self, connection: Connection) -> None:
        """Run `ddl` in the caller's transaction."""
        create_outbox(connection, self._tables)

    @overload
    def add(
        self, session: Plain, topic: str, key: Key, value: Value, headers: HeaderValues | None = None
    ) -> UUID: ...

    @overload
    def add(
        self, session: Asynchronous, topic: str, key: Key, value: Value, headers: HeaderValues | None = None
    ) -> Coroutine[Any, Any, UUID]: ...

    def add(
        self,
        session: Plain | Asynchronous,
        topic: str,
        key: Key,
        value: Value,
        headers: HeaderValues | None = None,
    ) -> UUID | Coroutine[Any, Any, UUID]:
        """Have one message sent once the transaction commits; returns its id, which it carries as `oncehouse-id`.

        Messages of one key arrive in the order in which their transactions wrote them. With an AsyncSession or
        AsyncConnection the answer is to be awaited. Raises ConfigurationError for what cannot be sent.
        """
        message = OutboxMessage(topic=topic, key=key, value=value, headers=headers)
        return self._hand_over(session, [message], lambda ids: ids[0])

    @overload
    def add_many(self, session: Plain, messages: Iterable[OutboxMessage]) -> list[UUID]: ...

    @overload
    def add_many(
        self, session: Asynchronous, messages: Iterable[OutboxMessage]
    ) -> Coroutine[Any, Any, list[UUID]]: ...

    def add_many(
        self, session: Plain | Asynchronous, messages: Iterable[OutboxMessage]
    ) -> list[UUID] | Coroutine[Any, Any, list[UUID]]:
        """As `add`, for several at once: all of them are written, or none and the first that cannot be is reported."""
        return self._hand_over(session, messages, list)

    def _hand_over(
        self,
        session: Plain | Asynchronous,
        messages: Iterable[OutboxMessage],
        answer: Callable[[list[UUID]], Answer],
    ) -> Answer | Coroutine[Any, Any, Answer]:
        rows = make_rows(messages, max_bytes=self._max_bytes)
        ids = answer([row.id for row in rows])
        if isinstance(session, _ASYNCHRONOUS):
            return self._write_later(session, rows, ids)
        self._write(session, rows)
        return ids

    async def _write_later(self, session: Asynchronous, rows: list[NewRow], ids: Answer) -> Answer:
        opened = session() if isinstance(session, async_scoped_session) else session
        # Hands the plain session or connection within to the plain code.
        await opened.run_sync(self._write, rows)
        return ids

    def _write(self, session: Plain, rows: list[NewRow]) -> None:
        connection = self._connection_of(session)
        _refuse_autocommit(connection)
        if not rows:
            return
        try:
            connection.execute(self._insert, [row.as_parameters() for row in rows])
        except DBAPIError as error:
            if is_absent(error):
                raise ConfigurationError(
                    f"There is no table {self._tables.name} in this database. `oncehouse outbox init --yes` makes it; "
                    "nothing was written."
                ) from error
            raise

    def _connection_of(self, session: Plain) -> Connection:
        if isinstance(session, Connection):
            return session
        if isinstance(session, Session | scoped_session):
            return session.connection(bind_arguments={"clause": self._insert})
        raise ConfigurationError(
            f"outbox.add was given a {type(session).__name__}; give it the session or connection of your transaction: "
            "Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy"
        )


def _refuse_autocommit(connection: Connection) -> None:
    """Without a transaction a message would be sent although the change that it reports may still fail."""
    is_autocommit = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
    # sqlite3's own switch is often off because the program begins its transactions by hand: it proves nothing.
    dialect, driver = connection.dialect, connection.connection.dbapi_connection
    if is_autocommit or (
        dialect.name != "sqlite" and driver is not None and dialect.detect_autocommit_setting(driver)
    ):
        raise ConfigurationError(
            "outbox.add was given a connection in AUTOCOMMIT: the message would be sent even if the change that it "
            "reports is never written. Use a transaction: `with engine.begin() as connection`, or a Session. Nothing "
            "was written."
        )
