"""What `oncehouse sync pipeline` writes: one connector for the tables of the syncs, and a pipeline file for each sync.

Reads the database and changes nothing in it. Everything is checked, and all of a sync's refusals are reported at once,
before the first file is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.connector_config import ConnectorTopics, Database, topic_of
from oncehouse.messaging.cdc.generate import Draft, draft_connector
from oncehouse.messaging.cdc.source_tables import SourceTable, read_table
from oncehouse.sync.cdc.pipeline_files import TopicAddress, check_column_name, write_pipeline
from oncehouse.sync.cdc.wal_tables import leave_out, refuse_steps, refuse_watch
from oncehouse.sync.cdc.wal_types import explain_mismatch
from oncehouse.sync.model.declaration import Declaration, WalTable
from oncehouse.sync.model.engines import Replacing
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.settings import BY_CDC, clickhouse_config


@dataclass(frozen=True, kw_only=True)
class _SyncedTable:
    sync: type[ModelSync]
    declared: Declaration
    engine: Replacing
    wal_table: WalTable
    table: SourceTable


def draft_pipelines(
    connection: Connection,
    syncs: Sequence[type[ModelSync]],
    *,
    prefix: str,
    database: Database,
    topics: ConnectorTopics,
    bootstrap_servers: str,
    without_full: bool,
) -> Draft:
    _refuse_shared_names(syncs)
    followed = [_read_synced_table(connection, sync) for sync in syncs]
    connector = draft_connector(
        _join_tables(followed), prefix=prefix, database=database, topics=topics, without_full=without_full
    )
    return Draft(
        files={
            **connector.files,
            **{
                f"{one.declared.pipeline}.yaml": write_pipeline(
                    one.declared,
                    one.engine,
                    columns=one.wal_table.columns,
                    brokers=TopicAddress(
                        bootstrap_servers=bootstrap_servers, topic=topic_of(prefix, one.table)
                    ),
                    clickhouse=clickhouse_config(one.sync.read_settings(), one.declared.database),
                )
                for one in followed
            },
        },
        warnings=connector.warnings,
    )


def _refuse_shared_names(syncs: Iterable[type[ModelSync]]) -> None:
    known: dict[str | None, str] = {}
    for sync in syncs:
        declared = sync.declaration()
        if declared.pipeline is None:
            raise ConfigurationError(
                f"Sync {declared.name} is fed by rounds; for the pipeline write sync_storage = {BY_CDC!r} into it"
            )
        other = known.setdefault(declared.pipeline, declared.name)
        if other != declared.name:
            raise ConfigurationError(
                f"{other} and {declared.name} would both be the pipeline {declared.pipeline!r}; give one of them "
                "another sync_name"
            )


def _read_synced_table(connection: Connection, sync: type[ModelSync]) -> _SyncedTable:
    declared, wal_table = sync.declaration(), sync.describe_wal_table()
    refused = [*wal_table.refused, *refuse_watch(sync), *refuse_steps(sync)]
    if not isinstance(declared.engine, Replacing):
        refused.append(
            f"engine: {type(declared.engine).__name__} needs rounds; the pipeline writes for Replacing alone"
        )
    if "${" in declared.table:
        refused.append(f"table: {declared.table!a} would be read as a reference; name another one")
    table = read_table(connection, wal_table.name)
    refused += _find_column_problems(declared, wal_table, table)
    _refuse(declared, refused)
    assert isinstance(declared.engine, Replacing)  # noqa: S101 - for the type checker: refused above
    return _SyncedTable(
        sync=sync, declared=declared, engine=declared.engine, wal_table=wal_table, table=table
    )


def _find_column_problems(declared: Declaration, wal_table: WalTable, table: SourceTable) -> Iterable[str]:
    known = {column.name: column for column in table.columns}
    for name, source in wal_table.columns.items():
        problem = check_column_name(source)
        if problem is None and source not in known:
            problem = f"the log of {table.full_name} has no column {source!a} (it is generated, or not migrated yet)"
        if problem is None:
            problem = explain_mismatch(known[source], declared.columns[name])
        if problem is not None:
            yield leave_out(name, problem)
    key = {wal_table.columns.get(name) for name in declared.key}
    if key != set(table.key):
        yield (
            f"key: rows are identified by {', '.join(table.key)} in the log and by {', '.join(declared.key)} in the "
            "sync; both have to be the primary key of the table"
        )


def _refuse(declared: Declaration, refused: Sequence[str]) -> None:
    if refused:
        listed = "\n".join(f"  {one}" for one in refused)
        raise ConfigurationError(
            f"Sync {declared.name} cannot be fed from the database's log as it is declared:\n{listed}"
        )


def _join_tables(followed: Sequence[_SyncedTable]) -> list[SourceTable]:
    """Each table once, with the columns that some sync reads: others may be missing in the log."""
    read: Mapping[str, set[str]] = {one.table.full_name: set() for one in followed}
    for one in followed:
        read[one.table.full_name].update(one.wal_table.columns.values())
    tables = {one.table.full_name: one.table for one in followed}
    return [
        replace(table, columns=tuple(column for column in table.columns if column.name in read[name]))
        for name, table in tables.items()
    ]
