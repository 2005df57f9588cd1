"""Who may work on a topic: its states, leases and holders, read from its row. Pure.

Every refusal names the holder or what has moved, and what to do. What becomes of a row is for `transitions.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oncehouse.errors import PermanentError
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START

LEASE_SECONDS = 60.0
PAUSED = "paused"
SIZING = "sizing"
"""`next` is written but may still be halved: nothing was inserted for it yet."""
INSERTING = "inserting"
DONE = "done"
MORE = "more"
"""The step was cut by its size: the rest is due at once."""
_FAILED = re.compile(r"failed (\d+): ")


class MutexError(PermanentError):
    """Another process works on the topic, or has taken it over."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class TopicWorker:
    """A process that works on topics."""

    hostid: str
    """Unique for every process: a name that two shared would let both in."""
    consumer: str = "oncehouse"
    lease_seconds: float = LEASE_SECONDS


def failures(state: str) -> int:
    """How many times in a row the topic has failed."""
    found = _FAILED.match(state)
    return int(found[1]) if found else 0


def is_held(row: Offset, worker_hostid: str, now_ms: int, lease_seconds: float) -> bool:
    """Another process holds the topic, and its lease has not run out."""
    if row.hostid in ("", worker_hostid):
        return False
    return now_ms - row.run_ms < lease_seconds * 1000


def new_offset(topic: str) -> Offset:
    return Offset(topic=topic, last=START, next=START)


def check_unmoved(row: Offset, seen: Offset, worker: TopicWorker, now_ms: int) -> None:
    """The topic is free, goes on, and stands where it stood when the step was planned."""
    check_free(row, worker, now_ms)
    if (row.last, row.next, row.job_kind, row.generation) != (
        seen.last,
        seen.next,
        seen.job_kind,
        seen.generation,
    ):
        raise MutexError(
            f"Topic {row.topic}: its offsets moved since the step was planned (by "
            f"{row.consumer or 'another process'}); the next round plans it again."
        )
    if row.state == PAUSED or row.topic_state.is_pause_asked:
        raise MutexError(f"Topic {row.topic} was paused; `oncehouse etl resume {row.topic}` lets it go on.")


def check_unchanged(row: Offset, seen: Offset) -> None:
    """The topic has built nothing since it was looked at."""
    if (row.last, row.next, row.generation, row.topic_state.segments, row.topic_state.jobs) != (
        seen.last,
        seen.next,
        seen.generation,
        seen.topic_state.segments,
        seen.topic_state.jobs,
    ):
        raise MutexError(
            f"Topic {row.topic} moved on while its table was looked at. `oncehouse etl pause {row.topic}`, and then "
            "the same command again."
        )


def check_free(row: Offset, worker: TopicWorker, now_ms: int) -> None:
    if is_held(row, worker.hostid, now_ms, worker.lease_seconds):
        age = (now_ms - row.run_ms) / 1000
        raise MutexError(
            f"MUTEX: topic {row.topic} is worked on by {row.hostid} ({row.consumer}, last sign of life "
            f"{age:.0f} s ago). It is taken over after {worker.lease_seconds:g} s of silence; when that "
            f"process is surely dead: `oncehouse etl unlock {row.topic}`."
        )


def check_held(row: Offset, worker: TopicWorker) -> None:
    if row.hostid != worker.hostid:
        holder = row.hostid or "no process (it was unlocked)"
        raise MutexError(
            f"MUTEX: topic {row.topic} is no longer held by {worker.hostid} but by {holder}. This step stops; "
            "its range runs again unchanged."
        )
