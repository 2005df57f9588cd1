"""Dead letters in a topic: read, count, select, and tell which were replayed. Pure.

A dead letter is named by its position in the dead-letter topic. A replay writes marks to the same topic: messages
without key and value that name the replayed offsets, so that marks and dead letters share one retention. The content of
a dead letter is untrusted: numbers are checked here, text is escaped where it is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.message import (
    ATTEMPT,
    ERROR,
    FAILED_AT,
    ORIGIN,
    ORIGIN_TIME,
    Message,
    MessagePosition,
    parse_position,
)
from oncehouse.messaging.retries.retry_routing import REPLAYED, read_number

_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_KIND_CHARACTERS = 80
_LAST_MOMENT = 253_402_300_799_000  # the end of the year 9999
_SPAN = re.compile(r"([^/]+)/([0-9]{1,10})/([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MARK = re.compile(rb"[0-9]{1,18}(?:,[0-9]{1,18})*")

ReplayMarks = dict[int, set[int]]
"""Partition -> offsets that were replayed."""


@dataclass(frozen=True, kw_only=True)
class TopicDeadLetter:
    message: Message

    @property
    def origin(self) -> MessagePosition | None:
        """The message's first position; None for a dead letter that oncehouse did not write."""
        return parse_position(self.message.text_header(ORIGIN))

    @property
    def origin_time(self) -> float | None:
        return _seconds(read_number(self.message, ORIGIN_TIME))

    @property
    def attempts(self) -> int | None:
        return read_number(self.message, ATTEMPT)

    @property
    def error(self) -> str:
        return self.message.text_header(ERROR)

    @property
    def failed_at(self) -> float | None:
        """When its last attempt failed, or else when it was written."""
        return _seconds(read_number(self.message, FAILED_AT) or self.message.timestamp_ms)


@dataclass(frozen=True, kw_only=True)
class OffsetSpan:
    topic: str
    partition: int
    first: int
    last: int

    def covers(self, place: MessagePosition | None) -> bool:
        return (
            place is not None
            and (place.topic, place.partition) == (self.topic, self.partition)
            and self.first <= place.offset <= self.last
        )


@dataclass(frozen=True, kw_only=True)
class DeadLetterSelection:
    """Selects dead letters; all conditions that are set must hold."""

    error: str | None = None
    """A part of the error's text."""
    since: float | None = None
    spans: tuple[OffsetSpan, ...] = ()
    """Positions in the dead-letter topic, or the first positions of the messages."""

    def matches(self, dead_letter: TopicDeadLetter) -> bool:
        if self.error is not None and self.error not in dead_letter.error:
            return False
        if self.since is not None and (dead_letter.failed_at or 0.0) < self.since:
            return False
        here = position_of(dead_letter.message)
        return not self.spans or any(
            span.covers(here) or span.covers(dead_letter.origin) for span in self.spans
        )


@dataclass(frozen=True, kw_only=True)
class ErrorCount:
    letters: int = 0
    replayed: int = 0


def parse_offset_span(text: str) -> OffsetSpan:
    """`topic/partition/offset`, or `…/first-last`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{text!a} is not a position; write topic/partition/offset or topic/partition/first-last, such as "
            "events.dlq/0/42 or events/0/40-50"
        )
    first = int(found[3])
    return OffsetSpan(topic=found[1], partition=int(found[2]), first=first, last=int(found[4] or first))


def position_of(message: Message) -> MessagePosition:
    return MessagePosition(topic=message.topic, partition=message.partition, offset=message.offset)


def dead_letter_topic_of(topic: str, *, named: bool) -> str:
    """The dead-letter topic of a source topic, or the topic itself if it is one."""
    return topic if named or topic.endswith(".dlq") else f"{topic}.dlq"


def kind_of_error(error: str) -> str:
    """By which dead letters are counted: the error's class, or the beginning of its text."""
    lines = error.splitlines()
    if not lines:
        return "(no error named)"
    name = lines[0].partition(":")[0]
    return name if _CLASS_NAME.fullmatch(name) else lines[0][:_KIND_CHARACTERS]


def is_replay_mark(message: Message) -> bool:
    return message.value is None and message.key is None and message.header(REPLAYED) is not None


def collect_marks(messages: Iterable[Message]) -> ReplayMarks:
    marks: ReplayMarks = {}
    for message in messages:
        named = message.header(REPLAYED) or b""
        if is_replay_mark(message) and _MARK.fullmatch(named):
            marks.setdefault(message.partition, set()).update(map(int, named.split(b",")))
    return marks


def select_dead_letters(
    messages: Iterable[Message], choice: DeadLetterSelection
) -> Iterator[TopicDeadLetter]:
    for message in messages:
        if not is_replay_mark(message) and choice.matches(dead_letter := TopicDeadLetter(message=message)):
            yield dead_letter


def is_replayed(dead_letter: TopicDeadLetter, marks: ReplayMarks) -> bool:
    return dead_letter.message.offset in marks.get(dead_letter.message.partition, ())


def count_by_error(dead_letters: Iterable[TopicDeadLetter], marks: ReplayMarks) -> dict[str, ErrorCount]:
    """By kind of error, the most frequent first."""
    counts: dict[str, ErrorCount] = {}
    for dead_letter in dead_letters:
        kind = kind_of_error(dead_letter.error)
        known = counts.get(kind, ErrorCount())
        counts[kind] = ErrorCount(
            letters=known.letters + 1, replayed=known.replayed + is_replayed(dead_letter, marks)
        )
    return dict(sorted(counts.items(), key=lambda item: -item[1].letters))


def plan_purge(
    messages: Iterable[Message], until: float | None
) -> tuple[dict[int, int], list[TopicDeadLetter]]:
    """Up to which offset each partition is deleted, and the dead letters deleted with it.

    Kafka deletes only from the front: with `until`, a partition is kept from its first dead letter that is not older.
    """
    ends: dict[int, int] = {}
    kept: set[int] = set()
    deleted: list[TopicDeadLetter] = []
    for message in messages:
        if message.partition in kept:
            continue
        dead_letter = TopicDeadLetter(message=message)
        if until is not None and not is_replay_mark(message) and (dead_letter.failed_at or 0.0) >= until:
            kept.add(message.partition)
            continue
        ends[message.partition] = message.offset + 1
        if not is_replay_mark(message):
            deleted.append(dead_letter)
    return ends, deleted


def _seconds(milliseconds: int | None) -> float | None:
    """None for a time outside the calendar: producers can write any number."""
    return None if milliseconds is None or not 0 <= milliseconds <= _LAST_MOMENT else milliseconds / 1000
