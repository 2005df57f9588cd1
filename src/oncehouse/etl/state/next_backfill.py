"""What a topic may do while its forward runs have nothing to do: repair late rows, fill gaps. Pure.

Forward runs go first. A range that was begun comes before all else of its job, unchanged. A job that failed rests
longer each time, and leaves the forward runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic
from oncehouse.etl.state.coverage import count_late, find_gaps
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_state import JobKind, OpenRange, TopicJob

_FIRST_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class DueJob:
    """Rows after `after` up to `upto` may be read by a job."""

    topic: Topic
    offset: Offset
    job_kind: JobKind
    after: Position
    upto: Position
    opened: OpenRange | None = None
    """This very range was begun before."""


def next_job(topic: Topic, offset: Offset, settled: Position | None, now_ms: int) -> DueJob | None:
    """The next step of a backfill job. At `settled` and before it no rows come any more; None: not known."""
    if topic.late is LatePolicy.REPAIR and (mend := _next_repair(topic, offset, now_ms)) is not None:
        return mend
    job = offset.topic_state.job(JobKind.BACKFILL)
    if job is None or settled is None or _is_resting(job, now_ms):
        return None
    if job.opened is not None:
        return _resume_job(topic, offset, JobKind.BACKFILL, job.opened)
    is_range = topic.template is Template.RANGE
    # After a seek into the future the gap of a range grows with its source, as its forward runs would go on.
    every_seconds = max(job.every_seconds, topic.repeat_seconds) if is_range else job.every_seconds
    if now_ms < job.ran_ms + every_seconds * 1000:
        return None
    for after, upto in find_gaps(offset.topic_state.segments, job.after, min(job.upto, offset.reached)):
        end = _end_of_range(offset, after, settled) if is_range else min(upto, settled)
        return _make_job(topic, offset, JobKind.BACKFILL, after, end) if after < end else None
    return None


def is_stopped(topic: Topic, offset: Offset) -> bool:
    """Late rows have come that were not acknowledged."""
    return (
        topic.late is LatePolicy.STOP
        and count_late(offset.topic_state.segments) > offset.topic_state.acknowledged
    )


def find_open_gaps(offset: Offset) -> tuple[tuple[Position, Position], ...]:
    """What the topic has passed without covering it."""
    return find_gaps(offset.topic_state.segments, START, offset.reached)


def retry_seconds(failed: int) -> float:
    """How long a topic, or a job of it, rests after so many failures in a row."""
    return min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * (1 << min(failed - 1, 10)))


def _next_repair(topic: Topic, offset: Offset, now_ms: int) -> DueJob | None:
    job = offset.topic_state.job(JobKind.REPAIR)
    if job is not None and _is_resting(job, now_ms):
        return None
    if job is not None and job.opened is not None:
        return _resume_job(topic, offset, JobKind.REPAIR, job.opened)
    for segment in offset.topic_state.segments:
        if segment.late:
            # What is rebuilt is rebuilt whole from there on; a step takes the late rows alone.
            upto = segment.upto if topic.template is Template.STEP else offset.topic_state.segments[-1].upto
            return _make_job(topic, offset, JobKind.REPAIR, segment.after, upto)
    return None


def _end_of_range(offset: Offset, after: Position, settled: Position) -> Position:
    """Partitions are built whole: at least up to the last row that is covered. What the topic has passed beyond that
    is covered as far as nothing comes any more; `after` itself where the gaps in between have not come so far."""
    segments = offset.topic_state.segments
    covered = segments[-1].upto if segments else START
    if any(upto > settled for _, upto in find_gaps(segments, after, covered)):
        return after
    return max(covered, min(settled, offset.reached))


def _is_resting(job: TopicJob, now_ms: int) -> bool:
    return job.failed > 0 and now_ms < job.ran_ms + retry_seconds(job.failed) * 1000


def _resume_job(topic: Topic, offset: Offset, job_kind: JobKind, opened: OpenRange) -> DueJob:
    return DueJob(
        topic=topic, offset=offset, job_kind=job_kind, after=opened.last, upto=opened.next, opened=opened
    )


def _make_job(topic: Topic, offset: Offset, job_kind: JobKind, after: Position, upto: Position) -> DueJob:
    return DueJob(topic=topic, offset=offset, job_kind=job_kind, after=after, upto=upto)
