"""The statements that create the outbox's tables, and their execution, for `oncehouse outbox init`."""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from oncehouse.common.database import begin, open_engine, take_turn
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.outbox import Outbox


def list_statements(url: str, table: str) -> tuple[str, ...]:
    """Does not connect: the dialect comes from the URL."""
    try:
        database = make_url(url).get_backend_name()
    except ArgumentError:
        raise ConfigurationError(
            "database is not a database URL; write postgresql+psycopg://user:password@host/database or sqlite:///file.db"
        ) from None
    return Outbox(table).ddl(database)


def create_tables(url: str, table: str) -> bool:
    """False if the outbox existed already; other missing tables are created in any case."""
    outbox = Outbox(table)
    engine = open_engine(url, setting="database")
    try:
        with begin(engine, whose=f"Outbox {table}") as connection:
            take_turn(connection)
            existed = inspect(connection).has_table(outbox.table.name, schema=outbox.table.schema)
            outbox.create(connection)
    finally:
        engine.dispose()
    return not existed
