"""What the tables and views are that a lineage names: the same few queries however many topics there are.

Read and not judged: that is for `lineage_check.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.table_info import read_setting

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


@dataclass(frozen=True, kw_only=True)
class TableState:
    """What a table or view is, as far as the scheduler depends on it."""

    engine: str
    columns: Mapping[str, str]
    """Column and type."""
    sorting_key: str = ""
    partition_key: str = ""
    pos_is_indexed: bool = False
    """A minmax index covers `pos`."""
    window_blocks: int = 0

    @property
    def is_merge_tree(self) -> bool:
        return self.engine.endswith("MergeTree")


def window_setting(engine: str) -> str:
    replicated = engine.startswith(("Replicated", "Shared"))
    return "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"


def read_tables(client: Client, names: Iterable[str]) -> dict[str, TableState]:
    """The tables and views of these names that exist, by name."""
    wanted = {"names": sorted(names)}
    columns: dict[str, dict[str, str]] = {}
    for table, column, type_ in client.query(
        "SELECT database || '.' || table AS full, name, type FROM system.columns "
        "WHERE full IN {names:Array(String)} ORDER BY full, position",
        wanted,
    ):
        columns.setdefault(table, {})[column] = type_
    indexed = {
        row[0]
        for row in client.query(
            "SELECT database || '.' || table AS full FROM system.data_skipping_indices "
            "WHERE full IN {names:Array(String)} AND type = 'minmax' AND match(expr, '(^|\\\\W)pos(\\\\W|$)')",
            wanted,
        )
    }
    rows = client.query(
        "SELECT database || '.' || name AS full, engine, engine_full, sorting_key, partition_key FROM system.tables "
        "WHERE full IN {names:Array(String)}",
        wanted,
    )
    defaults = _read_default_windows(client)
    return {
        table: TableState(
            engine=engine,
            columns=columns.get(table, {}),
            sorting_key=sorting_key,
            partition_key=partition_key,
            pos_is_indexed=table in indexed,
            window_blocks=_window_blocks(engine, engine_full, defaults),
        )
        for table, engine, engine_full, sorting_key, partition_key in rows
    }


def _window_blocks(engine: str, engine_full: str, defaults: Mapping[str, int]) -> int:
    setting = window_setting(engine)
    own = read_setting(engine_full, setting)
    return defaults.get(setting, 0) if own is None else own


def _read_default_windows(client: Client) -> dict[str, int]:
    rows = client.query(
        "SELECT name, value FROM system.merge_tree_settings WHERE name LIKE '%deduplication_window'"
    )
    return {name: int(value) for name, value in rows}
