"""Which topic a failed message goes to next, and with which headers. Pure.

The source is level 0, `base.retry.1` … `base.retry.n` are the levels above it, and what fails on the last one goes to
`base.dlq`. A message keeps its key, value, own headers and partition number on every level; our headers are written
anew each time, so that nobody's forged ones travel along.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from oncehouse.messaging.failure_policy import Failure, Placement
from oncehouse.messaging.message import (
    ATTEMPT,
    ERROR,
    FAILED_AT,
    NOT_BEFORE,
    ORIGIN,
    ORIGIN_TIME,
    Headers,
    Message,
    find_first_position,
)

REPLAYED = "oncehouse-replayed"
"""On a mark in a dead-letter topic: the offsets of its own partition that were replayed, with commas between."""
BOOKKEEPING = frozenset({ORIGIN, ORIGIN_TIME, ATTEMPT, ERROR, FAILED_AT, NOT_BEFORE, REPLAYED})
"""Headers that are ours alone to write on what is put aside."""

_ERROR_BYTES = 1000
_MOST_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The topics around one source, by level."""

    source: str
    base: str
    delays_seconds: tuple[float, ...]

    @cached_property
    def retry_topics(self) -> tuple[str, ...]:
        return tuple(f"{self.base}.retry.{level}" for level in range(1, len(self.delays_seconds) + 1))

    @property
    def dead_letters(self) -> str:
        return f"{self.base}.dlq"

    @cached_property
    def levels(self) -> dict[str, int]:
        """Topics that are read, with their level."""
        return {topic: level for level, topic in enumerate((self.source, *self.retry_topics))}


def decide(failure: Failure, ladder: Ladder) -> Placement:
    """Where a message goes that failed, or that waits behind one that did."""
    message, level = failure.message, ladder.levels[failure.message.topic]
    gives_up = level == len(ladder.delays_seconds)
    headers = {
        ORIGIN: str(find_first_position(message, ladder.source)),
        ORIGIN_TIME: message.text_header(ORIGIN_TIME) if level else _spell_time(message.timestamp_ms),
        **_attempts(failure),
    }
    if not gives_up:
        due = failure.failed_at + ladder.delays_seconds[level]
        headers[NOT_BEFORE] = str(round(due * 1000))
    return Placement(
        topic=ladder.dead_letters if gives_up else ladder.retry_topics[level],
        partition=message.partition,
        key=message.key,
        value=message.value,
        headers=own_headers(message) + tuple((name, text.encode()) for name, text in headers.items() if text),
    )


def due_at(message: Message, ladder: Ladder) -> float | None:
    """Seconds since 1970 when a message of a retry topic is due; none for the source's, whatever they claim."""
    level = ladder.levels[message.topic]
    written = read_number(message, NOT_BEFORE)
    if not level or written is None:
        return None
    if message.timestamp_ms is None:
        return written / 1000
    # A clock that runs ahead, or a message by another hand, must not hold up a partition for longer than its delay.
    return min(written / 1000, message.timestamp_ms / 1000 + ladder.delays_seconds[level - 1])


def own_headers(message: Message) -> Headers:
    """The headers that the message came with, without ours."""
    return tuple(header for header in message.headers if header[0] not in BOOKKEEPING)


def read_number(message: Message, name: str) -> int | None:
    """A header that holds a whole number; anything else counts as absent."""
    text = message.text_header(name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _attempts(failure: Failure) -> dict[str, str]:
    failed = read_number(failure.message, ATTEMPT) or 0
    if not failure.error:
        # Never tried here: what is known of earlier attempts stays as it was.
        return {
            ATTEMPT: str(failed),
            ERROR: failure.message.text_header(ERROR),
            FAILED_AT: failure.message.text_header(FAILED_AT),
        }
    return {
        ATTEMPT: str(failed + 1),
        ERROR: _cut(failure.error),
        FAILED_AT: str(round(failure.failed_at * 1000)),
    }


def _cut(error: str) -> str:
    raw = error.encode("utf-8", "backslashreplace")
    if len(raw) <= _ERROR_BYTES:
        return raw.decode()
    return raw[: _ERROR_BYTES - 3].decode("utf-8", "ignore") + "…"


def _spell_time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else str(milliseconds)
