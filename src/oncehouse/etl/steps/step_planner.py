"""Lays a topic's step out: looks at its sources and offsets, and says which operations in which order.

Holds: a range whose insert may have begun is laid out as it was. Reads, and writes nothing; performing is for the
runner.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from oncehouse.clickhouse.client import Client
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state import topic_lease
from oncehouse.etl.state.decision import DueStep, ResumeStep
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.next_backfill import DueJob
from oncehouse.etl.state.position import START, Position, Range
from oncehouse.etl.state.topic_lease import INSERTING
from oncehouse.etl.state.topic_state import JobKind, OpenRange
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.etl.steps.backfill_planner import JobPlanner
from oncehouse.etl.steps.destination_check import (
    refuse_existing_rows,
    refuse_rows_ahead,
    shows_positions,
)
from oncehouse.etl.steps.operation_builder import (
    before_operations,
    rebuild_operations,
    step_operations,
)
from oncehouse.etl.steps.operations import (
    Operation,
    WriteNext,
)
from oncehouse.etl.steps.range_sizing import RangeSizing
from oncehouse.etl.steps.source_ranges import find_range, splits_time
from oncehouse.etl.steps.source_rows import require_rows
from oncehouse.etl.steps.transform_cache import PreparedTransform, TransformCache


@dataclass(frozen=True, kw_only=True)
class TopicStep:
    """A topic's next step, ready to be printed or performed."""

    topic: Topic
    seen: Offset
    """The offsets it was planned from; it is refused when they have moved."""
    span: Range
    prepared: PreparedTransform
    operations: tuple[Operation, ...]
    before: OpenRange | None = None
    """This very range was begun before, so its rows may be there, or be on their way."""


@dataclass(frozen=True, kw_only=True)
class StepPlanner:
    client: Client
    store: OffsetStore
    hostid: str
    preparation: TransformCache
    sizing: RangeSizing
    waited_for: frozenset[str] | None = None
    """Tables whose time bounds other topics' steps; None: any may."""
    shared: frozenset[str] = frozenset()
    """Fact tables that several topics build: whose rows are there is not known."""

    def plan_decision(
        self, decision: DueStep | ResumeStep | DueJob, found: Range | None = None
    ) -> TopicStep | None:
        """The step's operations; None when its source has no rows in reach. Reads, and writes nothing.

        `found` is the range of a step that is due, if it was looked up before.
        """
        prepared = self.preparation.prepare(decision.topic)
        match decision:
            case DueJob():
                return self._plan_backfill(decision, prepared)
            case ResumeStep():
                return self._plan_repeat(decision, prepared)
            case DueStep():
                return self._plan_due(decision, prepared, found)

    def find_next(self, topic: Topic, last: Position, upper: Position) -> Range | None:
        """The rows of the main source that the next step takes."""
        return find_range(
            self.client,
            topic.depends_on[0],
            last=last,
            upper_ms=upper.time_ms,
            upper_id=upper.id,
            maxstep_rows=topic.maxstep_rows,
        )

    def _plan_repeat(self, decision: ResumeStep, prepared: PreparedTransform) -> TopicStep:
        topic, seen = decision.topic, decision.offset
        if seen.job_kind:
            step = self._plan_backfill(_lent(topic, seen), prepared)
            begin = WriteNext(topic=topic.topic, next=seen.next, state=INSERTING)
            return replace(step, operations=(begin, *step.operations[1:]))
        opened = seen.topic_state.opened or OpenRange(
            last=seen.last,
            next=seen.next,
            rows=self.sizing.count_main(topic, seen.last, seen.next),
            since_ms=seen.run_ms,
        )
        span = Range(last=seen.last, next=seen.next, rows=opened.rows, is_cut=True)
        step = self.assemble(topic, seen, span, prepared, is_fixed=True, is_resumed=True)
        return replace(step, before=opened)

    def _plan_due(
        self, decision: DueStep, prepared: PreparedTransform, found: Range | None
    ) -> TopicStep | None:
        topic, seen = decision.topic, decision.offset
        if topic.template != Template.STEP:
            # It is built from all that its sources hold up to there; no single row ends it.
            end = decision.upper
            rows = self.sizing.count_main(topic, seen.last, end)
            span = Range(last=seen.last, next=end, rows=rows, is_cut=False)
            return self.assemble(topic, seen, span, prepared, is_fixed=True)
        found = found or self.find_next(topic, seen.last, decision.upper)
        if found is None:
            return None
        if seen.last == START and not seen.generation and not seen.topic_state.segments:
            self._check_rows(topic, seen, partial(refuse_existing_rows, self.client, topic))
        elif self._may_be_behind(topic, prepared):
            forced_upto = seen.topic_state.forced_upto
            self._check_rows(topic, seen, partial(refuse_rows_ahead, self.client, topic, found, forced_upto))
        return self._plan_range(topic, seen, prepared, found)

    def _plan_range(self, topic: Topic, seen: Offset, prepared: PreparedTransform, found: Range) -> TopicStep:
        if self.sizing.is_surely_small(found):
            return self.assemble(topic, seen, found, prepared, is_fixed=True)
        if prepared.transform.offsets_table or before_operations(topic, prepared.transform, found):
            # What it yields is known once `next` is written, and what stands before it has run.
            return self.assemble(topic, seen, found, prepared, is_fixed=False)
        sized = self.sizing.size_range(topic, prepared.transform, found)
        return self.assemble(topic, seen, sized, prepared, is_fixed=True)

    def _may_be_behind(self, topic: Topic, prepared: PreparedTransform) -> bool:
        """Whether offsets in a catalog may have been lost since their rows were built. That is so before each step: if
        another process went on from where this one was and its transactions were lost, the offsets look the same. Only
        where it can be seen whose rows there are."""
        return (
            self.store.view_table is None
            and topic.dst not in self.shared
            and shows_positions(prepared.destination.facts)
        )

    def _check_rows(self, topic: Topic, seen: Offset, refuse: Callable[[], None]) -> None:
        """Refused by rows in the table, unless they are of another process that has begun the topic just now."""
        try:
            refuse()
        except ConfigurationError:
            row = self.store.read_all().offsets.get(topic.topic)
            if row is not None and (row.hostid or row.last != seen.last or row.is_open):
                raise topic_lease.MutexError(
                    f"Topic {topic.topic}: another process has begun it; the next round plans it again."
                ) from None
            raise

    def _plan_backfill(self, due_job: DueJob, prepared: PreparedTransform) -> TopicStep:
        planner = JobPlanner(client=self.client, hostid=self.hostid, size_range=self.sizing.size_range)
        planned = planner.plan(
            due_job,
            prepared.transform,
            prepared.columns,
            most_blocks=prepared.destination.narrowest.window_blocks,
        )
        operations = require_rows(
            self.client,
            due_job.topic,
            prepared.transform,
            planned.span,
            planned.operations,
            is_begun=due_job.opened is not None,
        )
        return TopicStep(
            topic=due_job.topic,
            seen=due_job.offset,
            span=planned.span,
            prepared=prepared,
            operations=operations,
            before=due_job.opened,
        )

    def assemble(
        self,
        topic: Topic,
        seen: Offset,
        span: Range,
        prepared: PreparedTransform,
        *,
        is_fixed: bool,
        is_resumed: bool = False,
    ) -> TopicStep:
        hostid = self.hostid
        transform, columns = prepared.transform, prepared.columns
        if topic.template == Template.STEP:
            span = replace(span, splits_time=self._splits_time(topic, span))
            operations = step_operations(
                topic,
                transform,
                columns,
                span,
                hostid=hostid,
                is_fixed=is_fixed,
                is_resumed=is_resumed,
                generation=seen.generation,
                most_blocks=prepared.destination.narrowest.window_blocks,
            )
            operations = require_rows(self.client, topic, transform, span, operations, is_begun=is_resumed)
        else:
            operations = rebuild_operations(
                topic,
                transform,
                columns,
                span,
                hostid=hostid,
                token=f"etl-{uuid.uuid4().hex}",
            )
        return TopicStep(topic=topic, seen=seen, span=span, prepared=prepared, operations=operations)

    def _splits_time(self, topic: Topic, span: Range) -> bool:
        """Whether rows of the time at which the range ends are left. Where no topic waits for the topic's time that is
        not looked up, and taken for true: who may wait for it later then waits for its next step."""
        if not span.is_cut:
            return False
        if self.waited_for is not None and topic.dst not in self.waited_for:
            return True
        return splits_time(self.client, topic.depends_on[0], span.next)


def _lent(topic: Topic, seen: Offset) -> DueJob:
    """The open range of the job that has the topic's row."""
    job_kind = JobKind(seen.job_kind)
    job = seen.topic_state.job(job_kind)
    opened = job.opened if job else None
    return DueJob(topic=topic, offset=seen, job_kind=job_kind, after=seen.last, upto=seen.next, opened=opened)
