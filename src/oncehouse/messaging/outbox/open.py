"""An outbox as commands and the dashboard open it: its status, and changes to parked messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from oncehouse.common.database import Patience, begin, open_engine
from oncehouse.messaging.outbox import parked
from oncehouse.messaging.outbox.parked import ParkedChange, ParkedSelection
from oncehouse.messaging.outbox.status import OutboxStatus, read_status
from oncehouse.messaging.outbox.tables import DEFAULT_TABLE, OutboxTables, outbox_tables, require_tables


@dataclass(frozen=True, kw_only=True)
class OpenedOutbox:
    engine: Engine
    tables: OutboxTables

    def status(self) -> OutboxStatus:
        with begin(self.engine, whose=f"Outbox {self.tables.name}") as connection:
            return read_status(connection, self.tables)

    def count(self, selection: ParkedSelection) -> ParkedChange:
        return parked.count(self.engine, self.tables, selection)

    def retry(self, selection: ParkedSelection) -> ParkedChange:
        return parked.retry(self.engine, self.tables, selection)

    def drop(self, selection: ParkedSelection) -> ParkedChange:
        return parked.drop(self.engine, self.tables, selection)


@contextmanager
def open_outbox(
    database: str, table: str = DEFAULT_TABLE, *, patience: Patience | None = None
) -> Iterator[OpenedOutbox]:
    """Raises ConfigurationError if the outbox table does not exist."""
    engine = open_engine(database, setting="database", patience=patience)
    tables = outbox_tables(table)
    try:
        require_tables(engine, tables)
        yield OpenedOutbox(engine=engine, tables=tables)
    finally:
        engine.dispose()
