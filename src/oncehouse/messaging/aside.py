"""Where messages go that their handler could not take, and what waits because of them.

The consumer asks an Aside before it hands messages out and tells it what failed; it knows nothing of topics, delays or
keys. Calls come from one thread at a time for a partition, and from several for different partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from oncehouse.messaging.message import Message

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Failure:
    message: Message
    error: str
    """What the handler said; empty for a message that was never tried, because it waits behind another."""
    failed_at: float
    """Seconds since 1970."""


class Aside(Protocol):
    def topics(self, source: str) -> tuple[str, ...]:
        """Topics to read beside the source, because what was put aside comes back through them."""
        ...

    def assigned(self, partitions: Collection[Partition]) -> None:
        """These partitions are ours now. Called before their first message is handed out; may block for a while."""
        ...

    def revoked(self, partitions: Collection[Partition]) -> None:
        """These partitions are no longer ours; what was remembered of them is forgotten."""
        ...

    def due_at(self, message: Message) -> float | None:
        """Seconds since 1970 before which this message must not be handed out, or None for at once."""
        ...

    def behind(self, messages: Sequence[Message]) -> list[int]:
        """Places of the messages that must not be tried now, because an earlier one of their key was put aside."""
        ...

    def put(self, failures: Sequence[Failure]) -> None:
        """Put these aside, in this order; returns when Kafka has acknowledged all of them.

        Raises TransientError when that did not happen: nothing may be committed then, and the same call may come again.
        """
        ...

    def settled(self, messages: Sequence[Message]) -> None:
        """These messages are done (handled or put aside) and their offsets committed."""
        ...
