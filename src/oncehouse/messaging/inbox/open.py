"""The database of a messaging file, opened for the inbox's commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine

from oncehouse.common.database import Patience, open_engine
from oncehouse.messaging.database import transact
from oncehouse.messaging.inbox.tables import ABSENT
from oncehouse.messaging.settings import MessagingSettings, load_messaging


@dataclass(frozen=True, kw_only=True)
class InboxDatabase:
    settings: MessagingSettings
    engine: Engine

    def transact(self, doing: str) -> AbstractContextManager[Connection]:
        return transact(self.engine, f"Inbox: {doing}", absent=ABSENT)


@contextmanager
def open_inbox_database(file: Path, *, patience: Patience | None = None) -> Iterator[InboxDatabase]:
    settings = load_messaging(file)
    engine = open_engine(settings.require_database(), setting="database", patience=patience)
    try:
        yield InboxDatabase(settings=settings, engine=engine)
    finally:
        engine.dispose()
