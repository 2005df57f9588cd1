"""A materialized view that sums up each batch of a table, and the question whether its sums are the table's.

A batch that was inserted twice or in part shows in the view even where the table itself dropped the repeat. Only SQL:
whoever asks has a client of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.clickhouse.identifiers import quote, quote_table

_REMEMBERED_BLOCKS = 100_000


@dataclass(frozen=True, kw_only=True)
class ViewSums:
    view: str
    table: str
    batch_column: str
    id_column: str | None

    def create(self, *, remembered_blocks: int = _REMEMBERED_BLOCKS) -> str:
        return (
            f"CREATE MATERIALIZED VIEW {quote_table(self.view)} ENGINE = SummingMergeTree ORDER BY batch "
            f"SETTINGS non_replicated_deduplication_window = {remembered_blocks} AS {self._sums}"
        )

    @property
    def mismatch_query(self) -> str:
        """Batches of the table that the view has summed up otherwise: batch, rows in the table, rows in the view.

        A batch of which the table has nothing left is not among them: the view does not follow what is deleted.
        """
        return (
            "SELECT toString(there.batch), there.n, summed.n "  # noqa: S608 - identifiers are quoted
            f"FROM ({self._sums}) AS there LEFT JOIN ("
            f"SELECT batch, sum(n) AS n, sum(ids) AS ids FROM {quote_table(self.view)} GROUP BY batch"
            ") AS summed ON there.batch = summed.batch "
            "WHERE there.n != summed.n OR there.ids != summed.ids ORDER BY there.batch"
        )

    @property
    def _sums(self) -> str:
        ids = f"sum(cityHash64({quote(self.id_column)}))" if self.id_column else "toUInt64(0)"
        return (
            f"SELECT {quote(self.batch_column)} AS batch, count() AS n, {ids} AS ids "  # noqa: S608 - quoted
            f"FROM {quote_table(self.table)} GROUP BY batch"
        )
