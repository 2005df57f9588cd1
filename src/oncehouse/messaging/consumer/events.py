"""Events and actions of the state machine: frozen values, one class each.

A Ticket names one task of one assignment of a partition. A result with a ticket that is no longer the partition's
current one is ignored, so late results of cancelled tasks do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.failure_policy import Partition

FailureKind = Literal["unknown", "transient", "permanent", "configuration"]
"""What the handler raised. After a TransientError the batch is retried without a limit; after a PermanentError it is
bisected at once; a ConfigurationError stops the partition; after other errors the batch is retried, then bisected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    partition: Partition
    term: int
    """Counts the assignments of this consumer."""
    number: int
    """Counts the tasks within an assignment."""


# Events: input of the state machine.


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
    """By the state machine's clock: these records must not be handled before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticked:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOffsetRead:
    partition: Partition
    end: int
    """The offset that the next record of this partition will get."""


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
    """These records of the batch were diverted untried, because they wait for others. The task continues."""

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
    """These partitions are about to be revoked: no task begins, retries end; running handlers may finish."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """The time to finish is over; handled records are committed, running tasks are cancelled."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Other consumers may own these partitions already: nothing is committed."""

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


# Actions: output of the state machine, to be carried out in this order.


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparePartition:
    """Notify the place for failed messages that the partition is ours; answered by Prepared or PrepareFailed."""

    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHandler:
    """Answered by Handled, Failed or PutFailed, and before that perhaps by Skipped."""

    ticket: Ticket
    records: Records
    without: frozenset[int]
    """Offsets that were diverted already."""
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
    """The last commit of revoked partitions: wait for it. Not answered."""

    positions: tuple[tuple[Partition, CommittedPosition], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyCommitted:
    """Notify the failure policy that the offsets of these records were committed."""

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
    """The result of this task is no longer needed."""

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
    """The partition is stopped for now and retried with back-off."""

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
