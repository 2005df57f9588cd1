"""The Kafka client as the consumer needs it: one small interface with two implementations, Kafka's and in memory.

All calls come from the polling thread; the listener is called from within `consume` and `close`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.failure_policy import Partition, RetryBroker


class Listener(Protocol):
    def on_assigned(self, positions: Mapping[Partition, CommittedPosition]) -> None: ...

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        """May block; the partitions are given up when it returns."""
        ...

    def on_lost(self, partitions: Collection[Partition]) -> None: ...

    def on_committed(self, partition: Partition, position: CommittedPosition) -> None: ...

    def on_commit_failed(self, partition: Partition, error: str) -> None: ...


class BrokerClient(Protocol):
    def open_retry_broker(self) -> RetryBroker:
        """For failed messages. The caller closes it."""
        ...

    def open(self, topics: Sequence[str], *, beginning: Collection[str], listener: Listener) -> None:
        """Join the group. Topics in `beginning` are read from their first record if the group has no offset.

        Raises ConfigurationError for a missing topic, TransientError if the brokers do not answer.
        """
        ...

    def consume(self, count: int, timeout_seconds: float) -> list[Any]:
        """Up to `count` raw records that arrive within the timeout.

        Raises PermanentError if the consumer cannot continue.
        """
        ...

    def commit(self, partition: Partition, position: CommittedPosition) -> None:
        """Does not wait; the listener gets the result later."""
        ...

    def commit_now(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        """Waits. Raises TransientError."""
        ...

    def pause(self, partition: Partition) -> None: ...

    def resume(self, partition: Partition) -> None: ...

    def end_of(self, partition: Partition) -> int | None:
        """The end offset of this partition, if the client knows it without a request."""
        ...

    def first_of(self, partition: Partition) -> int | None:
        """The first offset that Kafka still has; sends a request."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...
