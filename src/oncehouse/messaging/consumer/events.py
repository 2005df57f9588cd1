"""What the core is told, and what it asks for: frozen values, one class each.

A Ticket names one piece of work of one term of a partition. Whoever answers a ticket that is no longer the
partition's current one is not listened to, so late answers of cancelled work do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.failure_policy import Partition

FailureKind = Literal["unknown", "transient", "permanent", "configuration"]
"""What the handler raised: TransientError is retried whole for as long as it takes; PermanentError is bisected at once;
ConfigurationError is no message's fault and stops the partition; anything else gets some attempts first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    partition: Partition
    term: int
    """Counts the assignments that this consumer has had."""
    number: int
    """Counts the pieces of work within a term."""


# Events: what the core is told.


@dataclass(frozen=True, kw_only=True, slots=True)
class Assigned:
    partition: Partition
    position: CommittedPosition


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPrepared:
    """What Assigned asked for by Prepare is done: batches may be handed out."""

    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareFailed:
    ticket: Ticket
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordsFetched:
    partition: Partition
    records: Records
    due_at: float = 0.0
    """On the core's clock: these records must not be handed out before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticked:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOffsetRead:
    partition: Partition
    end: int
    """The offset that Kafka will give to the next record of this partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerSucceeded:
    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerFailed:
    ticket: Ticket
    error: str
    kind: FailureKind = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class DivertedUntried:
    """These of the batch were put aside untried, because they wait behind others. The work goes on."""

    ticket: Ticket
    offsets: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diverted:
    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class DivertFailed:
    ticket: Ticket
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    partition: Partition
    position: CommittedPosition


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitFailed:
    partition: Partition
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaving:
    """These partitions are about to be revoked: nothing new begins, retries end; what runs may finish."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """The time to finish is over; what is done is committed, the rest is cancelled."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Others may own these partitions already: nothing is committed."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """As Leaving for every partition, now and later."""


Event = (
    Assigned
    | PartitionPrepared
    | PrepareFailed
    | RecordsFetched
    | Ticked
    | EndOffsetRead
    | HandlerSucceeded
    | HandlerFailed
    | DivertedUntried
    | Diverted
    | DivertFailed
    | Committed
    | CommitFailed
    | Leaving
    | Revoked
    | Lost
    | Stopping
)


# Actions: what the core asks for, to be done in this order.


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparePartition:
    """Tell the place for failed messages that the partition is ours; answered by Prepared or PrepareFailed."""

    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHandler:
    """Answered by Handled, Failed or PutFailed, and before that perhaps by Skipped."""

    ticket: Ticket
    records: Records
    without: frozenset[int]
    """Offsets that were put aside already."""
    attempt: int
    names_group: bool = False
    """Whether the batch's insert token names the group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divert:
    """The one record that the handler cannot take; answered by PutDone or PutFailed."""

    ticket: Ticket
    records: Records
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """Answered by Committed or CommitFailed."""

    partition: Partition
    position: CommittedPosition


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitNow:
    """The last commit of partitions that leave: wait for it. Not answered."""

    positions: tuple[tuple[Partition, CommittedPosition], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyCommitted:
    """These records are done and their offsets committed."""

    partition: Partition
    records: Records


@dataclass(frozen=True, kw_only=True, slots=True)
class PausePartition:
    partition: Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePartition:
    partition: Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Nobody waits for this work any more."""

    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAt:
    ticket: Ticket
    at: float
    failures: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisected:
    ticket: Ticket
    size: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionStopped:
    """Nothing of this partition is handed out for now; it is tried again with back-off."""

    partition: Partition
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionResumed:
    partition: Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerStuck:
    ticket: Ticket
    seconds: float


Action = (
    PreparePartition
    | RunHandler
    | Divert
    | Commit
    | CommitNow
    | NotifyCommitted
    | PausePartition
    | ResumePartition
    | Cancel
    | RetryAt
    | Bisected
    | PartitionStopped
    | PartitionResumed
    | HandlerStuck
)
