"""Rows of a table by batch: how many there are, how many different ones, their unique ids, and inserts under way.

Counts and ids that decide something are read on a replica that has all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.replica_sync import read_each_in_step, read_in_step
from oncehouse.common.query_ids import ATTEMPT_QUERY_ID

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from oncehouse.clickhouse.client import Client

    UInt64 = npt.NDArray[np.uint64]

# Bound values travel in the address, which servers take up to 1 MiB of.
_BATCHES_A_QUERY = 2000
# The halves of an id, as numbers: its bytes stand with the highest first.
_HALF = "reinterpretAsUInt64(reverse(substring({column}, {start}, 8)))"


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


def read_unique_ids(
    client: Client,
    table: str,
    *,
    batch_column: str,
    id_column: str,
    batch_ids: Sequence[str],
    first: int,
    last: int,
) -> Iterator[tuple[UInt64, UInt64]]:
    """(high halves, low halves) of the rows of these batches whose high half lies between two, both included."""
    column = quote(id_column)
    hi, lo = (_HALF.format(column=column, start=start) for start in (1, 9))
    sql = (
        f"SELECT {hi} AS id_hi, {lo} AS id_lo FROM {quote_table(table)} "  # noqa: S608 - quoted
        f"WHERE {quote(batch_column)} IN {{ids:Array(UUID)}} "
        f"AND {hi} BETWEEN {{first:UInt64}} AND {{last:UInt64}}"
    )

    def read(start: int, reader: Client) -> pa.Table:
        ids = list(batch_ids[start : start + _BATCHES_A_QUERY])
        return reader.query_arrow(sql, {"ids": ids, "first": first, "last": last}, settings={"final": 0})

    reads = (partial(read, start) for start in range(0, len(batch_ids), _BATCHES_A_QUERY))
    for found in read_each_in_step(client, [table], reads):
        yield found.column("id_hi").to_numpy(), found.column("id_lo").to_numpy()


def find_running_inserts(client: Client, table: str) -> tuple[str, ...]:
    """Query ids of inserts into the table that a pipeline has sent and that are not over."""
    rows = client.query(
        "SELECT query_id FROM system.processes WHERE query_kind = 'Insert' "
        "AND match(query_id, {pattern:String}) AND position(query, {table:String}) > 0",
        {"pattern": ATTEMPT_QUERY_ID, "table": quote_table(table)},
    )
    return tuple(str(row[0]) for row in rows)
