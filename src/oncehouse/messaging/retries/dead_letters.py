"""Dead letters as they stand in a topic: read, counted, chosen; and which of them were replayed.

A letter is named by its position in the dead-letter topic. A replay leaves marks in the same topic, messages without
key and value that name the offsets of what was replayed, so that the memory of it lives and goes with the letters.
Everything in a letter is a stranger's: numbers are checked here, text is made safe where it is printed.
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
    Position,
    parse_position,
)
from oncehouse.messaging.retries.retry_routing import REPLAYED, read_number

_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_KIND_CHARACTERS = 80
_LAST_MOMENT = 253_402_300_799_000  # the end of the year 9999
_SPAN = re.compile(r"([^/]+)/([0-9]{1,10})/([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MARK = re.compile(rb"[0-9]{1,18}(?:,[0-9]{1,18})*")

Marks = dict[int, set[int]]
"""Partition -> offsets that were replayed."""


@dataclass(frozen=True, kw_only=True)
class Letter:
    message: Message

    @property
    def origin(self) -> Position | None:
        """Where the message stood first; none for a letter that somebody else wrote."""
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
        """When its last attempt failed; when it was written, where it does not say so."""
        return _seconds(read_number(self.message, FAILED_AT) or self.message.timestamp_ms)


@dataclass(frozen=True, kw_only=True)
class Span:
    topic: str
    partition: int
    first: int
    last: int

    def covers(self, place: Position | None) -> bool:
        return (
            place is not None
            and (place.topic, place.partition) == (self.topic, self.partition)
            and self.first <= place.offset <= self.last
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which letters are meant; what is said together must hold together."""

    error: str | None = None
    """A piece of the error's text."""
    since: float | None = None
    spans: tuple[Span, ...] = ()
    """Positions in the dead-letter topic, or the first positions of the messages."""

    def takes(self, letter: Letter) -> bool:
        if self.error is not None and self.error not in letter.error:
            return False
        if self.since is not None and (letter.failed_at or 0.0) < self.since:
            return False
        here = position_of(letter.message)
        return not self.spans or any(span.covers(here) or span.covers(letter.origin) for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class Tally:
    letters: int = 0
    replayed: int = 0


def parse_span(text: str) -> Span:
    """`topic/partition/offset`, or `…/first-last`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{text!a} is not a position; write topic/partition/offset or topic/partition/first-last, such as "
            "events.dlq/0/42 or events/0/40-50"
        )
    first = int(found[3])
    return Span(topic=found[1], partition=int(found[2]), first=first, last=int(found[4] or first))


def position_of(message: Message) -> Position:
    return Position(topic=message.topic, partition=message.partition, offset=message.offset)


def dead_letters_of(topic: str, *, named: bool) -> str:
    """The dead-letter topic that somebody means who names a topic."""
    return topic if named or topic.endswith(".dlq") else f"{topic}.dlq"


def kind_of_error(error: str) -> str:
    """What letters are counted by: the class of the error, or how its text begins."""
    lines = error.splitlines()
    if not lines:
        return "(no error named)"
    name = lines[0].partition(":")[0]
    return name if _CLASS_NAME.fullmatch(name) else lines[0][:_KIND_CHARACTERS]


def is_mark(message: Message) -> bool:
    return message.value is None and message.key is None and message.header(REPLAYED) is not None


def collect_marks(messages: Iterable[Message]) -> Marks:
    marks: Marks = {}
    for message in messages:
        named = message.header(REPLAYED) or b""
        if is_mark(message) and _MARK.fullmatch(named):
            marks.setdefault(message.partition, set()).update(map(int, named.split(b",")))
    return marks


def pick_letters(messages: Iterable[Message], choice: Choice) -> Iterator[Letter]:
    for message in messages:
        if not is_mark(message) and choice.takes(letter := Letter(message=message)):
            yield letter


def is_replayed(letter: Letter, marks: Marks) -> bool:
    return letter.message.offset in marks.get(letter.message.partition, ())


def count_letters(letters: Iterable[Letter], marks: Marks) -> dict[str, Tally]:
    """By kind of error, the most frequent first."""
    counts: dict[str, Tally] = {}
    for letter in letters:
        kind = kind_of_error(letter.error)
        known = counts.get(kind, Tally())
        counts[kind] = Tally(letters=known.letters + 1, replayed=known.replayed + is_replayed(letter, marks))
    return dict(sorted(counts.items(), key=lambda item: -item[1].letters))


def plan_purge(messages: Iterable[Message], until: float | None) -> tuple[dict[int, int], list[Letter]]:
    """Up to which offset each partition goes, and the letters that go with it.

    Kafka only deletes from the front: with `until`, the first letter that is not older than it ends its partition.
    """
    ends: dict[int, int] = {}
    kept: set[int] = set()
    gone: list[Letter] = []
    for message in messages:
        if message.partition in kept:
            continue
        letter = Letter(message=message)
        if until is not None and not is_mark(message) and (letter.failed_at or 0.0) >= until:
            kept.add(message.partition)
            continue
        ends[message.partition] = message.offset + 1
        if not is_mark(message):
            gone.append(letter)
    return ends, gone


def _seconds(milliseconds: int | None) -> float | None:
    """A moment that a calendar has; producers may claim any."""
    return None if milliseconds is None or not 0 <= milliseconds <= _LAST_MOMENT else milliseconds / 1000
