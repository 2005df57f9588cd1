"""What differs between SQL databases, in one place: how to connect, the database's own clock, lost connections.

The ledger's catalog and the tables of messaging stand on it. A further dialect is one more branch in each function
here and one more run of the contract suites.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Float,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from oncehouse.common.file_permissions import describe_denied, make_private_file, make_private_folder
from oncehouse.common.redaction import remember
from oncehouse.common.sqlite_lock import WAIT_SECONDS, LockedError, LockWait
from oncehouse.errors import (
    ConfigurationError,
    CorruptFileError,
    FullDiskError,
    OncehouseError,
    PermanentError,
    TransientError,
)

_SUPPORTED = ("sqlite", "postgresql")

# Busy, locked, a failing disk, a full one, and a file that cannot be opened just now.
_PASSING_SQLITE_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
_LOCKED_SQLITE_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DENIED_SQLITE_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_DAMAGED_SQLITE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SHUT_OUT_WORDS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "is not permitted to log in",
)
ALL_TAKEN = "all connections of this process are in use, and none came free"
# undefined_table and undefined_column; SQLite has one code for every mistake, and only its words differ.
_ABSENT_TABLE_STATE, _ABSENT_TABLE_WORDS = "42P01", "no such table"
_ABSENT_STATES = {_ABSENT_TABLE_STATE, "42703"}
_ABSENT_WORDS = (_ABSENT_TABLE_WORDS, "no such column", "has no column named")
_POSTGRES_DISK_FULL = "53100"
_MIGRATION_LOCK = 0x6F6E6365
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_EFFECTIVE_IDS = os.access in os.supports_effective_ids
# A peer that vanished without a word (a pulled cable, a forgetful firewall) is noticed in a minute, not in two hours.
_KEEPALIVE = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long PostgreSQL is waited for."""

    connect_seconds: int
    statement_seconds: int
    pool_seconds: int
    """For a connection that others of this process have."""


LOOKING = Patience(connect_seconds=5, statement_seconds=10, pool_seconds=5)
"""For commands that show a state, and read more than this database. Working processes wait as long as it takes."""


def open_engine(
    url: str,
    *,
    setting: str,
    ping: bool = True,
    patience: Patience | None = None,
    lock_seconds: float = WAIT_SECONDS,
    report: Callable[[str], None] | None = None,
) -> Engine:
    """`setting` is where the user wrote the URL: messages name it.

    `ping` asks PostgreSQL before each use of a connection whether it is there; who tries again anyway can do without.
    Without `patience` it is waited for as long as it takes. `report` is called with the holder of a SQLite file's
    write lock, which is waited for up to `lock_seconds`.
    """
    remember(url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(
            f"{setting} is not a database URL; write sqlite:///folder/file.db "
            "or postgresql+psycopg://user:password@host/database"
        ) from error
    backend = parsed.get_backend_name()
    if backend not in _SUPPORTED:
        raise ConfigurationError(
            f"{setting} names the database {backend!r}; supported are " + " and ".join(_SUPPORTED)
        )
    if backend == "sqlite":
        return _open_sqlite(url, parsed.database, setting=setting, lock_seconds=lock_seconds, report=report)
    try:
        engine = create_engine(
            url,
            pool_pre_ping=ping,
            pool_size=8,
            isolation_level="READ COMMITTED",
            connect_args=keepalive_arguments(parsed) | _connect_arguments(parsed, patience),
            **({} if patience is None else {"pool_timeout": patience.pool_seconds}),
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"{setting} asks for the driver {parsed.drivername!r}, which is not installed; "
            "pip install 'oncehouse[postgres]' and write postgresql+psycopg://…"
        ) from error
    if patience is not None:
        _bound_statements(engine, patience.statement_seconds)
    return engine


def _connect_arguments(url: URL, patience: Patience | None) -> dict[str, str]:
    if patience is None or "connect_timeout" in url.query:
        return {}
    return {"connect_timeout": str(patience.connect_seconds)}


def _bound_statements(engine: Engine, seconds: int) -> None:
    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # For this transaction alone: behind a pooler the next one on the same connection may be of another client.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{seconds}s'")


def database_file(url: str) -> Path | None:
    """Where a SQLite database lies; None for one in memory, and for other databases."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        return None
    return Path(parsed.database)


def keepalive_arguments(url: URL) -> dict[str, str]:
    """What the user wrote into the URL counts."""
    return {name: value for name, value in _KEEPALIVE.items() if name not in url.query}


def _make_file(path: Path, setting: str) -> None:
    """An empty one where there is none, which SQLite takes for a new database, and gives its log the same rights."""
    try:
        make_private_folder(path.parent)
        make_private_file(path)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise FullDiskError(
                f"{setting}: no space is left for {path}. Nothing was written: free some space on its disk."
            ) from error
        raise ConfigurationError(f"{setting}: {describe_denied(path, error)}") from error
    for name in ("", "-wal", "-shm"):
        _require_rights(path.with_name(path.name + name), setting)
    _require_rights(path.parent, setting, os.X_OK)


def _require_rights(path: Path, setting: str, further: int = 0) -> None:
    """Not by opening it, which would cost this process its locks on the file."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK | further, effective_ids=_EFFECTIVE_IDS):
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise ConfigurationError(f"{setting}: {describe_denied(path, refused)}")


def _open_sqlite(
    url: str,
    database: str | None,
    *,
    setting: str,
    lock_seconds: float,
    report: Callable[[str], None] | None,
) -> Engine:
    path = (
        Path(database) if database and database != ":memory:" and not database.startswith("file:") else None
    )
    if path is not None:
        _make_file(path, setting)
    # For locks other than that of writers: of a process that makes the log readable again, or keeps the file to itself.
    busy_milliseconds = round(lock_seconds * 1000)
    lock = None if path is None else LockWait(path, wait_seconds=lock_seconds, report=report)
    # Transactions are begun by hand (below), so that a writer takes its lock first and never deadlocks
    # by upgrading a read lock.
    engine = create_engine(
        url,
        connect_args={
            "timeout": lock_seconds,
            "check_same_thread": False,
            "isolation_level": None,
        },
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={busy_milliseconds}")

    if path is not None:
        _follow_file(engine, path)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        if connection.get_execution_options().get("oncehouse_writes", False):
            if lock is None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                lock.acquire(lambda seconds: _try_to_begin(connection, seconds, busy_milliseconds))
        else:
            # It takes no lock and cannot fail, so it need not go the long way on which errors are wrapped.
            connection.connection.driver_connection.execute("BEGIN")

    return engine


def _try_to_begin(connection: Connection, seconds: float, busy_milliseconds: int) -> bool:
    """Whether a transaction has begun that may write; False while another one may."""
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA busy_timeout={round(seconds * 1000)}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    finally:
        driver.execute(f"PRAGMA busy_timeout={busy_milliseconds}")
    return True


def _follow_file(engine: Engine, path: Path) -> None:
    """Let connections go to the file that stands there now.

    A file that was put in the place of another one would otherwise be seen by new processes alone, while this one wrote
    on into a file that no process can open any more.
    """

    @event.listens_for(engine, "connect")
    def _remember(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["file"] = _identify(path)

    @event.listens_for(engine, "checkout")
    def _compare(_connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        there = _identify(path)
        if there is None:
            # Connecting would make an empty database there.
            raise TransientError(
                f"The database {path} is not there any more. Put it back; nothing was written."
            )
        if there != record.info["file"]:
            raise DisconnectionError(f"{path} is another file than before")


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransientError(f"The database {describe_denied(path, error)}") from error
    return found.st_dev, found.st_ino


class DatabaseClock(FunctionElement[float]):
    """Now, in seconds since 1970, on the database's clock: leases must not depend on a driver's."""

    # A function, because statements with a bare column element of one's own are compiled each time.
    inherit_cache = True
    name = "database_clock"
    type = Float()


@compiles(DatabaseClock)
def _format_clock(_element: DatabaseClock, compiler: SQLCompiler, **_options: Any) -> str:
    if compiler.dialect.name == "sqlite":
        return "((julianday('now') - 2440587.5) * 86400.0)"
    return "(extract(epoch from clock_timestamp())::double precision)"


@contextmanager
def begin(engine: Engine, *, whose: str) -> Iterator[Connection]:
    """A transaction that may write; raises TransientError or PermanentError in place of the driver's errors."""
    try:
        with engine.execution_options(oncehouse_writes=True).begin() as connection:
            yield connection
    except (DBAPIError, PoolTimeoutError) as error:
        raise wrap_error(error, what=whose, where=locate(engine)) from error


def locate(engine: Engine, name: str = "the database") -> str:
    """`name` and the URL, without its password."""
    return f"{name} {engine.url.render_as_string(hide_password=True)}"


def wrap_error(
    error: SQLAlchemyError,
    *,
    what: str,
    where: str = "the database",
    absent: str = "",
    damaged: str = "",
) -> OncehouseError:
    """The driver's error as one of ours, for every package that uses a SQL database.

    `what` was attempted; `where` names the database; `absent` says how missing tables are made, `damaged` how a
    damaged file is restored.
    """
    if isinstance(error, PoolTimeoutError):
        return TransientError(
            f"{what}: {where} does not answer in time ({ALL_TAKEN}). Check what it is busy with; it may be tried "
            "again."
        )
    if not isinstance(error, DBAPIError):
        return wrap_text(str(error) or type(error).__name__, what=what, where=where, passing=False)
    text = type(error).__name__ if error.orig is None else str(error.orig)
    line = _first_line(text)
    if absent and is_absent(error):
        return ConfigurationError(f"{what}: {line}. {absent}")
    if is_damaged(error):
        return CorruptFileError(
            f"{what}: {where} is damaged ({line}); nothing was written. {damaged}".rstrip()
        )
    if (refused := _wrap_refused(error, what, where, line)) is not None:
        return refused
    return wrap_text(text, what=what, where=where, passing=is_passing(error))


def _wrap_refused(error: DBAPIError, what: str, where: str, line: str) -> OncehouseError | None:
    """By another process, by the disk, or by the rights of the file."""
    if is_locked(error):
        return LockedError(
            f"{what}: {where} is locked by another process ({line}). Nothing was written. Find out which one uses it, "
            "and wait for it or end it; it may be tried again."
        )
    if is_full(error):
        return FullDiskError(
            f"{what}: no space is left for {where} ({line}). Nothing was written: free some space on its disk; it may "
            "be tried again."
        )
    if is_denied(error):
        return ConfigurationError(
            f"{what}: {where} may not be written ({line}); nothing was. Give this user the right to write the file, "
            "its folder and the files next to it, or run as the user that made them."
        )
    return None


def wrap_text(text: str, *, what: str, where: str, passing: bool) -> OncehouseError:
    """The same from the driver's message alone."""
    line = _first_line(text)
    if is_shut_out(text):
        return TransientError(
            f"{what}: {where} does not let us in ({line}). Check user, password and database in its URL, and that they "
            "exist; it may be tried again."
        )
    if passing:
        return TransientError(
            f"{what}: {where} does not answer ({line}). Check that it is up, reachable and has space; it may be tried "
            "again."
        )
    return PermanentError(
        f"{what}: {where} refused a statement ({line}); nothing was written. Check that its tables are made and that "
        "its user may read and write them."
    )


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def is_shut_out(text: str) -> bool:
    """Whether PostgreSQL answered and refused the user or the database; the driver gives no code for it, only words."""
    return "FATAL: " in text and any(words in text for words in _SHUT_OUT_WORDS)


def snapshot_options(engine: Engine) -> dict[str, str]:
    """How a connection sees one moment for as long as it reads; SQLite's transactions always do."""
    return {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}


def is_standby(connection: Connection) -> bool:
    """Whether the server repeats what another one confirms, and so may lack its last transactions."""
    if connection.dialect.name != "postgresql":
        return False
    return bool(connection.execute(select(func.pg_is_in_recovery())).scalar())


def take_turn(connection: Connection) -> None:
    """Let one migration run at a time; SQLite's writers already do."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


def is_full(error: DBAPIError) -> bool:
    """Whether the database has no space left to write."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return bool(code & 0xFF == sqlite3.SQLITE_FULL)
    return getattr(error.orig, "sqlstate", None) == _POSTGRES_DISK_FULL


def is_absent_table(cause: BaseException | None) -> bool:
    """Whether a driver says that a table is missing."""
    if getattr(cause, "sqlstate", None) == _ABSENT_TABLE_STATE:
        return True
    return isinstance(cause, sqlite3.OperationalError) and _ABSENT_TABLE_WORDS in str(cause)


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


def is_locked(error: DBAPIError) -> bool:
    """Whether SQLite has waited for another process in vain."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _LOCKED_SQLITE_CODES


def is_denied(error: DBAPIError) -> bool:
    """Whether a SQLite file is not this user's to write."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return (
        code is not None and code & 0xFF in _DENIED_SQLITE_CODES and code != sqlite3.SQLITE_READONLY_DBMOVED
    )


def is_damaged(error: DBAPIError) -> bool:
    """Whether the bytes of a SQLite file are not what SQLite wrote."""
    return isinstance(error.orig, sqlite3.Error) and is_damage(error.orig)


def is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED_SQLITE_CODES
