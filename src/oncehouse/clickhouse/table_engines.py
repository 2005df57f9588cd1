"""The engines of tables as far as a read must know them: is what this server shows all that was written?

Kept for a while in each process, so that tables without replicas cost a read nothing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import TableName, split_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncehouse.clickhouse.client import Client

KNOWN_SECONDS = 600.0
"""After that a table is looked up again: it may have been exchanged for one of another engine."""
_CLUSTER = re.compile(r"^Distributed\(\s*(?:'((?:[^'\\]|\\.)*)'|(\w+))")


@dataclass(frozen=True, kw_only=True)
class TableEngine:
    database: str
    table: str
    engine: str
    engine_full: str

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        return TableName(database=self.database, table=self.table).quoted

    @property
    def has_replicas(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

    @property
    def is_shared(self) -> bool:
        """SharedMergeTree of ClickHouse Cloud: one set of parts, of which each server learns by Keeper."""
        return self.engine.startswith("Shared")

    @property
    def is_distributed(self) -> bool:
        return self.engine == "Distributed"

    @property
    def merges_rows(self) -> bool:
        """Rows may become fewer by the engine's own doing."""
        kind = self.engine.removeprefix("Replicated").removeprefix("Shared")
        return kind.endswith("MergeTree") and kind != "MergeTree"

    @property
    def cluster(self) -> str:
        """Of a Distributed table; empty where the definition does not say it plainly."""
        found = _CLUSTER.match(self.engine_full)
        return (found[1] or found[2]) if found else ""


_known: dict[tuple[object, ...], tuple[float, TableEngine]] = {}


def read_engines(client: Client, tables: Iterable[str]) -> tuple[TableEngine, ...]:
    """Of the tables that are there, each once."""
    names = {table: split_table(table) for table in tables}
    keys = {
        table: (client.config, name.database or client.database, name.table) for table, name in names.items()
    }
    now = time.monotonic()
    missing = [table for table, key in keys.items() if key not in _known or _known[key][0] < now]
    for table in missing:
        _known.pop(keys[table], None)
    if missing:
        for found in _read(client, [keys[table][1:] for table in missing]):
            _known[client.config, found.database, found.table] = (now + KNOWN_SECONDS, found)
    return tuple(
        {key: _known[key][1] for key in keys.values() if key in _known}.values()  # by key, so each once
    )


def forget_engines() -> None:
    _known.clear()


def _read(client: Client, keys: Iterable[tuple[object, ...]]) -> Iterable[TableEngine]:
    wanted = {(str(database), str(table)) for database, table in keys}
    rows = client.query(
        "SELECT database, name, engine, engine_full FROM system.tables "
        "WHERE database IN {databases:Array(String)} AND name IN {tables:Array(String)}",
        {
            "databases": sorted({database for database, _ in wanted}),
            "tables": sorted({table for _, table in wanted}),
        },
    )
    for database, table, engine, engine_full in rows:
        if (database, table) in wanted:
            yield TableEngine(
                database=str(database), table=str(table), engine=str(engine), engine_full=str(engine_full)
            )
