"""A SQLAlchemy engine over Django's own way to connect: same address, same credentials, other connections.

Rounds keep leases, numbers and operations in transactions of their own, which must not be those that the program
happens to be in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections
from sqlalchemy import Engine, create_engine, event

from oncehouse.errors import PermanentError, TransientError
from oncehouse.messaging.database import check_dialect

_engines: dict[tuple[object, ...], Engine] = {}
_lock = threading.Lock()


def open_engine_of(alias: str) -> Engine:
    """One engine a database and process."""
    wrapper = connections[alias]
    known = wrapper.settings_dict
    # A forked worker must not share its parent's sockets. A test run points the alias to another database.
    place = (
        os.getpid(),
        alias,
        known["NAME"],
        known["HOST"],
        known["PORT"],
        known["USER"],
        str(known["OPTIONS"]),
    )
    with _lock:
        if place not in _engines:
            _engines[place] = _make_engine(alias, check_dialect(wrapper.vendor))
        return _engines[place]


def is_same_database(one: str, other: str) -> bool:
    """Whether two of Django's aliases lead to the same database: a program may have several, with other options."""
    return one == other or (_place_of(one) == _place_of(other) and _place_of(one) is not None)


def _place_of(alias: str) -> tuple[str, ...] | None:
    """None where it is unknown: a database in memory is another one for each."""
    wrapper = connections[alias]
    known = wrapper.settings_dict
    if wrapper.vendor == "sqlite" and wrapper.is_in_memory_db():
        return None
    return (wrapper.vendor, *(str(known[name]) for name in ("NAME", "HOST", "PORT")))


def _make_engine(alias: str, vendor: str) -> Engine:
    if vendor == "sqlite":
        return _make_sqlite_engine(alias)
    driver = "psycopg" if connections[alias].Database.__name__ == "psycopg" else "psycopg2"
    return create_engine(
        f"postgresql+{driver}://",
        creator=lambda: _connect_postgres(alias),
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_size=4,
    )


def _connect_postgres(alias: str) -> Any:
    wrapper = connections[alias]
    # By the driver itself: Django's pool, if there is one, wants its connections back.
    given = dict(wrapper.get_connection_params())
    # Made for Django's own types of values and cursors.
    for name in ("cursor_factory", "context"):
        given.pop(name, None)
    connection = wrapper.Database.connect(**given)
    role = wrapper.settings_dict["OPTIONS"].get("assume_role")
    if role:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('role', %s, false)", (role,))
        connection.commit()
    return connection


def _make_sqlite_engine(alias: str) -> Engine:
    # Transactions are begun by hand, a writing one with its lock at once, as `common.database.open_engine` does.
    engine = create_engine("sqlite://", creator=lambda: _connect_sqlite(alias), pool_size=4)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        immediate = connection.get_execution_options().get("oncehouse_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _connect_sqlite(alias: str) -> Any:
    wrapper = connections[alias]
    given = {**wrapper.get_connection_params(), "isolation_level": None}
    given.pop("detect_types", None)
    connection = wrapper.Database.connect(**given)
    connection.execute("PRAGMA busy_timeout=60000")
    return connection


@contextmanager
def wrapped_errors(alias: str, what: str) -> Iterator[None]:
    """Errors of Django's database as ours, so that what may pass is tried again."""
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        # Django keeps a connection that has died until it is used.
        connections[alias].close_if_unusable_or_obsolete()
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, OperationalError | InterfaceError):
            raise TransientError(
                f"{what}: the database does not answer or is busy ({text}); it may be tried again"
            ) from error
        raise PermanentError(f"{what}: the database refused it ({text})") from error
