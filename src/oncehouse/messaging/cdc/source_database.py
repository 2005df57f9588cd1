"""The PostgreSQL database whose changes are captured, opened for reading only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from oncehouse.common.database import open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.connector_config import Database, check_reference
from oncehouse.messaging.database import wrapped_errors

_DEFAULT_PORT = 5432


@contextmanager
def open_source(url: str, what: str) -> Iterator[Connection]:
    """`what` names the operation in error messages."""
    if not url.startswith("postgresql"):
        raise ConfigurationError(
            "database must be postgresql+psycopg://…: changes are captured from PostgreSQL's log"
        )
    engine = open_engine(url, setting="database")
    try:
        absent = "This needs PostgreSQL 14 or newer."
        with wrapped_errors(what, absent=absent), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def describe_database(connection: Connection, password: str) -> Database:
    """The database's address for Kafka Connect; `password` is a reference in place of the password."""
    url = connection.engine.url
    sslmode = url.query.get("sslmode")
    return Database(
        host=url.host or "localhost",
        port=url.port or _DEFAULT_PORT,
        name=url.database or url.username or "postgres",
        user=url.username or "postgres",
        password=check_reference(password) if url.password else None,
        tls=sslmode if isinstance(sslmode, str) else None,
    )
