"""What a topic may do while its forward runs have nothing to do: repair late rows, fill gaps. Pure.

Forward runs go first. A range that was begun comes before all else of its lane, unchanged. A lane that failed rests
longer each time, and leaves the forward runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.etl.lineage.topic import Late, Template, Topic
from oncehouse.etl.state.coverage import count_late, find_gaps
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_state import Job, Lane, Opened

_FIRST_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Side:
    """Rows after `after` up to `upto` may be read by a lane."""

    topic: Topic
    offset: Offset
    lane: Lane
    after: Position
    upto: Position
    opened: Opened | None = None
    """This very range was begun before."""


def next_side(topic: Topic, offset: Offset, settled: Position | None, now_ms: int) -> Side | None:
    """The next step beside the forward runs. At `settled` and before it no rows come any more; None: not known."""
    if topic.late is Late.REPAIR and (mend := _next_repair(topic, offset, now_ms)) is not None:
        return mend
    job = offset.book.job(Lane.BACKFILL)
    if job is None or settled is None or _rests(job, now_ms):
        return None
    if job.opened is not None:
        return _again(topic, offset, Lane.BACKFILL, job.opened)
    is_range = topic.template is Template.RANGE
    # After a seek into the future the gap of a range grows with its source, as its forward runs would go on.
    every_seconds = max(job.every_seconds, topic.repeat_seconds) if is_range else job.every_seconds
    if now_ms < job.ran_ms + every_seconds * 1000:
        return None
    for after, upto in find_gaps(offset.book.segments, job.after, min(job.upto, offset.reached)):
        end = _end_of_range(offset, after, settled) if is_range else min(upto, settled)
        return _side(topic, offset, Lane.BACKFILL, after, end) if after < end else None
    return None


def is_stopped(topic: Topic, offset: Offset) -> bool:
    """Late rows have come that nobody has let pass."""
    return topic.late is Late.STOP and count_late(offset.book.segments) > offset.book.acknowledged


def open_gaps(offset: Offset) -> tuple[tuple[Position, Position], ...]:
    """What the topic has passed without covering it."""
    return find_gaps(offset.book.segments, START, offset.reached)


def retry_seconds(failed: int) -> float:
    """How long a topic, or a lane of it, rests after so many failures in a row."""
    return min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * (1 << min(failed - 1, 10)))


def _next_repair(topic: Topic, offset: Offset, now_ms: int) -> Side | None:
    job = offset.book.job(Lane.REPAIR)
    if job is not None and _rests(job, now_ms):
        return None
    if job is not None and job.opened is not None:
        return _again(topic, offset, Lane.REPAIR, job.opened)
    for segment in offset.book.segments:
        if segment.late:
            # What is rebuilt is rebuilt whole from there on; a step takes the late rows alone.
            upto = segment.upto if topic.template is Template.STEP else offset.book.segments[-1].upto
            return _side(topic, offset, Lane.REPAIR, segment.after, upto)
    return None


def _end_of_range(offset: Offset, after: Position, settled: Position) -> Position:
    """Partitions are built whole: at least up to the last row that is covered. What the topic has passed beyond that
    is covered as far as nothing comes any more; `after` itself where the gaps in between have not come so far."""
    segments = offset.book.segments
    covered = segments[-1].upto if segments else START
    if any(upto > settled for _, upto in find_gaps(segments, after, covered)):
        return after
    return max(covered, min(settled, offset.reached))


def _rests(job: Job, now_ms: int) -> bool:
    return job.failed > 0 and now_ms < job.ran_ms + retry_seconds(job.failed) * 1000


def _again(topic: Topic, offset: Offset, lane: Lane, opened: Opened) -> Side:
    return Side(topic=topic, offset=offset, lane=lane, after=opened.last, upto=opened.next, opened=opened)


def _side(topic: Topic, offset: Offset, lane: Lane, after: Position, upto: Position) -> Side:
    return Side(topic=topic, offset=offset, lane=lane, after=after, upto=upto)
