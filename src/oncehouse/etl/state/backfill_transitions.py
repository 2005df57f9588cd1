"""Jobs apart from the forward runs, written into the topic's row: back-fills of gaps, and repairs of late rows.

A step of a job borrows the row: `last` and `next` become its range, and where the forward runs were is kept until
it ends. So one mutex guards the topic, and transforms that read the offsets serve jobs as well. A range that was
begun stays in the job until it is done, whatever else happens, and is never cut again.
"""

from __future__ import annotations

from dataclasses import replace

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state import topic_state as topic_states
from oncehouse.etl.state.coverage import find_gaps, uncover
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import INSERTING, MutexError, TopicWorker, check_free, check_unmoved
from oncehouse.etl.state.topic_state import JobKind, OpenRange, TopicJob, end_jobs, set_job
from oncehouse.etl.state.transitions import OffsetStore


def begin_job(
    store: OffsetStore,
    worker: TopicWorker,
    seen: Offset,
    job_kind: JobKind,
    opened: OpenRange,
    *,
    block_count: str | None = None,
) -> Offset:
    """Take the topic and lend its row to the job, in one change. A range that was open keeps the block count it had."""

    def decide(row: Offset, now_ms: int) -> Offset:
        check_unmoved(row, seen, worker, now_ms)
        if row.is_open or row.topic_state != seen.topic_state:
            raise MutexError(
                f"Topic {row.topic}: it moved on since its {job_kind} was planned; it is planned again."
            )
        job = row.topic_state.job(job_kind) or TopicJob(after=opened.last, upto=opened.next)
        begun = replace(opened, since_ms=now_ms, block_count=block_count)
        started = opened if job.opened is not None else begun
        topic_state = set_job(row.topic_state, job_kind, replace(job, opened=started, ran_ms=now_ms))
        return replace(
            row,
            last=opened.last,
            next=opened.next,
            resume=row.last,
            job_kind=str(job_kind),
            state=INSERTING,
            hostid=worker.hostid,
            consumer=worker.consumer,
            topic_state=replace(topic_state, repairs=max(topic_state.repairs, opened.number)),
        )

    return store.change(seen.topic, decide)


def mark_covered(
    store: OffsetStore, worker: TopicWorker, seen: Offset, after: Position, upto: Position
) -> Offset:
    """The source has no rows in this piece of a gap."""

    def decide(row: Offset, now_ms: int) -> Offset:
        check_unmoved(row, seen, worker, now_ms)
        if row.is_open or row.topic_state != seen.topic_state:
            raise MutexError(f"Topic {row.topic}: it moved on since its gap was looked at.")
        return replace(row, topic_state=topic_states.mark_covered(row.topic_state, after, upto))

    return store.change(seen.topic, decide)


def fail_planned_job(store: OffsetStore, seen: Offset, job_kind: JobKind, why: str) -> Offset:
    """A job's step could not even be planned."""

    def decide(row: Offset, now_ms: int) -> Offset:
        known = (
            row.topic_state
            if row.topic_state.job(job_kind)
            else set_job(row.topic_state, job_kind, TopicJob(after=row.last, upto=row.last))
        )
        return replace(row, topic_state=topic_states.fail_job(known, job_kind, why, now_ms))

    return store.change(seen.topic, decide)


def order_backfill(
    store: OffsetStore,
    topic: Topic,
    *,
    after: Position,
    upto: Position | None,
    every_seconds: float,
    maxstep_rows: int | None,
    is_emptied: bool,
    lease_seconds: float,
    seen: Offset | None = None,
) -> Offset:
    """Let the gaps of a range be filled. `is_emptied`: its rows were deleted, so it counts as never covered.

    `seen` is what the row was when it was looked whether they were.
    """
    if topic.template is Template.RELOAD:
        raise ConfigurationError(
            f"Topic {topic.topic} is a reload: each run builds all of it; nothing to fill."
        )

    def decide(row: Offset, now_ms: int) -> Offset:
        check_free(row, TopicWorker(hostid="", lease_seconds=lease_seconds), now_ms)
        row = replace(row, topic_state=end_jobs(row.topic_state))  # 0.1 left jobs that are done
        end = row.reached if upto is None else upto
        _check_order(row, after, end)
        generation, topic_state = row.generation, row.topic_state
        if is_emptied:
            _check_nothing_open(row)
            if seen is not None:
                _require_unchanged(row, seen, end)
            generation += 1
            topic_state = replace(topic_state, segments=uncover(topic_state.segments, after, end))
        if not find_gaps(topic_state.segments, after, end):
            raise ConfigurationError(
                f"Topic {row.topic}: all of that range is covered, and would be built a second time. Delete its "
                "rows from the table first, then say so with --emptied."
            )
        known = topic_state.job(JobKind.BACKFILL)
        job = TopicJob(
            after=after,
            upto=end,
            every_seconds=every_seconds,
            maxstep_rows=maxstep_rows,
            opened=known.opened if known else None,
        )
        return replace(
            row, generation=generation, topic_state=end_jobs(set_job(topic_state, JobKind.BACKFILL, job))
        )

    return store.change(topic.topic, decide)


def _check_order(row: Offset, after: Position, end: Position) -> None:
    known = row.topic_state.job(JobKind.BACKFILL)
    if known is not None and (known.after, known.upto) != (after, end):
        raise ConfigurationError(
            f"Topic {row.topic} has a back-fill already. Let it end, or `oncehouse etl backfill {row.topic} --cancel`."
        )
    if row.is_open:
        raise PermanentError(f"Topic {row.topic}: a step of it is open; ask again when it has ended.")
    if end > row.reached:
        raise ConfigurationError(
            f"Topic {row.topic}: its forward runs have not come that far; they cover what is after "
            "their position themselves. Choose a --to at or before it."
        )
    if after >= end:
        raise ConfigurationError(f"Topic {row.topic}: nothing lies between --from and --to.")


def _require_unchanged(row: Offset, seen: Offset, end: Position) -> None:
    """Forward runs may have gone on since, behind the range; what builds rows inside of it may not."""
    if end > seen.reached or (row.generation, row.topic_state.repairs) != (
        seen.generation,
        seen.topic_state.repairs,
    ):
        raise MutexError(
            f"Topic {row.topic}: rows of that range were built while it was looked whether they are deleted. Look "
            "again, and then the same command."
        )


def _check_nothing_open(row: Offset) -> None:
    for job_kind, job in row.topic_state.jobs:
        if job.opened is not None:
            raise PermanentError(
                f"Topic {row.topic}: its {job_kind} has a range under way; let it end before rows are deleted."
            )


def cancel_backfill(store: OffsetStore, topic: str) -> Offset:
    """End the back-fill. A range of it that is open is still brought to its end."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        job = row.topic_state.job(JobKind.BACKFILL)
        if job is None:
            raise ConfigurationError(f"Topic {topic} has no back-fill.")
        kept = replace(job, after=job.opened.last, upto=job.opened.next) if job.opened else None
        return replace(row, topic_state=set_job(row.topic_state, JobKind.BACKFILL, kept))

    return store.change(topic, decide)
