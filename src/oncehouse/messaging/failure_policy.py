"""What happens to messages whose handler failed: the interface between consumer and failure policy.

`RetryTopics` and `DeadLetterTopic` are the failure policies. The consumer asks its policy before it runs a handler, and
passes it the messages that failed; the consumer knows nothing of delays or keys. A policy reaches Kafka only through
the `RetryBroker` it was opened with, so it works on the broker in memory, too. Calls for one partition come one at a
time; calls for different partitions may come from several threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from oncehouse.messaging.message import Headers, Message

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class FailedMessage:
    message: Message
    error: str
    """The handler's error; empty for a message that was not tried because it waits for an earlier one of its key."""
    failed_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    """A message to be written to a given partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class RetryBroker(Protocol):
    """The Kafka operations that a failure policy needs. `retries.kafka_retry_broker` has Kafka's implementation."""

    def count_partitions(self, topic: str) -> int | None:
        """The topic's number of partitions, or None if the topic does not exist."""
        ...

    def create(self, topic: str, *, partitions: int, source: str) -> None:
        """Create the topic, as durable as the source. Raises ConfigurationError with advice if that is not allowed."""
        ...

    def send(self, outgoing: Sequence[OutgoingMessage]) -> list[int]:
        """Write these in order and return their offsets once all are acknowledged.

        Otherwise raises TransientError or PermanentError. No message is then written to a partition after one that is
        missing there.
        """
        ...

    def read_uncommitted(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        """Offset and key of the records from the group's committed offset to the current end."""
        ...

    def close(self) -> None: ...


class FailurePolicy(Protocol):
    def open(self, source: str, broker: RetryBroker) -> None:
        """Called once, before the consumer subscribes: create or check the topics that the policy needs.

        Raises ConfigurationError with advice. The consumer keeps the broker and closes it at the end.
        """
        ...

    def topics(self, source: str) -> tuple[str, ...]:
        """Topics to read in addition to the source: failed messages come back through them.

        Partition p of each must be assigned to the consumer that has partition p of the source, as the assignor `range`
        does.
        """
        ...

    def assigned(self, partitions: Collection[Partition]) -> None:
        """These partitions were assigned to this consumer. Called before their first message is handled; may block."""
        ...

    def revoked(self, partitions: Collection[Partition]) -> None:
        """These partitions were revoked; forget their state."""
        ...

    def due_at(self, message: Message) -> float | None:
        """Seconds since 1970 before which this message must not be handled; None for no delay."""
        ...

    def find_blocked(self, messages: Sequence[Message]) -> list[int]:
        """Indices of the messages that must not be tried now, because an earlier one of their key failed.

        The consumer diverts them untried. It asks again after each `divert`: the message that has just failed may
        block the rest of its own batch.
        """
        ...

    def divert(self, failures: Sequence[FailedMessage]) -> None:
        """Write these to their next topic, in this order; return once Kafka has acknowledged all of them.

        Raises TransientError otherwise: then nothing may be committed, and the consumer may repeat the call. A
        PermanentError stops the partition.
        """
        ...

    def committed(self, messages: Sequence[Message]) -> None:
        """The offsets of these messages, handled or diverted, were committed."""
        ...
