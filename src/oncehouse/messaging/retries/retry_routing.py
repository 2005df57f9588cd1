"""Which topic a failed message goes to next, and with which headers. Pure.

The source is level 0, `base.retry.1` … `base.retry.n` are the levels above it. A message that fails on the last level
goes to `base.dlq`. A message keeps its key, value, own headers and partition number on every level. The headers that
oncehouse writes are replaced on each level, so that forged ones are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from oncehouse.messaging.failure_policy import FailedMessage, OutgoingMessage
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
"""On a replay mark in a dead-letter topic: the offsets of its partition that were replayed, separated by commas."""
BOOKKEEPING = frozenset({ORIGIN, ORIGIN_TIME, ATTEMPT, ERROR, FAILED_AT, NOT_BEFORE, REPLAYED})
"""Headers of diverted messages that only oncehouse writes."""

_ERROR_BYTES = 1000
_MOST_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class RetryRoute:
    """The topics that belong to one source, by level."""

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


def route_failed(failure: FailedMessage, route: RetryRoute) -> OutgoingMessage:
    """The next topic of a message that failed, or that waits for one that did."""
    message, level = failure.message, route.levels[failure.message.topic]
    is_last = level == len(route.delays_seconds)
    headers = {
        ORIGIN: str(find_first_position(message, route.source)),
        ORIGIN_TIME: message.text_header(ORIGIN_TIME) if level else _format_time(message.timestamp_ms),
        **_attempts(failure),
    }
    if not is_last:
        due = failure.failed_at + route.delays_seconds[level]
        headers[NOT_BEFORE] = str(round(due * 1000))
    return OutgoingMessage(
        topic=route.dead_letters if is_last else route.retry_topics[level],
        partition=message.partition,
        key=message.key,
        value=message.value,
        headers=own_headers(message) + tuple((name, text.encode()) for name, text in headers.items() if text),
    )


def due_at(message: Message, route: RetryRoute) -> float | None:
    """Seconds since 1970 when a message of a retry topic is due; None for messages of the source."""
    level = route.levels[message.topic]
    written = read_number(message, NOT_BEFORE)
    if not level or written is None:
        return None
    if message.timestamp_ms is None:
        return written / 1000
    # A clock that runs ahead, or a message from another producer, must not block a partition for longer than its delay.
    return min(written / 1000, message.timestamp_ms / 1000 + route.delays_seconds[level - 1])


def own_headers(message: Message) -> Headers:
    """The message's headers without those that oncehouse writes."""
    return tuple(header for header in message.headers if header[0] not in BOOKKEEPING)


def read_number(message: Message, name: str) -> int | None:
    """A header that holds a whole number; anything else counts as absent."""
    text = message.text_header(name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _attempts(failure: FailedMessage) -> dict[str, str]:
    failed = read_number(failure.message, ATTEMPT) or 0
    if not failure.error:
        # Not tried here: the headers about earlier attempts stay as they were.
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


def _format_time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else str(milliseconds)
