"""The DDL of a destination table that is safe to load: what `oncehouse table create` shows before it runs it.

Pure text. Types go through `column_types/parser.py`, so nothing of the pipeline file reaches the statement unread, and
names are quoted. The table's memory of tokens is sized by what the pipeline needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import TableName, quote, quote_table
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds, blocks_needed, seconds_needed
from oncehouse.clickhouse.preflight.requirements import needs_of
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import Array, Float, Map, Tuple, bare, clickhouse_name, is_nullable
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.config.pipeline import Pipeline, Table

_NO_KEY = "tuple()"
_MERGES_ROWS = re.compile(r"Replacing|Collapsing|Summing|Aggregating|Coalescing|Graphite")
_ENGINE = re.compile(r"^(?P<family>[A-Za-z]*MergeTree)(?P<arguments>\(.*\))?$", re.DOTALL)


def ddl_of(
    pipeline: Pipeline, table: Table, *, engine: str = "MergeTree", order_by: tuple[str, ...] | None = None
) -> str:
    """The statement of a pipeline's table, sorted by the columns of the identity rule or by those that are named."""
    needs = needs_of(pipeline, table)
    columns = table.columns or {field: field for field in pipeline.columns}
    for name in order_by or ():
        if name not in columns:
            raise ConfigurationError(f"--order-by names {name!r}, which is no column of {table.name}")
    return create_table_ddl(
        table=table.name,
        columns=needs.columns,
        identity_columns=order_by
        or tuple(
            column
            for field in pipeline.identity.fields
            for column, source in columns.items()
            if source == field
        ),
        batch_column=table.batch_column,
        id_column=table.id_column,
        window=needs.window,
        engine=engine,
    )


def create_table_ddl(
    *,
    table: str,
    columns: Mapping[str, str],
    identity_columns: tuple[str, ...],
    batch_column: str,
    id_column: str | None,
    window: WindowNeeds,
    engine: str = "MergeTree",
) -> str:
    """One CREATE TABLE; `columns` maps each column to its ClickHouse type, in order."""
    taken = [name for name in (batch_column, id_column) if name in columns]
    if taken:
        raise ConfigurationError(
            f"{table}: column {taken[0]!r} is oncehouse's own; rename batch_column or id_column"
        )
    lines = [f"{quote(name)} {clickhouse_name(parse_type(type_))}" for name, type_ in columns.items()]
    if id_column is not None:
        lines.append(f"{quote(id_column)} FixedString(16)")
    lines.append(f"{quote(batch_column)} UUID")
    lines.append(batch_index(batch_column))
    body = ",\n".join(f"    {line}" for line in lines)
    sorting_key = _sorting_key(columns, identity_columns)
    if sorting_key == _NO_KEY and _MERGES_ROWS.search(engine):
        raise ConfigurationError(
            f"{table}: {engine} keeps one row of all that have the same sorting key, and there is none: of the whole "
            "table one row would be left. Name the columns of a row's key with --order-by."
        )
    return (
        f"CREATE TABLE {quote_table(table)}\n(\n{body}\n)\n"
        f"ENGINE = {_check_engine(engine)}\n"
        f"ORDER BY {sorting_key}\n"
        f"SETTINGS {_window_settings(engine, window)}"
    )


def batch_index(batch_column: str) -> str:
    """A retry looks for its batch soon after: until merges mix the batches, the index leaves out other parts."""
    return f"INDEX {quote('by_' + batch_column)} {quote(batch_column)} TYPE bloom_filter GRANULARITY 4"


def add_column_ddl(table: str, column: str, type_: str) -> str:
    return (
        f"ALTER TABLE {quote_table(table)} ADD COLUMN IF NOT EXISTS {quote(column)} "
        f"{clickhouse_name(parse_type(type_))}"
    )


def modify_column_ddl(table: str, column: str, type_: str) -> str:
    return (
        f"ALTER TABLE {quote_table(table)} MODIFY COLUMN {quote(column)} {clickhouse_name(parse_type(type_))}"
    )


def widen_window_ddl(table: TableName, setting: str, blocks: int) -> str:
    return f"ALTER TABLE {table.quoted} MODIFY SETTING {setting} = {blocks}"


def _check_engine(engine: str) -> str:
    match = _ENGINE.match(engine.strip())
    if match is None or ";" in engine:
        raise ConfigurationError(
            f"{engine!r} is not an engine that can recognize a repeated insert; use one of the MergeTree family, "
            "such as MergeTree or ReplicatedMergeTree('/clickhouse/tables/{shard}/events', '{replica}')"
        )
    return engine.strip()


def _sorting_key(columns: Mapping[str, str], identity_columns: tuple[str, ...]) -> str:
    keys = [quote(name) for name in identity_columns if name in columns and _can_sort(columns[name])]
    return f"({', '.join(keys)})" if keys else _NO_KEY


def _can_sort(type_: str) -> bool:
    parsed = parse_type(type_)
    return not is_nullable(parsed) and not isinstance(bare(parsed), Array | Map | Tuple | Float)


def _window_settings(engine: str, window: WindowNeeds) -> str:
    if engine.strip().startswith(("Replicated", "Shared")):
        return (
            f"replicated_deduplication_window = {blocks_needed(window)}, "
            f"replicated_deduplication_window_seconds = {seconds_needed(window)}"
        )
    return f"non_replicated_deduplication_window = {blocks_needed(window)}"
