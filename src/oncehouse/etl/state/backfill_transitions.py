"""Work beside the forward runs, written into the topic's row: back-fills of gaps, and repairs of late rows.

A step of a lane borrows the row: `last` and `next` become its range, and where the forward runs were is kept until
it ends. So one mutex guards the topic, and transforms that read the offsets serve lanes as well. A range that was
begun stays in the lane's job until it is done, whatever else happens, and is never cut anew.
"""

from __future__ import annotations

from dataclasses import replace

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state import topic_state as books
from oncehouse.etl.state.coverage import find_gaps, uncover
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import INSERTING, MutexError, Worker, check_free, check_unmoved
from oncehouse.etl.state.topic_state import Job, Lane, Opened, end_jobs, with_job
from oncehouse.etl.state.transitions import OffsetStore


def begin_side(store: OffsetStore, worker: Worker, seen: Offset, lane: Lane, opened: Opened) -> Offset:
    """Take the topic and lend its row to the lane, in one change."""

    def decide(row: Offset, now_ms: int) -> Offset:
        check_unmoved(row, seen, worker, now_ms)
        if row.is_open or row.book != seen.book:
            raise MutexError(
                f"Topic {row.topic}: it moved on since its {lane} was planned; it is planned anew."
            )
        job = row.book.job(lane) or Job(after=opened.last, upto=opened.next)
        started = opened if job.opened is not None else replace(opened, since_ms=now_ms)
        book = with_job(row.book, lane, replace(job, opened=started, ran_ms=now_ms))
        return replace(
            row,
            last=opened.last,
            next=opened.next,
            resume=row.last,
            lane=str(lane),
            state=INSERTING,
            hostid=worker.hostid,
            consumer=worker.consumer,
            book=replace(book, repairs=max(book.repairs, opened.number)),
        )

    return store.change(seen.topic, decide)


def mark_covered(store: OffsetStore, worker: Worker, seen: Offset, after: Position, upto: Position) -> Offset:
    """The source has no rows in this piece of a gap."""

    def decide(row: Offset, now_ms: int) -> Offset:
        check_unmoved(row, seen, worker, now_ms)
        if row.is_open or row.book != seen.book:
            raise MutexError(f"Topic {row.topic}: it moved on since its gap was looked at.")
        return replace(row, book=books.mark_covered(row.book, after, upto))

    return store.change(seen.topic, decide)


def put_off(store: OffsetStore, seen: Offset, lane: Lane, why: str) -> Offset:
    """A lane's step could not even be planned."""

    def decide(row: Offset, now_ms: int) -> Offset:
        known = (
            row.book if row.book.job(lane) else with_job(row.book, lane, Job(after=row.last, upto=row.last))
        )
        return replace(row, book=books.put_off(known, lane, why, now_ms))

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
        check_free(row, Worker(hostid="", lease_seconds=lease_seconds), now_ms)
        row = replace(row, book=end_jobs(row.book))  # 0.1 left jobs that are done
        end = row.reached if upto is None else upto
        _check_order(row, after, end)
        generation, book = row.generation, row.book
        if is_emptied:
            _check_nothing_open(row)
            if seen is not None:
                _check_looked_at(row, seen, end)
            generation += 1
            book = replace(book, segments=uncover(book.segments, after, end))
        if not find_gaps(book.segments, after, end):
            raise ConfigurationError(
                f"Topic {row.topic}: all of that range is covered, and would be built a second time. Delete its "
                "rows from the table first, then say so with --emptied."
            )
        known = book.job(Lane.BACKFILL)
        job = Job(
            after=after,
            upto=end,
            every_seconds=every_seconds,
            maxstep_rows=maxstep_rows,
            opened=known.opened if known else None,
        )
        return replace(row, generation=generation, book=end_jobs(with_job(book, Lane.BACKFILL, job)))

    return store.change(topic.topic, decide)


def _check_order(row: Offset, after: Position, end: Position) -> None:
    known = row.book.job(Lane.BACKFILL)
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


def _check_looked_at(row: Offset, seen: Offset, end: Position) -> None:
    """Forward runs may have gone on since, behind the range; what builds rows inside of it may not."""
    if end > seen.reached or (row.generation, row.book.repairs) != (seen.generation, seen.book.repairs):
        raise MutexError(
            f"Topic {row.topic}: rows of that range were built while it was looked whether they are deleted. Look "
            "again, and then the same command."
        )


def _check_nothing_open(row: Offset) -> None:
    for lane, job in row.book.jobs:
        if job.opened is not None:
            raise PermanentError(
                f"Topic {row.topic}: its {lane} has a range under way; let it end before rows are deleted."
            )


def cancel_backfill(store: OffsetStore, topic: str) -> Offset:
    """End the back-fill. A range of it that is open is still brought to its end."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        job = row.book.job(Lane.BACKFILL)
        if job is None:
            raise ConfigurationError(f"Topic {topic} has no back-fill.")
        kept = replace(job, after=job.opened.last, upto=job.opened.next) if job.opened else None
        return replace(row, book=with_job(row.book, Lane.BACKFILL, kept))

    return store.change(topic, decide)
