"""Lays out a step of a job: which rows of a gap it fills, or how the late rows of a range get in.

Reads, and writes nothing. Its range is new, and then found here; or it was begun before, and then it is that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from oncehouse.clickhouse.client import Client
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.next_backfill import DueJob
from oncehouse.etl.state.position import Range
from oncehouse.etl.state.topic_state import JobKind, OpenRange
from oncehouse.etl.steps.late_row_repair import check_repairable, find_end
from oncehouse.etl.steps.operation_builder import (
    job_operations,
    rebuild_operations,
    repair_operations,
    step_operations,
)
from oncehouse.etl.steps.operations import MarkCovered, Operation, WriteJobRange
from oncehouse.etl.steps.source_ranges import count_range, find_range
from oncehouse.etl.steps.transforms import Transform

_VIEW_ROWS = 131_072
"""A view that reads the offsets cannot be counted before they are written, so its steps are small from the start."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    span: Range
    operations: tuple[Operation, ...]


@dataclass(frozen=True, kw_only=True)
class JobPlanner:
    client: Client
    hostid: str
    size_range: Callable[[Topic, Transform, Range], Range]
    """Narrows a range until what its transform yields fits one block."""

    def plan(
        self, due_job: DueJob, transform: Transform, columns: Mapping[str, str], *, most_blocks: int = 0
    ) -> JobPlan:
        """`most_blocks` is how many blocks an insert may make; 0 sets no bound."""
        if due_job.job_kind is JobKind.REPAIR and due_job.topic.template is Template.STEP:
            check_repairable(self.client, due_job.topic, tuple(columns))
        span = self._repeat(due_job.opened) if due_job.opened else self._find(due_job, transform)
        if span is None:
            covered = Range(last=due_job.after, next=due_job.upto, rows=0, is_cut=False)
            mark = MarkCovered(topic=due_job.topic.topic, after=due_job.after, upto=due_job.upto)
            return JobPlan(span=covered, operations=(mark,))
        operations = self._lay_out(due_job, transform, columns, span, most_blocks)
        return JobPlan(span=span, operations=operations)

    def _repeat(self, opened: OpenRange) -> Range:
        return Range(last=opened.last, next=opened.next, rows=opened.rows, is_cut=True)

    def _find(self, due_job: DueJob, transform: Transform) -> Range | None:
        topic, main = due_job.topic, due_job.topic.depends_on[0]
        if topic.template is not Template.STEP:
            rows = count_range(self.client, main, last=due_job.after, next_=due_job.upto)
            return Range(last=due_job.after, next=due_job.upto, rows=rows, is_cut=False)
        if due_job.job_kind is JobKind.REPAIR:
            # Counted before it is looked which rows are late: one that comes in between is late again.
            end = find_end(self.client, topic, due_job.after, due_job.upto)
            rows = count_range(self.client, main, last=due_job.after, next_=end)
            return Range(last=due_job.after, next=end, rows=rows, is_cut=end < due_job.upto)
        job = due_job.offset.topic_state.job(JobKind.BACKFILL)
        most = (job.maxstep_rows if job else None) or topic.maxstep_rows
        found = find_range(
            self.client,
            main,
            last=due_job.after,
            upper_ms=due_job.upto.time_ms,
            upper_id=due_job.upto.id,
            maxstep_rows=min(most, _VIEW_ROWS) if transform.offsets_table else most,
        )
        if found is None:
            return None
        whole = found if found.is_cut else replace(found, next=due_job.upto)
        return whole if transform.offsets_table else self.size_range(topic, transform, whole)

    def _lay_out(
        self, due_job: DueJob, transform: Transform, columns: Mapping[str, str], span: Range, most_blocks: int
    ) -> tuple[Operation, ...]:
        topic_state = due_job.offset.topic_state
        opened = due_job.opened or OpenRange(
            last=span.last,
            next=span.next,
            rows=span.rows,
            generation=due_job.offset.generation,
            number=topic_state.repairs + 1 if due_job.job_kind is JobKind.REPAIR else 0,
        )
        topic, hostid = due_job.topic, self.hostid
        if topic.template is not Template.STEP:
            operations = rebuild_operations(
                topic,
                transform,
                columns,
                span,
                hostid=hostid,
                token=f"etl-{uuid.uuid4().hex}",
            )
        elif due_job.job_kind is JobKind.REPAIR:
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
        return job_operations(
            operations, WriteJobRange(topic=topic.topic, job_kind=due_job.job_kind, opened=opened)
        )
