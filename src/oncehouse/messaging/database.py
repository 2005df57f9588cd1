"""Messaging's tables in the application's database: supported dialects, statements that make tables, transactions.

Most statements run on the application's own connections, so `transact` is the only place that begins or ends a
transaction. `common/database.py` opens databases for our own processes and wraps their errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from oncehouse.common.database import wrap_error
from oncehouse.errors import ConfigurationError

SUPPORTED = ("postgresql", "sqlite")


def check_dialect(name: str) -> str:
    if name not in SUPPORTED:
        raise ConfigurationError(f"{name} is not supported for messaging; use {' or '.join(SUPPORTED)}")
    return name


def storage_parameters(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Arguments of a `Table` for PostgreSQL's storage parameters (`CREATE TABLE … WITH`)."""
    if sqlalchemy.__version__ >= "2.1":
        return {"postgresql_with": dict(parameters)}
    # SQLAlchemy 2.0 has no argument for them, but passes this clause on; heap is PostgreSQL's default.
    listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    return {"postgresql_using": f"heap WITH ({listed})"}


def creation_statements(tables: Iterable[Table], dialect: Dialect) -> list[str]:
    """The statements that create the tables and indexes, in order. Existing ones are kept."""
    check_dialect(dialect.name)
    statements: list[CreateTable | CreateIndex] = []
    for table in tables:
        statements.append(CreateTable(table, if_not_exists=True))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements += [CreateIndex(index, if_not_exists=True) for index in indexes]
    return [str(one.compile(dialect=dialect)).strip().replace("\t", "  ") for one in statements]


@contextmanager
def wrapped_errors(what: str, *, absent: str) -> Iterator[None]:
    """Translates driver errors. `what` names the operation, `absent` says how to create missing tables."""
    try:
        yield
    except SQLAlchemyError as error:
        raise wrap_error(error, what=what, absent=absent) from error


@contextmanager
def open_reader(engine: Engine, what: str, *, absent: str) -> Iterator[Connection]:
    """A connection for reading, which no writer blocks."""
    with wrapped_errors(what, absent=absent), engine.connect() as connection:
        yield connection


@contextmanager
def transact(engine: Engine, what: str, *, absent: str) -> Iterator[Connection]:
    """A transaction of its own that may write."""
    with (
        wrapped_errors(what, absent=absent),
        engine.execution_options(oncehouse_writes=True).begin() as connection,
    ):
        yield connection
