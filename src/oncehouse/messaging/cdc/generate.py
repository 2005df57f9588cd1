"""Files of `oncehouse cdc init`: a connector for the named tables with a pipeline each, or a connector for the outbox.

Reads the database and changes nothing in it. Everything is checked before the first file is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.connector_config import (
    Config,
    ConnectorTopics,
    Database,
    make_outbox_connector,
    make_table_connector,
    topic_of,
)
from oncehouse.messaging.cdc.pipeline_files import PipelineFile, write_pipeline
from oncehouse.messaging.cdc.source_tables import SourceTable, read_table

# The columns of the outbox that the router uses.
_OUTBOX_COLUMNS = {"id", "topic", "key", "value", "headers"}


@dataclass(frozen=True, kw_only=True)
class Draft:
    files: Mapping[str, str]
    """Name and text; connectors first."""
    pipelines: tuple[PipelineFile, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerAddresses:
    """The servers of the pipelines."""

    bootstrap_servers: str
    clickhouse_url: str


def draft_tables(
    connection: Connection,
    names: Sequence[str],
    *,
    prefix: str,
    database: Database,
    topics: ConnectorTopics,
    places: ServerAddresses,
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
    tables: Sequence[SourceTable],
    *,
    prefix: str,
    database: Database,
    topics: ConnectorTopics,
    without_full: bool,
) -> Draft:
    """The connector alone, after checking the tables. `tables` have the columns that will be read."""
    _refuse_generated(tables)
    missing = [table for table in tables if table.may_miss_values]
    if missing and not without_full:
        raise ConfigurationError(_advise_identity(missing))
    config = make_table_connector(prefix, database, tables, topics)
    return Draft(
        files={f"{prefix}.connector.json": _connector_text(prefix, config)},
        warnings=tuple(_warn_of_toast(table) for table in missing),
    )


def draft_outbox(
    connection: Connection, name: str, *, prefix: str, database: Database, topics: ConnectorTopics
) -> Draft:
    table = read_table(connection, name)
    absent = sorted(_OUTBOX_COLUMNS - {column.name for column in table.columns})
    if absent:
        raise ConfigurationError(
            f"{table.full_name} is not an outbox table: it has no column {', '.join(absent)}. "
            "`oncehouse outbox init` creates one"
        )
    config = make_outbox_connector(prefix, database, table.full_name, topics)
    return Draft(files={f"{prefix}.connector.json": _connector_text(prefix, config)})


def parse_connector(text: str, file: str) -> tuple[str, Config]:
    """Name and configuration from a connector's file."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{file}: is not JSON: {error}") from None
    match found:
        case {"name": str(name), "config": dict(config)} if all(isinstance(v, str) for v in config.values()):
            return name, {str(key): value for key, value in config.items()}
        case _:
            raise ConfigurationError(
                f'{file}: must be {{"name": "…", "config": {{…}}}} with strings for all values, as `cdc init` writes it'
            )


def _connector_text(name: str, config: Config) -> str:
    return json.dumps({"name": name, "config": config}, indent=2, ensure_ascii=False) + "\n"


def _refuse_generated(tables: Sequence[SourceTable]) -> None:
    """Refuse a publication that would make the application's own updates fail."""
    for table in tables:
        if table.full_refused and table.full_identity:
            raise ConfigurationError(
                f"{table.full_name} has generated columns and REPLICA IDENTITY FULL: once it is published, PostgreSQL "
                f"refuses to update it. First run: ALTER TABLE {_quote(table)} REPLICA IDENTITY DEFAULT"
            )


def _advise_identity(tables: Sequence[SourceTable]) -> str:
    listed = "\n".join(
        f"  -- {table.full_name}: not possible with its generated columns: PostgreSQL would refuse updates"
        if table.full_refused
        else f"  ALTER TABLE {_quote(table)} REPLICA IDENTITY FULL;  -- {', '.join(table.may_miss_values)}"
        for table in tables
    )
    return (
        "PostgreSQL leaves large values out of its log when an update does not touch them, so changes would "
        f"arrive without them. Make it write whole rows:\n{listed}\n"
        "or add --without-full if all values of these columns are short: rows without a value become dead letters"
    )


def _quote(table: SourceTable) -> str:
    # `parse_table_name` lets no quotes through.
    return f'"{table.schema}"."{table.name}"'


def _warn_of_toast(table: SourceTable) -> str:
    return (
        f"{table.full_name}: without REPLICA IDENTITY FULL a change that leaves a large value alone becomes a dead "
        f"letter ({', '.join(table.may_miss_values)})"
    )
