"""What messaging needs to know of a SQL database: how to open it, its own clock, and how its errors read.

PostgreSQL and SQLite. Leases and expiry go by the database's clock, never by a host's. Statements run on connections
that may be somebody else's, so nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Connection, Engine, Float, create_engine, event, literal_column, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError

SUPPORTED = ("postgresql", "sqlite")
SQLITE_BUSY_SECONDS = 60

# Busy, locked, a failing disk, a full one, and a file that cannot be opened just now.
_PASSING_SQLITE_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
# undefined_table and undefined_column; SQLite has one code for every mistake, and only its words differ.
_ABSENT_STATES = {"42P01", "42703"}
_ABSENT_WORDS = ("no such table", "no such column", "has no column named")


def parse_url(url: str) -> URL:
    advice = "write postgresql+psycopg://user:password@host/database or sqlite:///file.db"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(f"database is not a database URL; {advice}") from None
    check_dialect(parsed.get_backend_name())
    return parsed


def check_dialect(name: str) -> str:
    if name not in SUPPORTED:
        raise ConfigurationError(f"{name} is not supported for messaging; use {' or '.join(SUPPORTED)}")
    return name


def open_engine(url: str, *, pool_size: int = 8) -> Engine:
    """An engine for our own processes. SQLite's transactions begin as writers, so that they queue up."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed)
    try:
        return create_engine(
            parsed, pool_pre_ping=True, pool_size=pool_size, isolation_level="READ COMMITTED"
        )
    except (NoSuchModuleError, ModuleNotFoundError):
        raise ConfigurationError(
            f"database asks for the driver {parsed.drivername!r}, which is not installed; write postgresql+psycopg://…"
        ) from None


def _open_sqlite(url: URL) -> Engine:
    engine = create_engine(
        url,
        connect_args={"timeout": SQLITE_BUSY_SECONDS, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would be refused if another wrote in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def clock(dialect: str) -> ColumnElement[float]:
    """Now, in seconds since 1970, on the database's clock."""
    if dialect == "sqlite":
        return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)
    return literal_column("extract(epoch from clock_timestamp())::double precision", Float)


def read_clock(connection: Connection) -> float:
    return float(connection.execute(select(clock(connection.dialect.name))).scalar_one())


@contextmanager
def wrapped_errors(what: str, *, absent: str) -> Iterator[None]:
    """Errors of the driver as ours. `what` names what was attempted, `absent` says how missing tables are made."""
    try:
        yield
    except SQLAlchemyError as error:
        raise wrap_error(error, what, absent=absent) from error


def wrap_error(error: SQLAlchemyError, what: str, *, absent: str) -> OncehouseError:
    original = error.orig if isinstance(error, DBAPIError) else None
    text = (str(original or error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, DBAPIError) and is_absent(error):
        return ConfigurationError(f"{what}: {text}. {absent}")
    if isinstance(error, DBAPIError) and is_passing(error):
        return TransientError(
            f"{what}: the database does not answer or is busy ({text}); it may be tried again"
        )
    return PermanentError(f"{what}: the database refused it ({text}); nothing was written")


def is_absent(error: DBAPIError) -> bool:
    """Whether a table or a column is missing."""
    if getattr(error.orig, "sqlstate", None) in _ABSENT_STATES:
        return True
    return isinstance(error.orig, sqlite3.OperationalError) and any(
        w in str(error.orig) for w in _ABSENT_WORDS
    )


def is_passing(error: DBAPIError) -> bool:
    """Whether the same statement may succeed later: the database is away, busy or out of space."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        # The low byte is the primary code, the rest says more about it.
        return code & 0xFF in _PASSING_SQLITE_CODES
    return isinstance(error, OperationalError)
