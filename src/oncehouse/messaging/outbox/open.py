"""An outbox as a person at a command line or a program opens it: how it stands, and a hand on what is parked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from oncehouse.common.database import Patience, begin, open_engine
from oncehouse.messaging.outbox import parked
from oncehouse.messaging.outbox.parked import Moved, Which
from oncehouse.messaging.outbox.status import OutboxStatus, read_status
from oncehouse.messaging.outbox.tables import DEFAULT_TABLE, OutboxTables, check_made, outbox_tables


@dataclass(frozen=True, kw_only=True)
class OpenedOutbox:
    engine: Engine
    tables: OutboxTables

    def status(self) -> OutboxStatus:
        with begin(self.engine, whose=f"Outbox {self.tables.name}") as connection:
            return read_status(connection, self.tables)

    def count(self, which: Which) -> Moved:
        return parked.count(self.engine, self.tables, which)

    def retry(self, which: Which) -> Moved:
        return parked.retry(self.engine, self.tables, which)

    def drop(self, which: Which) -> Moved:
        return parked.drop(self.engine, self.tables, which)


@contextmanager
def open_outbox(
    database: str, table: str = DEFAULT_TABLE, *, patience: Patience | None = None
) -> Iterator[OpenedOutbox]:
    """Raises ConfigurationError where the outbox has not been made yet."""
    engine = open_engine(database, setting="database", patience=patience)
    tables = outbox_tables(table)
    try:
        check_made(engine, tables)
        yield OpenedOutbox(engine=engine, tables=tables)
    finally:
        engine.dispose()
