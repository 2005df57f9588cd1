"""Unique ids out of a table, by batch: what a ledger that has forgotten them can learn again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.replica_sync import read_in_step

if TYPE_CHECKING:
    import numpy.typing as npt

    from oncehouse.clickhouse.client import Client

    UInt64 = npt.NDArray[np.uint64]

# Bound values travel in the address, which servers take up to 1 MiB of.
_BATCHES_A_QUERY = 2000
# The halves of an id, as numbers: its bytes stand with the highest first.
_HALF = "reinterpretAsUInt64(reverse(substring({column}, {start}, 8)))"


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
    # One sync for all of them: what was there before the first is there for the last.
    yield from read_in_step(
        client,
        [table],
        lambda reader: list(
            _read_unique_ids(
                reader,
                table,
                batch_column=batch_column,
                id_column=id_column,
                batch_ids=batch_ids,
                first=first,
                last=last,
            )
        ),
    )


def _read_unique_ids(
    client: Client,
    table: str,
    *,
    batch_column: str,
    id_column: str,
    batch_ids: Sequence[str],
    first: int,
    last: int,
) -> Iterator[tuple[UInt64, UInt64]]:
    column = quote(id_column)
    hi, lo = (_HALF.format(column=column, start=start) for start in (1, 9))
    for start in range(0, len(batch_ids), _BATCHES_A_QUERY):
        found = client.query_arrow(
            f"SELECT {hi} AS id_hi, {lo} AS id_lo FROM {quote_table(table)} "  # noqa: S608 - quoted
            f"WHERE {quote(batch_column)} IN {{ids:Array(UUID)}} "
            f"AND {hi} BETWEEN {{first:UInt64}} AND {{last:UInt64}}",
            {"ids": list(batch_ids[start : start + _BATCHES_A_QUERY]), "first": first, "last": last},
            settings={"final": 0},
        )
        yield found.column("id_hi").to_numpy(), found.column("id_lo").to_numpy()


def running_inserts(client: Client, table: str) -> tuple[str, ...]:
    """Query ids of inserts into the table that a pipeline has sent and that are not over."""
    rows = client.query(
        "SELECT query_id FROM system.processes WHERE query_kind = 'Insert' "
        "AND match(query_id, '^[0-9a-f-]{36}-[0-9]+$') AND position(query, {table:String}) > 0",
        {"table": quote_table(table)},
    )
    return tuple(str(row[0]) for row in rows)
