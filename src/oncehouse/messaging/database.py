"""Messaging's tables in somebody's database: which databases may be meant, and how their errors read.

Most statements run on connections that are somebody else's, so `transact` is the only place that begins or ends a
transaction. How our own processes open a database is `oncehouse/common/database.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateIndex, CreateTable

from oncehouse.common.database import is_passing, is_shut_out
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError

SUPPORTED = ("postgresql", "sqlite")

# undefined_table and undefined_column; SQLite has one code for every mistake, and only its words differ.
_ABSENT_STATES = {"42P01", "42703"}
_ABSENT_WORDS = ("no such table", "no such column", "has no column named")


def check_dialect(name: str) -> str:
    if name not in SUPPORTED:
        raise ConfigurationError(f"{name} is not supported for messaging; use {' or '.join(SUPPORTED)}")
    return name


def storage_parameters(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Arguments of a `Table` that have PostgreSQL keep it so (`CREATE TABLE … WITH`)."""
    if sqlalchemy.__version__ >= "2.1":
        return {"postgresql_with": dict(parameters)}
    # SQLAlchemy 2.0 has no word for them. The clause before them is taken as it is given; heap is PostgreSQL's own.
    listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    return {"postgresql_using": f"heap WITH ({listed})"}


def creation_statements(tables: Iterable[Table], dialect: Dialect) -> list[str]:
    """What makes the tables with their indexes, in the order in which it runs. What exists is kept."""
    check_dialect(dialect.name)
    made: list[CreateTable | CreateIndex] = []
    for table in tables:
        made.append(CreateTable(table, if_not_exists=True))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made += [CreateIndex(index, if_not_exists=True) for index in indexes]
    return [str(one.compile(dialect=dialect)).strip().replace("\t", "  ") for one in made]


@contextmanager
def wrapped_errors(what: str, *, absent: str) -> Iterator[None]:
    """Errors of the driver as ours. `what` names what was attempted, `absent` says how missing tables are made."""
    try:
        yield
    except SQLAlchemyError as error:
        raise wrap_error(error, what, absent=absent) from error


@contextmanager
def reading(engine: Engine, what: str, *, absent: str) -> Iterator[Connection]:
    """A look at what is committed, which no writer holds up."""
    with wrapped_errors(what, absent=absent), engine.connect() as connection:
        yield connection


@contextmanager
def transact(engine: Engine, what: str, *, absent: str) -> Iterator[Connection]:
    """A transaction that may write, of its own."""
    with (
        wrapped_errors(what, absent=absent),
        engine.execution_options(oncehouse_writes=True).begin() as connection,
    ):
        yield connection


def wrap_error(error: SQLAlchemyError, what: str, *, absent: str) -> OncehouseError:
    original = error.orig if isinstance(error, DBAPIError) else None
    text = (str(original or error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, DBAPIError) and is_absent(error):
        return ConfigurationError(f"{what}: {text}. {absent}")
    if is_shut_out(text):
        return TransientError(
            f"{what}: the database does not let us in ({text}). Check user, password and database in its URL, and that "
            "they are there"
        )
    if isinstance(error, PoolTimeoutError) or (isinstance(error, DBAPIError) and is_passing(error)):
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
