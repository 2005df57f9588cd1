"""What a topic's row keeps beside its two positions: covered ranges, the open range, work beside the forward runs.

All of it changes with the positions in one conditional write, so none of it can be ahead of them or behind. The
store holds it as one text. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from oncehouse.etl.state import coverage
from oncehouse.etl.state.coverage import Segment, Segments, absorb_late, count_late, cover, find_gaps
from oncehouse.etl.state.position import Position


class Lane(StrEnum):
    """Work beside the forward runs."""

    BACKFILL = "backfill"
    REPAIR = "repair"


@dataclass(frozen=True, kw_only=True)
class Opened:
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
    """Forward steps since it was put off; each makes the table forget older inserts."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A back-fill or a repair: which part of the topic, how far, and what happened."""

    after: Position
    upto: Position
    every_seconds: float = 0.0
    """Least time between two of its steps."""
    maxstep_rows: int | None = None
    rows: int = 0
    """Rows of the main source that it has covered, or late rows that it has looked at."""
    ran_ms: int = 0
    opened: Opened | None = None
    failed: int = 0
    """How many times in a row."""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Book:
    segments: Segments = ()
    forward_ms: int = 0
    """When the latest forward step was done: the pace of the topic does not hang on other work."""
    opened: Opened | None = None
    """Of the forward runs."""
    jobs: tuple[tuple[Lane, Job], ...] = ()
    repairs: int = 0
    """How many repairs were begun, ever."""
    repaired: int = 0
    """Late rows that repairs have built."""
    acknowledged: int = 0
    """Late rows that somebody has let pass with `resume`."""
    is_pause_asked: bool = False
    splits_time: bool = False
    """Rows of the time that the forward runs have come to are left for their next step."""

    def job(self, lane: Lane) -> Job | None:
        return dict(self.jobs).get(lane)


EMPTY = Book()


def with_job(book: Book, lane: Lane, job: Job | None) -> Book:
    jobs = {**dict(book.jobs), lane: job}
    return replace(book, jobs=tuple((one, jobs[one]) for one in sorted(jobs) if jobs[one] is not None))  # type: ignore[misc]


def open_forward(book: Book, last: Position, next_: Position, rows: int, now_ms: int) -> Book:
    return replace(book, opened=Opened(last=last, next=next_, rows=rows, since_ms=now_ms))


def close_forward(
    book: Book,
    last: Position,
    next_: Position,
    *,
    rows: int,
    now_ms: int,
    is_whole: bool,
    splits_time: bool = False,
) -> Book:
    """The range is covered. `is_whole`: all else was built anew with it."""
    planned = rows if book.opened is None else book.opened.rows
    segments = absorb_late(book.segments) if is_whole else book.segments
    segments = cover(segments, Segment(after=last, upto=next_, rows=planned))
    jobs = tuple((lane, _count_step(job)) for lane, job in book.jobs)
    return end_jobs(
        replace(book, segments=segments, opened=None, forward_ms=now_ms, jobs=jobs, splits_time=splits_time)
    )


def close_side(book: Book, lane: Lane, *, rows: int, now_ms: int, is_whole: bool) -> Book:
    """The open range of a lane is covered."""
    job = book.job(lane)
    if job is None or job.opened is None:
        return book
    opened = job.opened
    segments = absorb_late(book.segments) if is_whole else book.segments
    done = replace(
        book,
        segments=_cover_side(segments, lane, opened),
        repaired=book.repaired
        + (min(rows, _late_within(book.segments, opened)) if lane is Lane.REPAIR else 0),
    )
    ended = replace(job, rows=job.rows + rows, ran_ms=now_ms, opened=None, failed=0, why="")
    return end_jobs(with_job(done, lane, ended))


def mark_covered(book: Book, after: Position, upto: Position) -> Book:
    """A piece of a gap in which the source has no rows."""
    return end_jobs(replace(book, segments=cover(book.segments, Segment(after=after, upto=upto, rows=0))))


def note_counts(book: Book, counts: Mapping[Segment, int]) -> Book:
    """With what the main source holds now in ranges that were covered."""
    return end_jobs(replace(book, segments=coverage.note_counts(book.segments, counts)))


def end_jobs(book: Book) -> Book:
    """Without the jobs that have no work left. Every change of the covered ranges ends with this, because it is not
    only the job that does its work: forward runs after a seek back fill gaps, and a seek, a count or a whole rebuild
    removes late rows.

    A back-fill that stayed would refuse the next one, and fill gaps of later seeks that it was not ordered for.
    """
    return replace(book, jobs=tuple((lane, job) for lane, job in book.jobs if _has_more(book, lane, job)))


def put_off(book: Book, lane: Lane, why: str, now_ms: int) -> Book:
    """The lane's step failed: its range stays open in the job, and the forward runs go on."""
    job = book.job(lane)
    return (
        book
        if job is None
        else with_job(book, lane, replace(job, failed=job.failed + 1, why=why, ran_ms=now_ms))
    )


def _has_more(book: Book, lane: Lane, job: Job) -> bool:
    if job.opened is not None:
        return True
    if lane is Lane.REPAIR:
        return count_late(book.segments) > 0
    return bool(find_gaps(book.segments, job.after, job.upto))


def _cover_side(segments: Segments, lane: Lane, opened: Opened) -> Segments:
    """A repair may end within a segment, when there is much to look at: the rest of it is still late."""
    rest = [one for one in segments if lane is Lane.REPAIR and one.after < opened.next < one.upto]
    for one in rest:
        count = max(0, (one.rows or 0) + one.late - opened.rows)
        left = max(1, min(one.late, count))
        known = None if one.rows is None else max(0, count - left)
        segments = cover(segments, Segment(after=opened.next, upto=one.upto, rows=known, late=left))
    return cover(segments, Segment(after=opened.last, upto=opened.next, rows=opened.rows))


def _late_within(segments: Segments, opened: Opened) -> int:
    return count_late(one for one in segments if one.after < opened.next and opened.last < one.upto)


def _count_step(job: Job) -> Job:
    if job.opened is None:
        return job
    return replace(job, opened=replace(job.opened, steps_since=job.opened.steps_since + 1))


def write_book(book: Book) -> str:
    if book == EMPTY:
        return ""
    plain: dict[str, Any] = {
        "segments": [[*_pair(one.after), *_pair(one.upto), one.rows, one.late] for one in book.segments],
        "forward_ms": book.forward_ms,
        "opened": _plain_opened(book.opened),
        "jobs": {lane.value: _plain_job(job) for lane, job in book.jobs},
        "repairs": book.repairs,
        "repaired": book.repaired,
        "acknowledged": book.acknowledged,
        "is_pause_asked": book.is_pause_asked,
        "splits_time": book.splits_time,
    }
    return json.dumps({key: value for key, value in plain.items() if value}, separators=(",", ":"))


@lru_cache(maxsize=8192)  # most topics have not changed since the last round
def read_book(text: str) -> Book:
    plain: dict[str, Any] = json.loads(text) if text else {}
    return Book(
        segments=tuple(
            Segment(after=_position(one[:2]), upto=_position(one[2:4]), rows=one[4], late=one[5])
            for one in plain.get("segments", ())
        ),
        forward_ms=plain.get("forward_ms", 0),
        opened=_opened(plain.get("opened")),
        jobs=tuple((Lane(lane), _job(job)) for lane, job in plain.get("jobs", {}).items()),
        repairs=plain.get("repairs", 0),
        repaired=plain.get("repaired", 0),
        acknowledged=plain.get("acknowledged", 0),
        is_pause_asked=plain.get("is_pause_asked", False),
        splits_time=plain.get("splits_time", False),
    )


def _pair(position: Position) -> tuple[int, int]:
    return position.time_ms, position.id


def _position(pair: list[int]) -> Position:
    return Position(time_ms=pair[0], id=pair[1])


def _plain_opened(opened: Opened | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    return {**vars(opened), "last": _pair(opened.last), "next": _pair(opened.next)}


def _opened(plain: dict[str, Any] | None) -> Opened | None:
    if plain is None:
        return None
    return Opened(**{**plain, "last": _position(plain["last"]), "next": _position(plain["next"])})


def _plain_job(job: Job) -> dict[str, Any]:
    return {
        **vars(job),
        "after": _pair(job.after),
        "upto": _pair(job.upto),
        "opened": _plain_opened(job.opened),
    }


def _job(plain: dict[str, Any]) -> Job:
    places = {"after": _position(plain["after"]), "upto": _position(plain["upto"])}
    return Job(**{**plain, **places, "opened": _opened(plain["opened"])})
