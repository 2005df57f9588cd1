"""A Kafka message as handlers receive it, the headers that oncehouse writes, and which of them are trusted.

Header values are bytes; oncehouse writes UTF-8 text. If a header is repeated, the last one counts. Any producer can
write any header, so a header has no effect beyond the topic to which the producer may write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]

MESSAGE_ID = "oncehouse-id"
"""The id that a message keeps from its outbox row through its topic, its retries and its replays."""

ORIGIN = "oncehouse-origin"
"""The first position of a diverted message: topic/partition/offset."""
ORIGIN_TIME = "oncehouse-origin-time"
"""When it was first written there, in milliseconds since 1970."""
ATTEMPT = "oncehouse-attempt"
"""How often its handler has failed on it."""
ERROR = "oncehouse-error"
"""The error of the last attempt, truncated."""
FAILED_AT = "oncehouse-failed-at"
"""When the last attempt failed, in milliseconds since 1970."""
NOT_BEFORE = "oncehouse-not-before"
"""When a message in a retry topic is due, in milliseconds since 1970."""


_POSITION = re.compile(r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})/([0-9]{1,18})")
_DIVERTED_TOPIC = re.compile(r"(?:\.[a-zA-Z0-9._-]+)?\.(?:retry\.[0-9]+|dlq)")


@dataclass(frozen=True, kw_only=True)
class MessagePosition:
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def parse_position(text: str) -> MessagePosition | None:
    found = _POSITION.fullmatch(text)
    if found is None:
        return None
    return MessagePosition(topic=found[1], partition=int(found[2]), offset=int(found[3]))


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
    """The source of the retry topic that the message was read from, if the consumer has set it."""

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> bytes | None:
        """The last value under this name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    def text_header(self, name: str) -> str:
        """As text, with invalid UTF-8 escaped; empty if it is absent."""
        return (self.header(name) or b"").decode("utf-8", errors="backslashreplace")

    @property
    def source_topic(self) -> str:
        """The topic that this message belongs to: its own, or the source of its retry topic."""
        if self.source is not None:
            return self.source
        claimed = parse_position(self.text_header(ORIGIN))
        return claimed.topic if claimed and _is_diverted_topic(self.topic, claimed.topic) else self.topic

    @property
    def first_position(self) -> MessagePosition:
        """The message's first position: from `oncehouse-origin` if that is trusted."""
        return find_first_position(self, self.source_topic)

    @property
    def message_id(self) -> str:
        """The id that its producer gave it (its outbox id), or else its first position in Kafka.

        Producers of two topics may use one id for two messages: `inbox.ids` distinguishes them.
        """
        return self.text_header(MESSAGE_ID) or str(self.first_position)


def find_first_position(message: Message, source: str) -> MessagePosition:
    """In retry topics of the source the origin was written by its own consumer. Anywhere else, and for another topic,
    any producer may have written it, so the message is identified by its own position: see `find_replayed`.
    """
    claimed = _read_claim(message, source)
    if claimed is None or message.topic == source:
        return MessagePosition(topic=message.topic, partition=message.partition, offset=message.offset)
    return claimed


def find_replayed(message: Message, source: str) -> MessagePosition | None:
    """The earlier position of the same partition that a message in the source claims to repeat, as a replay does.

    Any producer of the topic can claim it. So the message is skipped if that position was handled, but never marks that
    position, whose retry may be under way, as handled.
    """
    claimed = _read_claim(message, source)
    if claimed is None or message.topic != source or claimed.offset >= message.offset:
        return None
    return claimed


def _read_claim(message: Message, source: str) -> MessagePosition | None:
    claimed = parse_position(message.text_header(ORIGIN))
    if claimed is None or (claimed.topic, claimed.partition) != (source, message.partition):
        return None
    return claimed


def _is_diverted_topic(topic: str, source: str) -> bool:
    """Whether the topic's name is that of a retry or dead-letter topic of the source."""
    return topic.startswith(source) and _DIVERTED_TOPIC.fullmatch(topic, len(source)) is not None
