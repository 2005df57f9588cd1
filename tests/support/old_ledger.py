"""Ledgers that earlier versions of oncehouse wrote (`data/README.md`), unpacked for a test.

Nothing here uses today's tables: the database holds what the earlier version wrote. Two things differ: the times, which
are moved to an hour ago so that the window does not end while the archive ages, and the topic's id, because the broker
of the test creates the topic again.
"""

from __future__ import annotations

import base64
import json
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, Table, create_engine, func, select, update
from sqlalchemy.engine import Connection

_DATA = Path(__file__).parents[1] / "data"
ARCHIVES = {1: _DATA / "ledger-0.1.0.tar.xz", 4: _DATA / "ledger-catalog-4.tar.xz"}
"""By the version of their catalog."""
PIPELINE, TOPIC, DATABASE = "road", "orders-of-old", "old_shop"
TABLE = f"{DATABASE}.events"
RELEASED = 1
"""The catalog version of 0.1.0, the last release."""

_TIMES = ("registered_at", "first_seen_from", "first_seen_to", "started_at", "created_at", "loaded_at")
_TIMES += ("finished_at", "next_attempt_at", "expires_at", "replaced_at", "since", "done_at", "learned_at")
_AGE_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class OldLedger:
    version: int
    """Of its catalog."""
    folder: Path
    """Holds catalog.db and files/."""
    made: dict[str, Any]
    """What its maker wrote beside it: records by partition, rows and statement of the table."""

    @property
    def produced(self) -> list[list[bytes | None]]:
        """By partition, in the order of their offsets."""
        return [
            [None if value is None else base64.b64decode(value) for value in values]
            for values in self.made["produced"]
        ]

    @property
    def rows(self) -> bytes:
        """Those of the table, in ClickHouse's format Native."""
        return base64.b64decode(self.made["rows_native"])

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'catalog.db'}"


def unpack(folder: Path, version: int = RELEASED) -> OldLedger:
    with tarfile.open(ARCHIVES[version]) as archive:
        archive.extractall(folder, filter="data")
    made = json.loads((folder / "made.json").read_text(encoding="utf-8"))
    ledger = OldLedger(version=version, folder=folder, made=made)
    _bring_near(ledger.url)
    return ledger


def fill_postgres(ledger: OldLedger, url: str) -> None:
    """The same catalog as the release's PostgreSQL had it, into the schema that the URL leads to."""
    engine = create_engine(url)
    dump = (ledger.folder / "postgres.sql").read_text(encoding="utf-8").replace("public.", "")
    wanted = "\n".join(line for line in dump.splitlines() if "search_path" not in line)
    with engine.begin() as connection:
        connection.exec_driver_sql(wanted)
    engine.dispose()
    _bring_near(url)


def set_topic_id(url: str, topic_id: str) -> None:
    """The topic of the test's broker stands for the one that the ledger knows."""
    engine = create_engine(url)
    with engine.begin() as connection:
        positions = Table("oncehouse_positions", MetaData(), autoload_with=connection)
        connection.execute(update(positions).values(topic_id=topic_id))
    engine.dispose()


def all_rows(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table that there is, by the columns that the release knows."""
    found = MetaData()
    found.reflect(connection)
    return {
        table.name: sorted((tuple(row) for row in connection.execute(select(table)).all()), key=repr)
        for table in found.sorted_tables
    }


def _bring_near(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        found = MetaData()
        found.reflect(connection)
        newest = connection.execute(
            select(func.max(found.tables["oncehouse_epochs"].c.registered_at))
        ).scalar_one()
        later = time.time() - _AGE_SECONDS - newest
        for table in found.sorted_tables:
            moved = {name: table.c[name] + later for name in _TIMES if name in table.c}
            if moved:
                connection.execute(update(table).values(moved))
    engine.dispose()
