"""What a topic's row keeps besides its two positions: covered ranges, the open range, backfill jobs.

All of it changes with the positions in one conditional write, so none of it can be ahead of them or behind. The
store holds it as one text. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from oncehouse.etl.state import coverage
from oncehouse.etl.state.coverage import (
    CoveredRange,
    CoveredRanges,
    absorb_late,
    count_late,
    cover,
    find_gaps,
)
from oncehouse.etl.state.position import START, Position

_FORWARD = "forward"


class JobKind(StrEnum):
    """Jobs apart from the forward runs."""

    BACKFILL = "backfill"
    REPAIR = "repair"


@dataclass(frozen=True, kw_only=True)
class OpenRange:
    """A range whose rows may have been inserted: it runs again as it is, or not at all."""

    last: Position
    next: Position
    rows: int
    """Rows that the main source had in it when it was planned."""
    since_ms: int = 0
    """When it was begun, by the store's clock: how long the table must remember it."""
    generation: int = 0
    number: int = 0
    """Of a repair: each has its own set of late rows."""
    steps_since: int = 0
    """Forward steps since it was put off."""
    block_count: str | None = None
    """How many blocks its table had taken by then, from all writers. Unknown where the table keeps no such count, and
    of a range that the version before has begun."""


@dataclass(frozen=True, kw_only=True)
class TopicJob:
    """A back-fill or a repair: which part of the topic, how far, and what happened."""

    after: Position
    upto: Position
    every_seconds: float = 0.0
    """Least time between two of its steps."""
    maxstep_rows: int | None = None
    rows: int = 0
    """Rows of the main source that it has covered, or late rows that it has looked at."""
    ran_ms: int = 0
    opened: OpenRange | None = None
    failed: int = 0
    """How many times in a row."""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    segments: CoveredRanges = ()
    forward_ms: int = 0
    """When the latest forward step was done: the pace of the topic does not hang on other work."""
    opened: OpenRange | None = None
    """Of the forward runs."""
    jobs: tuple[tuple[JobKind, TopicJob], ...] = ()
    repairs: int = 0
    """How many repairs were begun, ever."""
    repaired: int = 0
    """Late rows that repairs have built."""
    acknowledged: int = 0
    """Late rows that `resume` has let pass."""
    is_pause_asked: bool = False
    splits_time: bool = False
    """Rows of the time that the forward runs have come to are left for their next step."""
    forced_upto: Position = START
    """The newest row that the table held when the latest seek was forced: rows up to there may be doubled."""

    def job(self, job_kind: JobKind) -> TopicJob | None:
        return dict(self.jobs).get(job_kind)


EMPTY = TopicState()


def set_job(topic_state: TopicState, job_kind: JobKind, job: TopicJob | None) -> TopicState:
    jobs = {**dict(topic_state.jobs), job_kind: job}
    return replace(topic_state, jobs=tuple((one, jobs[one]) for one in sorted(jobs) if jobs[one] is not None))  # type: ignore[misc]


def open_forward(
    topic_state: TopicState,
    last: Position,
    next_: Position,
    rows: int,
    now_ms: int,
    block_count: str | None = None,
) -> TopicState:
    opened = OpenRange(last=last, next=next_, rows=rows, since_ms=now_ms, block_count=block_count)
    return replace(topic_state, opened=opened)


def close_forward(
    topic_state: TopicState,
    last: Position,
    next_: Position,
    *,
    rows: int,
    now_ms: int,
    is_whole: bool,
    splits_time: bool = False,
) -> TopicState:
    """The range is covered. `is_whole`: all else was rebuilt with it."""
    planned = rows if topic_state.opened is None else topic_state.opened.rows
    segments = absorb_late(topic_state.segments) if is_whole else topic_state.segments
    segments = cover(segments, CoveredRange(after=last, upto=next_, rows=planned))
    jobs = tuple((job_kind, _count_step(job)) for job_kind, job in topic_state.jobs)
    return end_jobs(
        replace(
            topic_state, segments=segments, opened=None, forward_ms=now_ms, jobs=jobs, splits_time=splits_time
        )
    )


def close_job(
    topic_state: TopicState, job_kind: JobKind, *, rows: int, now_ms: int, is_whole: bool
) -> TopicState:
    """The open range of a job is covered."""
    job = topic_state.job(job_kind)
    if job is None or job.opened is None:
        return topic_state
    opened = job.opened
    segments = absorb_late(topic_state.segments) if is_whole else topic_state.segments
    done = replace(
        topic_state,
        segments=_cover_job(segments, job_kind, opened),
        repaired=topic_state.repaired
        + (min(rows, _late_within(topic_state.segments, opened)) if job_kind is JobKind.REPAIR else 0),
    )
    ended = replace(job, rows=job.rows + rows, ran_ms=now_ms, opened=None, failed=0, why="")
    return end_jobs(set_job(done, job_kind, ended))


def mark_covered(topic_state: TopicState, after: Position, upto: Position) -> TopicState:
    """A piece of a gap in which the source has no rows."""
    return end_jobs(
        replace(
            topic_state, segments=cover(topic_state.segments, CoveredRange(after=after, upto=upto, rows=0))
        )
    )


def update_counts(topic_state: TopicState, counts: Mapping[CoveredRange, int]) -> TopicState:
    """With what the main source holds now in ranges that were covered."""
    return end_jobs(replace(topic_state, segments=coverage.update_counts(topic_state.segments, counts)))


def end_jobs(topic_state: TopicState) -> TopicState:
    """Without the jobs that have no work left. Every change of the covered ranges ends with this, because it is not
    only the job that does its work: forward runs after a seek back fill gaps, and a seek, a count or a whole rebuild
    removes late rows.

    A back-fill that stayed would refuse the next one, and fill gaps of later seeks that it was not ordered for.
    """
    return replace(
        topic_state,
        jobs=tuple(
            (job_kind, job) for job_kind, job in topic_state.jobs if _has_more(topic_state, job_kind, job)
        ),
    )


def fail_job(topic_state: TopicState, job_kind: JobKind, why: str, now_ms: int) -> TopicState:
    """The job's step failed: its range stays open in the job, and the forward runs go on."""
    job = topic_state.job(job_kind)
    return (
        topic_state
        if job is None
        else set_job(topic_state, job_kind, replace(job, failed=job.failed + 1, why=why, ran_ms=now_ms))
    )


def _has_more(topic_state: TopicState, job_kind: JobKind, job: TopicJob) -> bool:
    if job.opened is not None:
        return True
    if job_kind is JobKind.REPAIR:
        return count_late(topic_state.segments) > 0
    return bool(find_gaps(topic_state.segments, job.after, job.upto))


def _cover_job(segments: CoveredRanges, job_kind: JobKind, opened: OpenRange) -> CoveredRanges:
    """A repair may end within a segment, when there is much to look at: the rest of it is still late."""
    rest = [one for one in segments if job_kind is JobKind.REPAIR and one.after < opened.next < one.upto]
    for one in rest:
        count = max(0, (one.rows or 0) + one.late - opened.rows)
        left = max(1, min(one.late, count))
        known = None if one.rows is None else max(0, count - left)
        segments = cover(segments, CoveredRange(after=opened.next, upto=one.upto, rows=known, late=left))
    return cover(segments, CoveredRange(after=opened.last, upto=opened.next, rows=opened.rows))


def _late_within(segments: CoveredRanges, opened: OpenRange) -> int:
    return count_late(one for one in segments if one.after < opened.next and opened.last < one.upto)


def _count_step(job: TopicJob) -> TopicJob:
    if job.opened is None:
        return job
    return replace(job, opened=replace(job.opened, steps_since=job.opened.steps_since + 1))


def encode_topic_state(topic_state: TopicState) -> str:
    if topic_state == EMPTY:
        return ""
    plain: dict[str, Any] = {
        "segments": [
            [*_pair(one.after), *_pair(one.upto), one.rows, one.late] for one in topic_state.segments
        ],
        "forward_ms": topic_state.forward_ms,
        "opened": _plain_opened(topic_state.opened),
        "jobs": {job_kind.value: _plain_job(job) for job_kind, job in topic_state.jobs},
        "repairs": topic_state.repairs,
        "repaired": topic_state.repaired,
        "acknowledged": topic_state.acknowledged,
        "is_pause_asked": topic_state.is_pause_asked,
        "splits_time": topic_state.splits_time,
        "forced_upto": None if topic_state.forced_upto == START else _pair(topic_state.forced_upto),
        "block_counts": _list_block_counts(topic_state),
    }
    return json.dumps({key: value for key, value in plain.items() if value}, separators=(",", ":"))


@lru_cache(maxsize=8192)  # most topics have not changed since the last round
def decode_topic_state(text: str) -> TopicState:
    plain: dict[str, Any] = json.loads(text) if text else {}
    counts = plain.get("block_counts", {})
    return TopicState(
        segments=tuple(
            CoveredRange(after=_position(one[:2]), upto=_position(one[2:4]), rows=one[4], late=one[5])
            for one in plain.get("segments", ())
        ),
        forward_ms=plain.get("forward_ms", 0),
        opened=_opened(plain.get("opened"), counts.get(_FORWARD)),
        jobs=tuple(
            (JobKind(job_kind), _job(job, counts.get(job_kind)))
            for job_kind, job in plain.get("jobs", {}).items()
        ),
        repairs=plain.get("repairs", 0),
        repaired=plain.get("repaired", 0),
        acknowledged=plain.get("acknowledged", 0),
        is_pause_asked=plain.get("is_pause_asked", False),
        splits_time=plain.get("splits_time", False),
        forced_upto=_position(plain.get("forced_upto", _pair(START))),
    )


def _pair(position: Position) -> tuple[int, int]:
    return position.time_ms, position.id


def _position(pair: Sequence[int]) -> Position:
    return Position(time_ms=pair[0], id=pair[1])


def _list_block_counts(topic_state: TopicState) -> dict[str, str]:
    """Of the open ranges. They stand apart from them: hosts of the version before can read the rest, and what they
    write has no count."""
    ranges = {_FORWARD: topic_state.opened, **{str(kind): job.opened for kind, job in topic_state.jobs}}
    return {name: one.block_count for name, one in ranges.items() if one and one.block_count is not None}


def _plain_opened(opened: OpenRange | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    plain = {**vars(opened), "last": _pair(opened.last), "next": _pair(opened.next)}
    del plain["block_count"]
    return plain


def _opened(plain: dict[str, Any] | None, block_count: str | None) -> OpenRange | None:
    if plain is None:
        return None
    places = {"last": _position(plain["last"]), "next": _position(plain["next"])}
    return OpenRange(**{**plain, **places, "block_count": block_count})


def _plain_job(job: TopicJob) -> dict[str, Any]:
    return {
        **vars(job),
        "after": _pair(job.after),
        "upto": _pair(job.upto),
        "opened": _plain_opened(job.opened),
    }


def _job(plain: dict[str, Any], block_count: str | None) -> TopicJob:
    places = {"after": _position(plain["after"]), "upto": _position(plain["upto"])}
    return TopicJob(**{**plain, **places, "opened": _opened(plain["opened"], block_count)})
