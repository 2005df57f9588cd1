"""What `oncehouse cdc init` writes: a connector for the named tables and a pipeline for each, or one for the outbox.

Reads the database and changes nothing in it. Everything is judged before the first file is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.connector_config import (
    Config,
    Database,
    Topics,
    make_outbox_connector,
    make_table_connector,
    topic_of,
)
from oncehouse.messaging.cdc.pipeline_files import PipelineFile, write_pipeline
from oncehouse.messaging.cdc.source_tables import SourceTable, read_table

# What the columns of the outbox are called that the router is told of.
_OUTBOX_COLUMNS = {"id", "topic", "key", "value", "headers"}


@dataclass(frozen=True, kw_only=True)
class Draft:
    files: Mapping[str, str]
    """Name and text; connectors first."""
    pipelines: tuple[PipelineFile, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the pipelines find their servers."""

    bootstrap_servers: str
    clickhouse_url: str


def draft_tables(
    connection: Connection,
    names: Sequence[str],
    *,
    prefix: str,
    database: Database,
    topics: Topics,
    places: Places,
    without_full: bool,
) -> Draft:
    tables = [read_table(connection, name) for name in dict.fromkeys(names)]
    connector = draft_connector(
        tables, prefix=prefix, database=database, topics=topics, without_full=without_full
    )
    pipelines = tuple(
        write_pipeline(
            table,
            topic=topic_of(prefix, table),
            bootstrap_servers=places.bootstrap_servers,
            clickhouse_url=places.clickhouse_url,
        )
        for table in tables
    )
    return Draft(
        files={**connector.files, **{f"{pipeline.name}.yaml": pipeline.text for pipeline in pipelines}},
        pipelines=pipelines,
        warnings=(
            *connector.warnings,
            *(
                f"{table.full_name}.{reason}"
                for table, pipeline in zip(tables, pipelines, strict=True)
                for reason in pipeline.left_out
            ),
        ),
    )


def draft_connector(
    tables: Sequence[SourceTable], *, prefix: str, database: Database, topics: Topics, without_full: bool
) -> Draft:
    """The connector alone, once the tables were judged. A table has the columns that somebody will read."""
    _refuse_generated(tables)
    missing = [table for table in tables if table.may_miss_values]
    if missing and not without_full:
        raise ConfigurationError(_ask_for_identity(missing))
    config = make_table_connector(prefix, database, tables, topics)
    return Draft(
        files={f"{prefix}.connector.json": _connector_text(prefix, config)},
        warnings=tuple(_warn_of_toast(table) for table in missing),
    )


def draft_outbox(
    connection: Connection, name: str, *, prefix: str, database: Database, topics: Topics
) -> Draft:
    table = read_table(connection, name)
    absent = sorted(_OUTBOX_COLUMNS - {column.name for column in table.columns})
    if absent:
        raise ConfigurationError(
            f"{table.full_name} is no outbox table: it has no column {', '.join(absent)}. "
            "`oncehouse outbox init` makes one"
        )
    config = make_outbox_connector(prefix, database, table.full_name, topics)
    return Draft(files={f"{prefix}.connector.json": _connector_text(prefix, config)})


def parse_connector(text: str, file: str) -> tuple[str, Config]:
    """Name and configuration out of a connector's file."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{file}: is no JSON: {error}") from None
    match found:
        case {"name": str(name), "config": dict(config)} if all(isinstance(v, str) for v in config.values()):
            return name, {str(key): value for key, value in config.items()}
        case _:
            raise ConfigurationError(
                f'{file}: must be {{"name": "…", "config": {{…}}}} with texts for all values, as `cdc init` writes it'
            )


def _connector_text(name: str, config: Config) -> str:
    return json.dumps({"name": name, "config": config}, indent=2, ensure_ascii=False) + "\n"


def _refuse_generated(tables: Sequence[SourceTable]) -> None:
    """A publication must not make the application's own updates fail."""
    for table in tables:
        if table.full_refused and table.full_identity:
            raise ConfigurationError(
                f"{table.full_name} has generated columns and REPLICA IDENTITY FULL: once it is published, PostgreSQL "
                f"refuses to update it. First run: ALTER TABLE {_quote(table)} REPLICA IDENTITY DEFAULT"
            )


def _ask_for_identity(tables: Sequence[SourceTable]) -> str:
    listed = "\n".join(
        f"  -- {table.full_name}: not with its generated columns, PostgreSQL would refuse updates"
        if table.full_refused
        else f"  ALTER TABLE {_quote(table)} REPLICA IDENTITY FULL;  -- {', '.join(table.may_miss_values)}"
        for table in tables
    )
    return (
        "PostgreSQL leaves large values out of its log when an update does not touch them, so that changes would "
        f"arrive without them. Have it write whole rows:\n{listed}\n"
        "or say --without-full, if all values of these columns are short: rows without a value become dead letters"
    )


def _quote(table: SourceTable) -> str:
    # `parse_table_name` lets no quotes through.
    return f'"{table.schema}"."{table.name}"'


def _warn_of_toast(table: SourceTable) -> str:
    return (
        f"{table.full_name}: without REPLICA IDENTITY FULL a change that leaves a large value alone becomes a dead "
        f"letter ({', '.join(table.may_miss_values)})"
    )
