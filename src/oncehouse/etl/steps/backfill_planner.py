"""Lays out a step of a lane: which rows of a gap it fills, or how the late rows of a range get in.

Reads, and writes nothing. Its range is new, and then found here; or it was begun before, and then it is that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from oncehouse.clickhouse.client import Client
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.next_backfill import Side
from oncehouse.etl.state.position import Range
from oncehouse.etl.state.topic_state import Lane, Opened
from oncehouse.etl.steps.late_row_repair import check_repairable, find_end
from oncehouse.etl.steps.operation_builder import (
    rebuild_operations,
    repair_operations,
    side_operations,
    step_operations,
)
from oncehouse.etl.steps.operations import MarkCovered, Operation, WriteSide
from oncehouse.etl.steps.source_ranges import count_range, find_range
from oncehouse.etl.steps.transforms import Transform

_VIEW_ROWS = 131_072
"""A view that reads the offsets cannot be counted before they are written, so its steps are small from the start."""


@dataclass(frozen=True, kw_only=True)
class SidePlan:
    span: Range
    operations: tuple[Operation, ...]


@dataclass(frozen=True, kw_only=True)
class SidePlanner:
    client: Client
    hostid: str
    fit: Callable[[Topic, Transform, Range], Range]
    """Narrows a range until what its transform yields fits one block."""

    def plan(
        self, side: Side, transform: Transform, columns: Mapping[str, str], *, most_blocks: int = 0
    ) -> SidePlan:
        """`most_blocks` is how many blocks an insert may make; 0 sets no bound."""
        if side.lane is Lane.REPAIR and side.topic.template is Template.STEP:
            check_repairable(self.client, side.topic, tuple(columns))
        span = self._again(side.opened) if side.opened else self._find(side, transform)
        if span is None:
            covered = Range(last=side.after, next=side.upto, rows=0, is_cut=False)
            mark = MarkCovered(topic=side.topic.topic, after=side.after, upto=side.upto)
            return SidePlan(span=covered, operations=(mark,))
        operations = self._lay_out(side, transform, columns, span, most_blocks)
        return SidePlan(span=span, operations=operations)

    def _again(self, opened: Opened) -> Range:
        return Range(last=opened.last, next=opened.next, rows=opened.rows, is_cut=True)

    def _find(self, side: Side, transform: Transform) -> Range | None:
        topic, main = side.topic, side.topic.depends_on[0]
        if topic.template is not Template.STEP:
            rows = count_range(self.client, main, last=side.after, next_=side.upto)
            return Range(last=side.after, next=side.upto, rows=rows, is_cut=False)
        if side.lane is Lane.REPAIR:
            # Counted before it is looked which rows are late: one that comes in between is late again.
            end = find_end(self.client, topic, side.after, side.upto)
            rows = count_range(self.client, main, last=side.after, next_=end)
            return Range(last=side.after, next=end, rows=rows, is_cut=end < side.upto)
        job = side.offset.book.job(Lane.BACKFILL)
        most = (job.maxstep_rows if job else None) or topic.maxstep_rows
        found = find_range(
            self.client,
            main,
            last=side.after,
            upper_ms=side.upto.time_ms,
            upper_id=side.upto.id,
            maxstep_rows=min(most, _VIEW_ROWS) if transform.offsets_table else most,
        )
        if found is None:
            return None
        whole = found if found.is_cut else replace(found, next=side.upto)
        return whole if transform.offsets_table else self.fit(topic, transform, whole)

    def _lay_out(
        self, side: Side, transform: Transform, columns: Mapping[str, str], span: Range, most_blocks: int
    ) -> tuple[Operation, ...]:
        book = side.offset.book
        opened = side.opened or Opened(
            last=span.last,
            next=span.next,
            rows=span.rows,
            generation=side.offset.generation,
            number=book.repairs + 1 if side.lane is Lane.REPAIR else 0,
        )
        topic, hostid = side.topic, self.hostid
        if topic.template is not Template.STEP:
            operations = rebuild_operations(
                topic,
                transform,
                columns,
                span,
                hostid=hostid,
                token=f"etl-{uuid.uuid4().hex}",
            )
        elif side.lane is Lane.REPAIR:
            return repair_operations(
                topic, transform, columns, span, hostid=hostid, opened=opened, most_blocks=most_blocks
            )
        else:
            operations = step_operations(
                topic,
                transform,
                columns,
                span,
                hostid=hostid,
                is_fixed=True,
                generation=opened.generation,
                most_blocks=most_blocks,
            )
        return side_operations(operations, WriteSide(topic=topic.topic, lane=side.lane, opened=opened))
