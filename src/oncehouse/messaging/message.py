"""A Kafka message as handlers see it, and the headers that oncehouse itself writes.

Header values are bytes on the wire; what we write is UTF-8 text. A header may stand several times: the last counts.
"""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]

MESSAGE_ID = "oncehouse-id"
"""The id that a message keeps from its outbox row through every topic: what an inbox remembers."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> bytes | None:
        """The last value under this name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def message_id(self) -> str:
        """What tells this message from every other: its outbox id, or else its first position in Kafka."""
        for name in (MESSAGE_ID, ORIGIN):
            if value := self.header(name):
                return value.decode("utf-8", errors="backslashreplace")
        return self.position
