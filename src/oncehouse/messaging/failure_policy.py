"""Where messages go that their handler could not take, and what waits because of them.

The consumer asks an Aside before it hands messages out and tells it what failed; it knows nothing of delays or keys.
An Aside decides; it touches Kafka only through the Shelf that the consumer opens it with, so that the same Aside works
on the in-memory broker. Calls come from one thread at a time for a partition, and from several for different ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from oncehouse.messaging.message import Headers, Message

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Failure:
    message: Message
    error: str
    """What the handler said; empty for a message that was never tried, because it waits behind another."""
    failed_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A message to be written, with the partition it has to go to."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Shelf(Protocol):
    """The brokers as an Aside needs them. `retries.kafka_shelf.KafkaShelf` is Kafka's."""

    def count_partitions(self, topic: str) -> int | None:
        """How many partitions the topic has, or None when there is no such topic."""
        ...

    def create(self, topic: str, *, partitions: int, source: str) -> None:
        """Make the topic, as durable as the source. Raises ConfigurationError with advice when that is not allowed."""
        ...

    def send(self, placements: Sequence[Placement]) -> list[int]:
        """Write these in order and return their offsets once all are acknowledged.

        Raises TransientError or PermanentError otherwise. What comes later for a partition is then not written where
        something earlier is missing.
        """
        ...

    def unsettled(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        """Offset and key of what stands there beyond the group's committed offset, up to now."""
        ...

    def close(self) -> None: ...


class Aside(Protocol):
    def open(self, source: str, shelf: Shelf) -> None:
        """Called once, before the subscription: make or check what is needed beside the source.

        Raises ConfigurationError with advice. The shelf stays the consumer's, who closes it at the end.
        """
        ...

    def topics(self, source: str) -> tuple[str, ...]:
        """Topics to read beside the source, because what was put aside comes back through them.

        Partition p of all of them has to go to whoever reads partition p of the source: `range` does that.
        """
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
        """Places of the messages that must not be tried now, because an earlier one of their key was put aside.

        They are put aside untried instead. Asked again after each `put`, for all that comes after it: what has just
        failed may hold up the rest of its own batch.
        """
        ...

    def put(self, failures: Sequence[Failure]) -> None:
        """Put these aside, in this order; returns when Kafka has acknowledged all of them.

        Raises TransientError when that did not happen: nothing may be committed then, and the same call may come
        again. A PermanentError stops the partition.
        """
        ...

    def settled(self, messages: Sequence[Message]) -> None:
        """These messages are done (handled or put aside) and their offsets committed."""
        ...
