"""The brokers as a consumer needs them: one small interface, kept by Kafka's client and by the broker in memory.

Every call comes from one thread, the one that polls; the listener is called from within `consume` and `close`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.failure_policy import Partition, RetryBroker


class Listener(Protocol):
    def on_assigned(self, positions: Mapping[Partition, CommittedPosition]) -> None: ...

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        """May block for a while; the partitions go when it returns."""
        ...

    def on_lost(self, partitions: Collection[Partition]) -> None: ...

    def on_committed(self, partition: Partition, position: CommittedPosition) -> None: ...

    def on_commit_failed(self, partition: Partition, error: str) -> None: ...


class BrokerClient(Protocol):
    def open_retry_broker(self) -> RetryBroker:
        """For what is put aside. The caller closes it."""
        ...

    def open(self, topics: Sequence[str], *, beginning: Collection[str], listener: Listener) -> None:
        """Join the group. Those in `beginning` are read from their first record where nothing was committed.

        Raises ConfigurationError for a topic that is not there, TransientError when the brokers do not answer.
        """
        ...

    def consume(self, count: int, timeout_seconds: float) -> list[Any]:
        """Up to `count` raw records, as many as come within the timeout.

        Raises PermanentError when there is no going on.
        """
        ...

    def commit(self, partition: Partition, position: CommittedPosition) -> None:
        """Does not wait; the listener is told later."""
        ...

    def commit_now(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        """Waits. Raises TransientError."""
        ...

    def pause(self, partition: Partition) -> None: ...

    def resume(self, partition: Partition) -> None: ...

    def end_of(self, partition: Partition) -> int | None:
        """The offset that the next record of this partition will get, as far as it is known without asking."""
        ...

    def first_of(self, partition: Partition) -> int | None:
        """The first offset that Kafka still has; asks the brokers."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...
