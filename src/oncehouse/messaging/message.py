"""A Kafka message as handlers see it, the headers that oncehouse itself writes, and which of them are believed.

Header values are bytes on the wire; what we write is UTF-8 text. A header may stand several times: the last counts.
Any producer can write any header, so a header never reaches beyond the topic in which the producer may write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]

MESSAGE_ID = "oncehouse-id"
"""The id that a message keeps from its outbox row through its topic, its retries and its replays."""

ORIGIN = "oncehouse-origin"
"""Where a message that was put aside stood first: topic/partition/offset."""
ORIGIN_TIME = "oncehouse-origin-time"
"""When it was first written there, in milliseconds since 1970."""
ATTEMPT = "oncehouse-attempt"
"""How often its handler has failed on it."""
ERROR = "oncehouse-error"
"""What the last attempt said, cut to a readable length."""
FAILED_AT = "oncehouse-failed-at"
"""When the last attempt failed, in milliseconds since 1970."""
NOT_BEFORE = "oncehouse-not-before"
"""When a message in a retry topic is due, in milliseconds since 1970."""


_POSITION = re.compile(r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})/([0-9]{1,18})")
_SET_ASIDE = re.compile(r"(?:\.[a-zA-Z0-9._-]+)?\.(?:retry\.[0-9]+|dlq)")


@dataclass(frozen=True, kw_only=True)
class Position:
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def parse_position(text: str) -> Position | None:
    found = _POSITION.fullmatch(text)
    if found is None:
        return None
    return Position(topic=found[1], partition=int(found[2]), offset=int(found[3]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    source: str | None = None
    """The topic whose retry topic this one was read from. A consumer sets it; without it the topic's name decides."""

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> bytes | None:
        """The last value under this name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    def text_header(self, name: str) -> str:
        """As text, whatever the bytes; empty where it is absent."""
        return (self.header(name) or b"").decode("utf-8", errors="backslashreplace")

    @property
    def source_topic(self) -> str:
        """The topic that this message belongs to: its own, or the source of the retry topic that it stands in."""
        if self.source is not None:
            return self.source
        claimed = parse_position(self.text_header(ORIGIN))
        return claimed.topic if claimed and _is_set_aside(self.topic, claimed.topic) else self.topic

    @property
    def first_position(self) -> Position:
        """Where the message stood first: what `oncehouse-origin` says, where that may be believed."""
        return find_first_position(self, self.source_topic)

    @property
    def message_id(self) -> str:
        """What its producer calls the message: its outbox id, or else its first position in Kafka.

        Producers of two topics may use one id for two messages: see `inbox.ids` for what tells those apart.
        """
        return self.text_header(MESSAGE_ID) or str(self.first_position)


def find_first_position(message: Message, source: str) -> Position:
    """In retry topics of the source, its own consumer has written the origin. Anywhere else, and for another topic, an
    origin is any producer's claim, and the message is known by where it stands: see `find_replayed`.
    """
    claimed = _read_claim(message, source)
    if claimed is None or message.topic == source:
        return Position(topic=message.topic, partition=message.partition, offset=message.offset)
    return claimed


def find_replayed(message: Message, source: str) -> Position | None:
    """The earlier place of the partition that a message in the source itself claims to repeat, as a replay does.

    Any producer of the topic can claim it. So a message is skipped where that place was handled, and never makes
    that place, whose retry may be under way, count as handled.
    """
    claimed = _read_claim(message, source)
    if claimed is None or message.topic != source or claimed.offset >= message.offset:
        return None
    return claimed


def _read_claim(message: Message, source: str) -> Position | None:
    claimed = parse_position(message.text_header(ORIGIN))
    if claimed is None or (claimed.topic, claimed.partition) != (source, message.partition):
        return None
    return claimed


def _is_set_aside(topic: str, source: str) -> bool:
    """Whether consumers of the source put failed messages into this topic, by its name."""
    return topic.startswith(source) and _SET_ASIDE.fullmatch(topic, len(source)) is not None
