"""What a destination table is, as far as inserting once depends on it: frozen facts, read and not evaluated.

Reads ClickHouse's system tables only. `preflight/table.py` evaluates the facts; the load stage and verify ask them how
far the table's memory of tokens reaches and whether counting its rows proves anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import TableName, split_table
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.clickhouse.client import Client

_REPLICATED = ("Replicated", "Shared")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")
# Also in an expression a word that is the name of a column is that column.
_WORD = re.compile(r"`[^`]+`|\w+")
# Blocks of a shorter time say nothing of what is usual: an attempt's own are among them.
_LEAST_MEASURED_SECONDS = 10.0
# Setting -> the least default among servers of all versions.
_PLAIN_WINDOW = {"non_replicated_deduplication_window": 0}
_REPLICATED_WINDOW = {
    "replicated_deduplication_window": 100,
    "replicated_deduplication_window_seconds": 3600,
}


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    type: str
    default_kind: str
    """Empty, DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL."""


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    database: str
    table: str
    uuid: str
    engine: str
    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str
    window_blocks: int
    """How many of the latest blocks the table remembers; 0 remembers nothing."""
    window_seconds: float | None
    """How long a block is remembered at most; None without a limit."""
    expires_rows: bool
    views: tuple[str, ...]
    """Materialized views that read what is inserted."""
    engine_columns: tuple[str, ...] = ()
    """Those that the engine itself names: version, sign, mark of deletion."""

    @property
    def name(self) -> TableName:
        return TableName(database=self.database, table=self.table)

    @property
    def is_merge_tree(self) -> bool:
        return self.engine.endswith("MergeTree")

    @property
    def is_replicated(self) -> bool:
        return self.engine.startswith(_REPLICATED)

    @property
    def merges_rows(self) -> bool:
        return (
            self.is_merge_tree
            and self.engine.removeprefix("Replicated").removeprefix("Shared") != "MergeTree"
        )

    @property
    def merging_columns(self) -> tuple[str, ...]:
        """The columns that decide which rows the table makes one of, and which of them stays."""
        if not self.merges_rows:
            return ()
        words = {word.strip("`") for word in _WORD.findall(_TEXT.sub("", self.sorting_key))}
        sorting = (column.name for column in self.columns if column.name in words)
        return tuple(dict.fromkeys((*sorting, *self.engine_columns)))

    @property
    def loses_rows(self) -> bool:
        """Rows may vanish by the table's own doing, so a count that falls short proves nothing."""
        return self.merges_rows or self.expires_rows

    @property
    def window_setting(self) -> str:
        return (
            "replicated_deduplication_window" if self.is_replicated else "non_replicated_deduplication_window"
        )

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def remembers(self, *, blocks_since: int, seconds_since: float, seconds_ahead: float) -> bool:
        """Whether a token will still be known when a repeat is done, which takes `seconds_ahead` at most.

        As many blocks are expected meanwhile as came since the token was first sent, second by second.
        """
        until = seconds_since + seconds_ahead
        in_time = self.window_seconds is None or until < self.window_seconds
        ahead = blocks_since * seconds_ahead / max(seconds_since, _LEAST_MEASURED_SECONDS)
        return in_time and blocks_since + ahead < self.window_blocks


def describe_table(client: Client, table: str) -> TableFacts | None:
    """The facts of the table, or None when it does not exist or the user may not see it."""
    return describe_named(client, split_table(table))


def describe_named(client: Client, name: TableName) -> TableFacts | None:
    key = {"database": name.database or client.database, "table": name.table}
    found = client.query(
        "SELECT toString(uuid), engine, engine_full, partition_key, sorting_key, "
        "arrayMap((d, t) -> d || '.' || t, dependencies_database, dependencies_table) "
        "FROM system.tables WHERE database = {database:String} AND name = {table:String}",
        key,
    )
    if not found:
        return None
    uuid, engine, engine_full, partition_key, sorting_key, views = found[0]
    replicated = engine.startswith(_REPLICATED)
    windows = _read_windows(client, engine_full, replicated=replicated)
    return TableFacts(
        database=key["database"],
        table=key["table"],
        uuid=uuid,
        engine=engine,
        columns=_read_columns(client, key),
        partition_key=partition_key,
        sorting_key=sorting_key,
        window_blocks=windows[0],
        window_seconds=float(windows[1]) if replicated else None,
        expires_rows=has_row_ttl(engine_full),
        views=tuple(views),
        engine_columns=read_engine_columns(engine_full),
    )


def has_row_ttl(engine_full: str) -> bool:
    """Whether the definition has a TTL clause; moves between disks count too, which errs on the safe side."""
    return re.search(r"\bTTL\b", _QUOTED.sub("''", engine_full)) is not None


def read_engine_columns(engine_full: str) -> tuple[str, ...]:
    """The plain names among the engine's arguments; paths and names of replicas stand in quotes."""
    arguments = re.match(r"\w+\(([^()]*)\)", _TEXT.sub("", engine_full))
    names = arguments[1].split(",") if arguments else []
    return tuple(name.strip().strip("`") for name in names if name.strip())


def read_setting(engine_full: str, name: str) -> int | None:
    """A numeric setting in the table's own definition."""
    found = re.search(rf"(?<!\w){name}\s*=\s*(\d+)", _QUOTED.sub("''", engine_full))
    return int(found[1]) if found else None


def _read_windows(client: Client, engine_full: str, *, replicated: bool) -> tuple[int, ...]:
    """The window settings in force: the table's own, else the server's defaults."""
    names = _REPLICATED_WINDOW if replicated else _PLAIN_WINDOW
    own = {name: read_setting(engine_full, name) for name in names}
    if None in own.values():
        source = "system.replicated_merge_tree_settings" if replicated else "system.merge_tree_settings"
        own = _read_defaults(client, source, names) | {
            n: value for n, value in own.items() if value is not None
        }
    return tuple(own[name] or 0 for name in names)


def _read_defaults(client: Client, source: str, names: Mapping[str, int]) -> dict[str, int | None]:
    try:
        rows = client.query(
            f"SELECT name, value FROM {source} WHERE name IN {{names:Array(String)}}",  # noqa: S608 - constants
            {"names": list(names)},
        )
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        rows = []  # the user may not ask: count on no more than the least that any server has had
    return {**names, **{name: int(value) for name, value in rows}}


def _read_columns(client: Client, key: dict[str, str]) -> tuple[Column, ...]:
    rows = client.query(
        "SELECT name, type, default_kind FROM system.columns "
        "WHERE database = {database:String} AND table = {table:String} ORDER BY position",
        key,
    )
    return tuple(Column(name=name, type=type_, default_kind=kind) for name, type_, kind in rows)
