"""How many rows of each batch a table holds: one pass over the batch column, for verify and refill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.names import quote, quote_table

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


def rows_by_batch(client: Client, table: str, batch_column: str) -> dict[str, int]:
    rows = client.query(
        f"SELECT toString({quote(batch_column)}), count() "  # noqa: S608 - identifiers are quoted
        f"FROM {quote_table(table)} GROUP BY {quote(batch_column)}",
        None,
        {"final": 0},
    )
    return {str(batch): int(count) for batch, count in rows}
