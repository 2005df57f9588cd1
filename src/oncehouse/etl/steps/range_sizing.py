"""How many rows a range has and yields, and how it is narrowed until that fits one block. Reads, and writes nothing."""

from __future__ import annotations

from dataclasses import replace

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.errors import PermanentError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.position import Position, Range
from oncehouse.etl.steps.operation_builder import bind_select, late_condition
from oncehouse.etl.steps.operations import Freeze
from oncehouse.etl.steps.source_ranges import count_range, find_range
from oncehouse.etl.steps.transforms import Transform

_SURE_FAN_OUT = 64
"""A range is not counted first if its output fits even when each source row becomes this many."""


class RangeSizing:
    def __init__(self, client: Client, block_rows: int) -> None:
        """`block_rows` is how many rows of output one block takes."""
        self._client = client
        self.block_rows = block_rows

    def is_surely_small(self, span: Range) -> bool:
        return span.rows * _SURE_FAN_OUT <= self.block_rows

    def size_range(self, topic: Topic, transform: Transform, span: Range) -> Range:
        while (rows := self.count_output(topic, transform, span)) > self.block_rows:
            span = self.halve(topic, span, rows)
        return span

    def halve(self, topic: Topic, span: Range, output_rows: int) -> Range:
        half = find_range(
            self._client,
            topic.depends_on[0],
            last=span.last,
            upper_ms=span.next.time_ms,
            maxstep_rows=max(1, span.rows // 2),
        )
        if half is None or half.next >= span.next:
            raise PermanentError(
                f"Topic {topic.topic}: the row of {topic.depends_on[0]} after {span.last} alone yields {output_rows} "
                f"rows, more than the {self.block_rows} of one block. Look for a join that multiplies rows."
            )
        return replace(half, is_cut=True)

    def count_output(
        self, topic: Topic, transform: Transform, span: Range, frozen: Freeze | None = None
    ) -> int:
        where = f" WHERE {late_condition(frozen.table)}" if frozen else ""
        sql = f"SELECT count() FROM ({transform.select}){where}"  # noqa: S608 - a view's quoted name, or the user's own text
        rows = read_in_step(
            self._client,
            topic.depends_on,
            lambda reader: reader.query(sql, bind_select(transform, span)),
        )
        return int(rows[0][0])

    def count_main(self, topic: Topic, last: Position, next_: Position) -> int:
        if not topic.depends_on:
            return 0
        return count_range(self._client, topic.depends_on[0], last=last, next_=next_)
