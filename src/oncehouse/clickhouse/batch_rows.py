"""How many rows, and how many different ones, of each batch a table holds, in one query each.

What decides something is counted on a replica that is in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.replica_sync import read_in_step

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


def count_distinct_by_batch(client: Client, table: str, batch_column: str, id_column: str) -> dict[str, int]:
    """Different unique ids by batch id: fewer than rows means that some row stands twice."""
    column = quote(batch_column)
    sql = f"SELECT toString({column}), uniqExact({quote(id_column)}) FROM {quote_table(table)} GROUP BY {column}"  # noqa: S608 - quoted
    rows = read_in_step(client, [table], lambda reader: reader.query(sql, settings={"final": 0}))
    return {str(batch_id): int(count) for batch_id, count in rows}


def count_by_batch(client: Client, table: str, batch_column: str) -> dict[str, int]:
    """Rows by batch id, as they are stored: nothing is merged for the question."""
    column = quote(batch_column)
    sql = f"SELECT toString({column}), count() FROM {quote_table(table)} GROUP BY {column}"  # noqa: S608 - quoted
    rows = read_in_step(client, [table], lambda reader: reader.query(sql, settings={"final": 0}))
    return {str(batch_id): int(count) for batch_id, count in rows}


def count_of_batch(
    client: Client,
    table: str,
    batch_column: str,
    batch_id: str,
    *,
    id_column: str | None,
    unique_id: str | None,
) -> tuple[int, int | None]:
    """Rows of one batch, and those of them that have this unique id (hexadecimal); None where it cannot be asked.

    It is shown and decides nothing, so any replica will do.
    """
    asks_id = id_column is not None and unique_id is not None
    mine = f"countIf({quote(id_column)} = unhex({{id:String}}))" if id_column and asks_id else "NULL"
    rows = client.query(
        f"SELECT count(), {mine} FROM {quote_table(table)} WHERE {quote(batch_column)} = {{batch:UUID}}",  # noqa: S608 - quoted
        {"batch": batch_id, "id": unique_id or ""},
        settings={"final": 0},
    )
    count, found = rows[0]
    return int(count), None if found is None else int(found)
