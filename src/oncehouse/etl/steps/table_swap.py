"""Putting in place what was built aside: whole tables, or partitions. A gate on row counts stands before each.

Each run builds a table of its own. Who begins one drops those of others first; so a host that stood still, however
close to the end, finds nothing left to put in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import TableName, quote_table, split_table
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl.state.topic_lease import MutexError
from oncehouse.etl.steps.operation_builder import STAGING_INFIX
from oncehouse.etl.steps.operations import Exchange, ReplacePartitions


def drop_staging_tables(client: Client, dst: str) -> None:
    name = split_table(dst)
    database = name.database or client.database
    rows = client.query(
        "SELECT name FROM system.tables WHERE database = {database:String} AND startsWith(name, {prefix:String}) "
        "AND match(substring(name, length({prefix:String}) + 1), '^[0-9a-f]{16}$')",
        {"database": database, "prefix": f"{name.table}{STAGING_INFIX}"},
    )
    for (left,) in rows:
        client.command(f"DROP TABLE IF EXISTS {TableName(database=database, table=left).quoted} SYNC")


def exchange(client: Client, operation: Exchange) -> int:
    """How many rows were put in place."""
    with _raise_mutex_when_gone(operation):
        return _exchange(client, operation)


def replace_partitions(client: Client, operation: ReplacePartitions) -> int:
    """How many rows were put in place."""
    with _raise_mutex_when_gone(operation):
        return _replace_partitions(client, operation)


@contextmanager
def _raise_mutex_when_gone(operation: Exchange | ReplacePartitions) -> Iterator[None]:
    try:
        yield
    except OncehouseError as error:
        if failure_of(error).code != ErrorCode.UNKNOWN_TABLE or split_table(
            operation.staging
        ).table not in str(error):
            raise
        raise MutexError(
            f"MUTEX: what was built in {operation.staging} is gone: another process has taken the topic over and "
            f"rebuilds {operation.dst}. This run stops."
        ) from error


def _exchange(client: Client, operation: Exchange) -> int:
    dst, staging = quote_table(operation.dst), quote_table(operation.staging)
    had, has = read_in_step(
        client,
        [operation.dst, operation.staging],
        lambda reader: [_count(reader, table) for table in (dst, staging)],
    )
    if has < had * operation.gate_share:
        raise PermanentError(
            f"{operation.dst} has {had} rows, its reload only {has}, less than {operation.gate_share:.0%}. It was not "
            f"put in place and stands in {operation.staging}; look at its sources, or empty {operation.dst} first if "
            "that is right."
        )
    client.command(f"EXCHANGE TABLES {dst} AND {staging}")
    return has


def _count(client: Client, table: str) -> int:
    return int(client.query(f"SELECT count() FROM {table}")[0][0])  # noqa: S608 - the name is quoted


def _replace_partitions(client: Client, operation: ReplacePartitions) -> int:
    tables = (operation.dst, operation.staging)
    had, has = read_in_step(
        client, tables, lambda reader: [_rows_by_partition(reader, table) for table in tables]
    )
    for partition, rows in has.items():
        if rows < had.get(partition, 0) * operation.gate_share:
            raise PermanentError(
                f"{operation.dst}: its partition {partition} has {had[partition]} rows, the rebuilt one only {rows}, "
                f"less than {operation.gate_share:.0%}. Nothing was replaced. A transform of a Range must yield whole "
                "partitions: let it start at the beginning of the one that holds last_time."
            )
    for partition in has:
        client.command(
            f"ALTER TABLE {quote_table(operation.dst)} REPLACE PARTITION ID {{partition:String}} "
            f"FROM {quote_table(operation.staging)}",
            {"partition": partition},
        )
    return sum(has.values())


def _rows_by_partition(client: Client, table: str) -> dict[str, int]:
    name = split_table(table)
    rows = client.query(
        "SELECT partition_id, sum(rows) FROM system.parts WHERE active AND database = {database:String} "
        "AND table = {table:String} GROUP BY partition_id ORDER BY partition_id",
        {"database": name.database or client.database, "table": name.table},
    )
    return {partition: int(count) for partition, count in rows}
