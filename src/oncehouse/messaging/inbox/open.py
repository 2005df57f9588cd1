"""The inbox's database and settings, as commands and the dashboard open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from oncehouse.common.database import Patience, open_engine
from oncehouse.messaging.database import transact
from oncehouse.messaging.inbox.settings import InboxSettings
from oncehouse.messaging.inbox.tables import ABSENT


@dataclass(frozen=True, kw_only=True)
class InboxDatabase:
    settings: InboxSettings
    engine: Engine

    def transact(self, doing: str) -> AbstractContextManager[Connection]:
        return transact(self.engine, f"Inbox: {doing}", absent=ABSENT)


@contextmanager
def open_inbox_database(
    url: str, settings: InboxSettings, *, patience: Patience | None = None
) -> Iterator[InboxDatabase]:
    engine = open_engine(url, setting="database", patience=patience)
    try:
        yield InboxDatabase(settings=settings, engine=engine)
    finally:
        engine.dispose()
