"""Offsets and the mutex: what may become of a topic's row, decided here once for every store.

A store knows how to read all rows with its own clock, and how to change one row only if it is still what the
decision was made from. Everything else (who may begin, commit, fail, pause, seek, unlock) are pure functions
from a row and the store's time to the next row. So two hosts that race can never both win, whatever the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from oncehouse.errors import PermanentError
from oncehouse.etl.state import topic_state as topic_states
from oncehouse.etl.state.coverage import CoveredRange, count_late, uncover
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import MAX_ID, START, Position
from oncehouse.etl.state.topic_lease import (
    DONE,
    INSERTING,
    LEASE_SECONDS,
    PAUSED,
    SIZING,
    MutexError,
    TopicWorker,
    check_free,
    check_held,
    check_unchanged,
    check_unmoved,
    failures,
    is_held,
)
from oncehouse.etl.state.topic_state import (
    JobKind,
    TopicState,
    close_forward,
    close_job,
    end_jobs,
    fail_job,
    open_forward,
)

_LONGEST_STATE = 500
_END = Position(time_ms=1 << 62, id=MAX_ID)


@dataclass(frozen=True, kw_only=True)
class OffsetSnapshot:
    """All rows of the offsets at one moment."""

    offsets: dict[str, Offset]
    now_ms: int
    """The store's own clock: leases and paces do not depend on a host's."""


Decide = Callable[[Offset, int], Offset]
"""(the row as it is, the store's time in ms) → the row as it shall be; raises to leave it alone."""


class OffsetStore(Protocol):
    @property
    def view_table(self) -> str | None:
        """The ClickHouse table from which Transform views read their range; None when there is none."""

    def prepare(self) -> None:
        """Make the table if it is not there."""

    def read_all(self) -> OffsetSnapshot: ...

    def change(self, topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        """Change one row if no other process did meanwhile (else decide again). A topic without a row starts at START.

        `seen` is what the row is believed to be, which spares a read; only of a row that no other process holds.
        """


def begin(
    store: OffsetStore,
    worker: TopicWorker,
    seen: Offset,
    *,
    next_: Position,
    state: str = INSERTING,
    rows: int = 0,
    block_count: str | None = None,
) -> Offset:
    """Take the topic and write `next`, in one change; refused when the row moved on since it was seen.

    `rows` is how many the main source has in the range, `block_count` how many blocks the Fact table has taken; a
    range that was open keeps the numbers it had.
    """

    def decide(row: Offset, now_ms: int) -> Offset:
        check_unmoved(row, seen, worker, now_ms)
        is_open = row.is_open and row.state != SIZING
        topic_state = (
            row.topic_state
            if is_open
            else open_forward(row.topic_state, row.last, next_, rows, now_ms, block_count)
        )
        return replace(
            row,
            next=next_,
            state=state,
            hostid=worker.hostid,
            consumer=worker.consumer,
            topic_state=topic_state,
        )

    is_mine = seen.run_ms > 0 and seen.hostid in ("", worker.hostid)
    return store.change(seen.topic, decide, seen if is_mine else None)


def narrow(
    store: OffsetStore,
    worker: TopicWorker,
    topic: str,
    *,
    next_: Position,
    state: str,
    rows: int = 0,
    block_count: str | None = None,
) -> Offset:
    """Set `next` again while a range is sized; afterwards it is fixed."""

    def decide(row: Offset, now_ms: int) -> Offset:
        check_held(row, worker)
        if row.state != SIZING:
            raise PermanentError(
                f"Topic {topic}: its range is fixed since its insert began and cannot be narrowed. "
                "Let the step finish, or seek the topic."
            )
        topic_state = open_forward(row.topic_state, row.last, next_, rows, now_ms, block_count)
        return replace(row, next=next_, state=state, topic_state=topic_state)

    return store.change(topic, decide)


def commit(
    store: OffsetStore,
    worker: TopicWorker,
    topic: str,
    *,
    rows: int,
    state: str = DONE,
    begun: Offset | None = None,
    is_whole: bool = False,
    splits_time: bool = False,
) -> Offset:
    """`last` becomes `next`, and the topic is free again: the step is done. `begun` is the row as `begin` left it.

    A row that was lent to a job goes back to where the forward runs were. `is_whole`: all was rebuilt.
    `splits_time`: rows of the time of `next` are left for the next step.
    """

    def decide(row: Offset, now_ms: int) -> Offset:
        check_held(row, worker)
        if row.job_kind:
            topic_state = close_job(
                row.topic_state, JobKind(row.job_kind), rows=rows, now_ms=now_ms, is_whole=is_whole
            )
            return _free(return_row(row), state=DONE, topic_state=topic_state)
        topic_state = close_forward(
            row.topic_state,
            row.last,
            row.next,
            rows=rows,
            now_ms=now_ms,
            is_whole=is_whole,
            splits_time=splits_time,
        )
        return _free(replace(row, last=row.next, rows=rows), state=state, topic_state=topic_state)

    return store.change(topic, decide, begun)


def fail(store: OffsetStore, worker: TopicWorker, seen: Offset, why: str) -> Offset:
    """Free the topic with a state that says why and how often; an open range stays open.

    A job's range stays open in its job, so that the forward runs go on meanwhile.
    """

    def decide(row: Offset, now_ms: int) -> Offset:
        check_free(row, worker, now_ms)
        if row.job_kind:
            topic_state = fail_job(row.topic_state, JobKind(row.job_kind), why[:_LONGEST_STATE], now_ms)
            return _free(return_row(row), state=DONE, topic_state=topic_state)
        # A range that was being sized stays free to be sized again: nothing was inserted for it.
        opened = row.last if row.state == SIZING else row.next
        state = f"failed {failures(seen.state) + 1}: {why}"[:_LONGEST_STATE]
        return _free(
            replace(row, next=opened, consumer=worker.consumer), state=state, topic_state=row.topic_state
        )

    return store.change(seen.topic, decide)


def beat(store: OffsetStore, worker: TopicWorker, topic: str) -> Offset:
    """Say that the work goes on; stores write the time themselves."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        check_held(row, worker)
        return row

    return store.change(topic, decide)


def seek(
    store: OffsetStore,
    topic: str,
    last: Position,
    *,
    lease_seconds: float = LEASE_SECONDS,
    drops_open: bool = False,
    forced_upto: Position = START,
    seen: Offset | None = None,
) -> Offset:
    """Set the position from which the next step goes on; refused while a process works on the topic.

    The generation moves with it, so that ranges which were inserted before are inserted again. What was covered
    after the position counts as never covered; what is skipped becomes a gap. `seen` is what the row was when
    the caller checked whether the table holds what would be built again: if it has moved since, that is not known.
    Rows that the table holds up to `forced_upto` are built again although they are there.
    """
    no_worker = TopicWorker(hostid="", lease_seconds=lease_seconds)

    def decide(row: Offset, now_ms: int) -> Offset:
        check_free(row, no_worker, now_ms)
        if seen is not None:
            check_unchanged(row, seen)
        for job_kind, job in row.topic_state.jobs:
            if job.opened is not None and not drops_open:
                raise PermanentError(
                    f"Topic {topic}: its {job_kind} has a range under way. Let it end (`oncehouse etl status`), or "
                    "seek with --force when you know that the table does not hold that range's rows."
                )
        if row.is_open and row.state != SIZING and last > row.reached and not drops_open:
            raise PermanentError(
                f"Topic {topic}: its rows after {row.last} are being built, and a seek past them would leave open "
                "whether they were. Let the step end first, or seek with --force when you know that they are not there."
            )
        # Jobs that are done are ended first (0.1 left them): the seek must not give them new work.
        row = replace(return_row(row), topic_state=end_jobs(row.topic_state))
        topic_state = replace(
            row.topic_state,
            segments=uncover(row.topic_state.segments, last, _END),
            opened=None,
            jobs=tuple((job_kind, replace(job, opened=None)) for job_kind, job in row.topic_state.jobs),
            is_pause_asked=False,
            splits_time=0 < last.id < MAX_ID,
            forced_upto=forced_upto,
        )
        state = row.state if row.state == PAUSED else ""
        return replace(
            row,
            last=last,
            next=last,
            rows=0,
            state=state,
            hostid="",
            generation=row.generation + 1,
            topic_state=end_jobs(topic_state),
        )

    return store.change(topic, decide)


def unlock(store: OffsetStore, topic: str) -> Offset:
    """Clear the mutex, held or not; the range stays open and runs again unchanged."""
    return store.change(topic, lambda row, _now_ms: replace(row, hostid=""))


def pause(store: OffsetStore, topic: str, *, lease_seconds: float = LEASE_SECONDS) -> Offset:
    """Begin no further step. A step under way ends first: the topic is paused by its end, or by its failure."""

    def decide(row: Offset, now_ms: int) -> Offset:
        if is_held(row, "", now_ms, lease_seconds):
            return replace(row, topic_state=replace(row.topic_state, is_pause_asked=True))
        if row.state == SIZING:  # nothing was inserted: sized again after the pause
            row = replace(row, next=row.last)
        return _free(row, state=PAUSED, topic_state=row.topic_state)

    return store.change(topic, decide)


def resume(store: OffsetStore, topic: str) -> Offset:
    """Go on. Late rows that had stopped the topic are let pass: they stay counted, and are not built."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        topic_state = replace(
            row.topic_state, is_pause_asked=False, acknowledged=count_late(row.topic_state.segments)
        )
        return replace(row, state="" if row.state == PAUSED else row.state, topic_state=topic_state)

    return store.change(topic, decide)


def update_counts(store: OffsetStore, topic: str, counts: Mapping[CoveredRange, int]) -> Offset:
    """Write down what the main source holds now; refused while a step is open, whose rows cannot be counted yet."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        if row.hostid or row.is_open:
            raise MutexError(f"Topic {topic} is worked on; its late rows are counted another time.")
        return replace(row, topic_state=topic_states.update_counts(row.topic_state, counts))

    return store.change(topic, decide)


def return_row(row: Offset) -> Offset:
    """The row as the forward runs left it."""
    return replace(row, last=row.resume, next=row.resume, job_kind="", resume=START) if row.job_kind else row


def _free(row: Offset, *, state: str, topic_state: TopicState) -> Offset:
    """Free for every process, or paused if a pause was requested meanwhile."""
    if topic_state.is_pause_asked:
        state, topic_state = PAUSED, replace(topic_state, is_pause_asked=False)
    return replace(row, state=state, hostid="", topic_state=topic_state)
