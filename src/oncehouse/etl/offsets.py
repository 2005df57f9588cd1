"""Offsets and the mutex: what may become of a topic's row, decided here once for every store.

A store knows how to read all rows with its own clock, and how to change one row only if it is still what the
decision was made from. Everything else (who may begin, commit, fail, pause, seek, unlock) are pure functions
from a row and the store's time to the next row. So two hosts that race can never both win, whatever the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from oncehouse.errors import PermanentError
from oncehouse.etl.records import START, Offset, Position

LEASE_SECONDS = 60.0
PAUSED = "paused"
SIZING = "sizing"
"""`next` is written but may still be halved: nothing was inserted for it yet."""
INSERTING = "inserting"
DONE = "done"
MORE = "more"
"""The step was cut by its size: the rest is due at once."""
_FAILED = re.compile(r"failed (\d+): ")
_LONGEST_STATE = 500


class MutexError(PermanentError):
    """Another process works on the topic, or has taken it over."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that works on topics."""

    hostid: str
    """Unique for every process: a name that two shared would let both in."""
    consumer: str = "oncehouse"
    lease_seconds: float = LEASE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Snapshot:
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

    def read_all(self) -> Snapshot: ...

    def change(self, topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        """Change one row if nobody else did meanwhile (else decide anew). A topic without a row starts at START.

        `seen` is what the row is believed to be, which spares a read; only of a row that nobody else holds.
        """


def begin(
    store: OffsetStore, worker: Worker, seen: Offset, *, next_: Position, state: str = INSERTING
) -> Offset:
    """Take the topic and write `next`, in one change; refused when the row moved on since it was seen."""

    def decide(row: Offset, now_ms: int) -> Offset:
        _check_free(row, worker, now_ms)
        if (row.last, row.next) != (seen.last, seen.next):
            raise MutexError(
                f"Topic {row.topic}: its offsets moved since this step was planned (by {row.consumer or 'somebody'}); "
                "the next round plans it anew."
            )
        if row.state == PAUSED:
            raise MutexError(
                f"Topic {row.topic} was paused; `oncehouse etl resume {row.topic}` lets it go on."
            )
        return replace(row, next=next_, state=state, hostid=worker.hostid, consumer=worker.consumer)

    is_mine = seen.run_ms > 0 and seen.hostid in ("", worker.hostid)
    return store.change(seen.topic, decide, seen if is_mine else None)


def narrow(store: OffsetStore, worker: Worker, topic: str, *, next_: Position, state: str) -> Offset:
    """Set `next` again while a range is sized; afterwards it is fixed."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        _check_held(row, worker)
        if row.state != SIZING:
            raise PermanentError(
                f"Topic {topic}: its range is fixed since its insert began and cannot be narrowed. "
                "Let the step finish, or seek the topic."
            )
        return replace(row, next=next_, state=state)

    return store.change(topic, decide)


def commit(
    store: OffsetStore,
    worker: Worker,
    topic: str,
    *,
    rows: int,
    state: str = DONE,
    begun: Offset | None = None,
) -> Offset:
    """`last` becomes `next`, and the topic is free again: the step is done. `begun` is the row as `begin` left it."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        _check_held(row, worker)
        return replace(row, last=row.next, rows=rows, state=state, hostid="")

    return store.change(topic, decide, begun)


def fail(store: OffsetStore, worker: Worker, seen: Offset, why: str) -> Offset:
    """Free the topic with a state that says why and how often; an open range stays open."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        if row.hostid:
            _check_held(row, worker)
        # A range that was being sized stays free to be sized anew: nothing was inserted for it.
        opened = row.last if row.state == SIZING else row.next
        state = f"failed {failures(seen.state) + 1}: {why}"[:_LONGEST_STATE]
        return replace(row, next=opened, state=state, hostid="", consumer=worker.consumer)

    return store.change(seen.topic, decide)


def beat(store: OffsetStore, worker: Worker, topic: str) -> Offset:
    """Say that the work goes on; stores write the time themselves."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        _check_held(row, worker)
        return row

    return store.change(topic, decide)


def seek(store: OffsetStore, topic: str, last: Position, *, lease_seconds: float = LEASE_SECONDS) -> Offset:
    """Set the position from which the next step goes on; refused while somebody works on the topic."""
    nobody = Worker(hostid="", lease_seconds=lease_seconds)

    def decide(row: Offset, now_ms: int) -> Offset:
        _check_free(row, nobody, now_ms)
        state = row.state if row.state == PAUSED else ""
        return replace(row, last=last, next=last, rows=0, state=state, hostid="")

    return store.change(topic, decide)


def unlock(store: OffsetStore, topic: str) -> Offset:
    """Clear the mutex whoever holds it; the range stays open and runs again unchanged."""
    return store.change(topic, lambda row, _now_ms: replace(row, hostid=""))


def pause(store: OffsetStore, topic: str) -> Offset:
    """Begin no further step; a step under way is waited for by asking again."""

    def decide(row: Offset, now_ms: int) -> Offset:
        _check_free(row, Worker(hostid=""), now_ms)
        if row.state == SIZING:  # nothing was inserted: sized anew after the pause
            return replace(row, next=row.last, state=PAUSED, hostid="")
        return replace(row, state=PAUSED, hostid="")

    return store.change(topic, decide)


def resume(store: OffsetStore, topic: str) -> Offset:
    def decide(row: Offset, _now_ms: int) -> Offset:
        return replace(row, state="") if row.state == PAUSED else row

    return store.change(topic, decide)


def failures(state: str) -> int:
    """How many times in a row the topic has failed."""
    found = _FAILED.match(state)
    return int(found[1]) if found else 0


def is_held(row: Offset, worker_hostid: str, now_ms: int, lease_seconds: float) -> bool:
    """Somebody else holds the topic, and its lease has not run out."""
    if row.hostid in ("", worker_hostid):
        return False
    return now_ms - row.run_ms < lease_seconds * 1000


def blank(topic: str) -> Offset:
    return Offset(topic=topic, last=START, next=START)


def _check_free(row: Offset, worker: Worker, now_ms: int) -> None:
    if is_held(row, worker.hostid, now_ms, worker.lease_seconds):
        age = (now_ms - row.run_ms) / 1000
        raise MutexError(
            f"MUTEX: topic {row.topic} is worked on by {row.hostid} ({row.consumer}, last sign of life "
            f"{age:.0f} s ago). It is taken over after {worker.lease_seconds:g} s of silence; when that "
            f"process is surely dead: `oncehouse etl unlock {row.topic}`."
        )


def _check_held(row: Offset, worker: Worker) -> None:
    if row.hostid != worker.hostid:
        holder = row.hostid or "nobody (it was unlocked)"
        raise MutexError(
            f"MUTEX: topic {row.topic} is no longer held by {worker.hostid} but by {holder}. This step stops; "
            "its range runs again unchanged."
        )
