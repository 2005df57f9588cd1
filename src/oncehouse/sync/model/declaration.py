"""A sync class, read once: names checked, types parsed, the class's own settings over the program's.

A `ModelSource` is what a framework says of a model; a `Declaration` is what rounds, plans and status work with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oncehouse.clickhouse.identifiers import check, split_table
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType, is_nullable
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.arrow_rows import default_value
from oncehouse.sync.model.engines import Engine, Row
from oncehouse.sync.settings import BY_CDC, SyncSettings, check_numbers
from oncehouse.sync.tables import LONGEST_SYNC_NAME

BATCH_COLUMN = "_batch_id"
"""Where the pipeline, and no round, writes which batch a row came in: the mark of a table that a pipeline feeds."""

_LONGEST_PIPELINE_NAME = 63
_SYNC_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_SYNC_NAME}}}")


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    label: str
    """How people call the model, such as `shop.Order`."""
    table: str
    """The name of the ClickHouse table where the class gives none."""
    columns: Mapping[str, str]
    """Name and ClickHouse type of every column, in the order of the rows that are read."""
    key: tuple[str, ...]
    """Which of the columns are the model's key."""


@dataclass(frozen=True, kw_only=True)
class WalTable:
    name: str
    """`table` or `schema.table` in the database."""
    columns: Mapping[str, str]
    """Column of the sync -> column of the table."""
    refused: tuple[str, ...] = ()
    """What the log cannot give, each with advice."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    name: str
    label: str
    table: str
    columns: Mapping[str, ColumnType]
    key: tuple[str, ...]
    engine: Engine
    batch_size: int
    delay_seconds: float
    lease_seconds: float
    storage: Any
    queue: str
    database: str

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """Where the key stands in a row."""
        names = list(self.columns)
        return tuple(names.index(name) for name in self.key)

    @cached_property
    def all_columns(self) -> dict[str, ColumnType]:
        """Those of the rows, then the engine's own and the pipeline's: the columns of the table."""
        own = {name: parse_type(type_) for name, type_ in _own_columns(self.engine, self.storage).items()}
        return {**self.columns, **own}

    @property
    def pipeline(self) -> str | None:
        """The name of the pipeline that feeds the table; None where rounds do."""
        if self.storage != BY_CDC:
            return None
        plain = re.sub(r"[^a-z0-9_-]", "_", self.name.lower())
        return (plain if plain[0].isalpha() else f"sync_{plain}")[:_LONGEST_PIPELINE_NAME]

    @property
    def pipeline_file(self) -> str | None:
        """The file that `oncehouse sync pipeline` writes."""
        return None if self.pipeline is None else f"{self.pipeline}.yaml"

    @cached_property
    def _empty_row(self) -> Row:
        return tuple(default_value(type_) for type_ in self.columns.values())

    def deleted_row(self, key: tuple[Any, ...]) -> Row:
        row = list(self._empty_row)
        for place, value in zip(self.key_places, key, strict=True):
            row[place] = value
        return tuple(row)


def declare(
    *, name: str, source: ModelSource, engine: Engine, own: Mapping[str, Any], settings: SyncSettings
) -> Declaration:
    """`own` is what the class says of itself; None stands for the program's settings."""
    if not _SYNC_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!a} is not a name for a sync; use letters, digits, '_', '.' and '-', at most {LONGEST_SYNC_NAME}"
        )
    table = own.get("table") or source.table
    split_table(table)
    chosen = {
        field: getattr(settings, field) if own.get(field) is None else own[field]
        for field in ("batch_size", "delay_seconds", "lease_seconds", "storage", "queue", "database")
    }
    check_numbers(chosen["batch_size"], chosen["delay_seconds"], chosen["lease_seconds"], where=name)
    made = Declaration(
        name=name,
        label=source.label,
        table=table,
        columns=_read_columns(name, source, engine, chosen["storage"]),
        key=source.key,
        engine=engine,
        **chosen,
    )
    engine.sorting_key(made.key)
    return made


def _own_columns(engine: Engine, storage: Any) -> dict[str, str]:
    """Columns that are not the model's."""
    return {**engine.own_columns(), **({BATCH_COLUMN: "UUID"} if storage == BY_CDC else {})}


def _read_columns(name: str, source: ModelSource, engine: Engine, storage: Any) -> dict[str, ColumnType]:
    columns: dict[str, ColumnType] = {}
    for column, type_ in source.columns.items():
        check(column)
        columns[column] = _parse(name, column, type_)
    if missing := [column for column in source.key if column not in columns]:
        raise ConfigurationError(
            f"{name}: the table has to have the key of {source.label}, and {missing[0]!r} is not among its columns"
        )
    if nullable := [column for column in source.key if is_nullable(columns[column])]:
        raise ConfigurationError(f"{name}: the key column {nullable[0]!r} may not be Nullable")
    if taken := [column for column in _own_columns(engine, storage) if column in columns]:
        raise ConfigurationError(
            f"{name}: {source.label} has a column {taken[0]!r}, which the engine wants for itself; name the engine's "
            "column otherwise, such as Replacing(version='sync_version')"
            if taken[0] != BATCH_COLUMN
            else f"{name}: {source.label} has a column {BATCH_COLUMN!r}, which the pipeline wants for itself; leave it "
            f"out or give it another name: columns = {{{BATCH_COLUMN!r}: None, …}}"
        )
    if unknown := [column for column in engine.order_by if column not in columns]:
        raise ConfigurationError(f"{name}: order_by names {unknown[0]!r}, which is no column of the table")
    return columns


def _parse(name: str, column: str, type_: str) -> ColumnType:
    try:
        return parse_type(type_)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: column {column!r}: {error}") from None
