"""Putting in place what was built aside: whole tables, or partitions. A gate on row counts stands before each."""

from __future__ import annotations

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.names import quote_table, split_table
from oncehouse.errors import PermanentError
from oncehouse.etl.operations import Exchange, ReplacePartitions


def exchange(client: Client, operation: Exchange) -> None:
    dst, aside = quote_table(operation.dst), quote_table(operation.aside)
    had, has = (
        int(client.query(f"SELECT count() FROM {table}")[0][0])  # noqa: S608 - names are quoted
        for table in (dst, aside)
    )
    if has < had * operation.gate_share:
        raise PermanentError(
            f"{operation.dst} has {had} rows, its reload only {has}, less than {operation.gate_share:.0%}. It was not "
            f"put in place and stands in {operation.aside}; look at its sources, or empty {operation.dst} first if "
            "that is right."
        )
    client.command(f"EXCHANGE TABLES {dst} AND {aside}")


def replace_partitions(client: Client, operation: ReplacePartitions) -> None:
    had, has = (_rows_by_partition(client, table) for table in (operation.dst, operation.aside))
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
            f"FROM {quote_table(operation.aside)}",
            {"partition": partition},
        )


def _rows_by_partition(client: Client, table: str) -> dict[str, int]:
    name = split_table(table)
    rows = client.query(
        "SELECT partition_id, sum(rows) FROM system.parts WHERE active AND database = {database:String} "
        "AND table = {table:String} GROUP BY partition_id ORDER BY partition_id",
        {"database": name.database or client.database, "table": name.table},
    )
    return {partition: int(count) for partition, count in rows}
