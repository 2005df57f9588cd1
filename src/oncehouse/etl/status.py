"""Where each topic stands: what the scheduler would decide now, with its reasons; gaps, back-fills, late rows.

It changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oncehouse.etl.lineage.topic import LatePolicy, Template
from oncehouse.etl.open import Etl, read_offsets
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_lease import failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncehouse.etl.lineage.topic import Topic
    from oncehouse.etl.quality.check_log import CheckRow
    from oncehouse.etl.state.decision import Decision
    from oncehouse.etl.state.models import SourceState
    from oncehouse.etl.state.transitions import OffsetSnapshot


@dataclass(frozen=True, kw_only=True)
class GapStatus:
    after: Position
    upto: Position
    rows: int
    """Rows of the main source in it that were never built."""


@dataclass(frozen=True, kw_only=True)
class BackfillStatus:
    after: Position
    upto: Position
    rows: int
    """Rows of the main source that it has covered."""
    rows_left: int
    failed: int
    why: str


@dataclass(frozen=True, kw_only=True)
class DeclaredStatus:
    table: str
    upto: Position
    """No row comes there any more, or before."""
    consumer: str
    """The loader that declares it."""
    age_seconds: float
    """Since it was last written."""


@dataclass(frozen=True, kw_only=True)
class TopicStatus:
    topic: str
    dst: str
    decision: str
    """`due`, `resume`, `backfill`, `repair`, `waiting` or `paused`."""
    reason: str
    """Why it waits."""
    last: Position
    next: Position
    rows: int
    """Of the last step: those of the main source that it took; of a reload or a range, those it put in place."""
    state: str
    hostid: str
    lag_seconds: dict[str, float | None]
    """Source and how far its newest row is ahead of `last`; None: it has no rows."""
    late: str = "count"
    """What becomes of late rows."""
    late_rows: int = 0
    """Rows that came late and are not built, by the latest count."""
    repaired_rows: int = 0
    repair_why: str = ""
    """Why the latest repair failed."""
    rows_ahead: dict[str, int] = field(default_factory=dict)
    """Source and how many of its rows are too far in the future to be taken for its time."""
    declared: tuple[DeclaredStatus, ...] = ()
    """Sources of which their loaders declare how far they have come."""
    gaps: tuple[GapStatus, ...] = ()
    backfill: BackfillStatus | None = None
    checks: tuple[CheckRow, ...] = ()
    """What became of its expectations when they were last looked at."""

    @property
    def failures(self) -> int:
        """How many times in a row its step has failed."""
        return failures(self.state)


def read_status(etl: Etl) -> list[TopicStatus]:
    from oncehouse.etl.scheduler.due_steps import due_steps
    from oncehouse.etl.scheduler.topic_bound import find_declared
    from oncehouse.etl.steps.source_ranges import (
        count_future,
        exclude_future,
        list_source_tables,
        read_sources,
    )

    snapshot = read_offsets(etl)  # before the sources: what is declared of them is then among their rows
    read = read_sources(etl.client, list_source_tables(etl.built_topics))
    clock_ms = snapshot.now_ms if read.clock_ms is None else read.clock_ms
    upto_ms = clock_ms + round(etl.settings.ahead * 1000)
    sources = exclude_future(etl.client, read.states, upto_ms)
    declared = find_declared(etl.lineage, snapshot.offsets)
    decisions = due_steps(
        etl.built_topics,
        snapshot.offsets,
        sources,
        snapshot.now_ms,
        lease_seconds=etl.settings.lease,
        clock_ms=clock_ms,
        declared=declared,
    )
    makers = {topic.dst: topic.topic for topic in etl.built_topics}
    ahead = count_future(etl.client, sources.values(), upto_ms)
    described = (
        replace(
            _describe(etl, _confirm_rows(etl, decision), makers, snapshot.offsets, sources),
            rows_ahead={table: ahead[table] for table in decision.topic.depends_on if table in ahead},
            declared=_describe_declared(etl, decision.topic, snapshot),
        )
        for decision in decisions
    )
    return _add_checks(etl, described)


def _describe_declared(etl: Etl, topic: Topic, snapshot: OffsetSnapshot) -> tuple[DeclaredStatus, ...]:
    from oncehouse.etl.scheduler.topic_bound import find_declared

    names = {source.dst: source.topic for source in etl.lineage}
    declared = find_declared(etl.lineage, snapshot.offsets)
    return tuple(
        DeclaredStatus(
            table=table,
            upto=declared[table],
            consumer=row.consumer,
            age_seconds=max(0, snapshot.now_ms - row.run_ms) / 1000,
        )
        for table in topic.depends_on
        if table in declared
        for row in [snapshot.offsets[names[table]]]
    )


def _add_checks(etl: Etl, described: Iterable[TopicStatus]) -> list[TopicStatus]:
    """Results of expectations that the lineage has now; others are history."""
    from oncehouse.etl.quality.check_log import read_latest_checks
    from oncehouse.etl.quality.expectations import format_expectation

    wanted = {topic.topic: {format_expectation(one) for one in topic.expect} for topic in etl.built_topics}
    if not any(wanted.values()):
        return list(described)
    latest = read_latest_checks(etl.client, etl.settings.database)
    return [
        replace(
            one,
            checks=tuple(row for row in latest.get(one.topic, ()) if row.expectation in wanted[one.topic]),
        )
        for one in described
    ]


def _confirm_rows(etl: Etl, decision: Decision) -> Decision:
    """A topic may be due by its times and yet have no row up to there: its new ones wait for a slower source."""
    from oncehouse.etl.scheduler.due_steps import wait_for_rows
    from oncehouse.etl.state.decision import DueStep
    from oncehouse.etl.steps.source_ranges import find_range

    topic = decision.topic
    if not isinstance(decision, DueStep) or topic.template != Template.STEP:
        return decision
    found = find_range(
        etl.client,
        topic.depends_on[0],
        last=decision.offset.last,
        upper_ms=decision.upper_ms,
        upper_id=decision.upper_id,
        maxstep_rows=1,
        decides=False,
    )
    return decision if found is not None else wait_for_rows(decision)


def find_gap_rows(etl: Etl, topic: Topic, offset: Offset) -> tuple[GapStatus, ...]:
    """Gaps in which the main source has rows: anything else is nothing to fill."""
    from oncehouse.etl.state.next_backfill import find_open_gaps
    from oncehouse.etl.steps.source_ranges import count_range

    if not topic.depends_on or topic.template is Template.RELOAD:
        return ()
    counted = (
        GapStatus(
            after=after,
            upto=upto,
            rows=count_range(etl.client, topic.depends_on[0], last=after, next_=upto, decides=False),
        )
        for after, upto in find_open_gaps(offset)
    )
    return tuple(gap for gap in counted if gap.rows)


def _describe_backfill(offset: Offset, gaps: tuple[GapStatus, ...]) -> BackfillStatus | None:
    from oncehouse.etl.state.topic_state import JobKind

    job = offset.topic_state.job(JobKind.BACKFILL)
    if job is None:
        return None
    left = sum(gap.rows for gap in gaps if gap.after < job.upto and gap.upto > job.after)
    return BackfillStatus(
        after=job.after, upto=job.upto, rows=job.rows, rows_left=left, failed=job.failed, why=job.why
    )


def _describe(
    etl: Etl,
    decision: Decision,
    makers: Mapping[str, str],
    offsets: Mapping[str, Offset],
    sources: Mapping[str, SourceState],
) -> TopicStatus:
    from oncehouse.etl.state.coverage import count_late
    from oncehouse.etl.state.next_backfill import DueJob
    from oncehouse.etl.state.topic_state import JobKind

    topic, offset = decision.topic, decision.offset
    gaps = find_gap_rows(etl, topic, offset)
    repair = offset.topic_state.job(JobKind.REPAIR)
    return TopicStatus(
        topic=topic.topic,
        dst=topic.dst,
        decision=str(decision.job_kind) if isinstance(decision, DueJob) else decision.name,
        reason=getattr(decision, "reason", ""),
        last=offset.last,
        next=offset.next,
        rows=offset.rows,
        state=offset.state,
        hostid=offset.hostid,
        lag_seconds={
            table: _lag_seconds(newest, offset.reached)
            for table in topic.depends_on
            for newest in [_newest(table, makers, offsets, sources)]
        },
        late=str(topic.late),
        late_rows=count_late(offset.topic_state.segments),
        repaired_rows=offset.topic_state.repaired,
        repair_why=repair.why if repair and topic.late is LatePolicy.REPAIR else "",
        gaps=gaps,
        backfill=_describe_backfill(offset, gaps),
    )


def _newest(
    table: str, makers: Mapping[str, str], offsets: Mapping[str, Offset], sources: Mapping[str, SourceState]
) -> Position | None:
    """The newest row of a table that was asked; of another one, how far the topic that builds it has come."""
    if table in sources:
        return sources[table].newest
    built = offsets.get(makers.get(table, ""))
    return built.reached if built is not None and built.reached != START else None


def _lag_seconds(newest: Position | None, last: Position) -> float | None:
    return None if newest is None else max(0, newest.time_ms - last.time_ms) / 1000
