"""Messaging's tables in the application's database: supported dialects, statements that make tables, transactions.

Most statements run on the application's own connections, so `transact` is the only place that begins or ends a
transaction. `oncehouse/common/database.py` opens databases for our own processes and wraps their errors.
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
        raise wrap_error(error, what=what, absent=absent) from error


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
