"""Values of the stored inbox: pending messages, outcomes of attempts, and the settings of workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncehouse.common.backoff import Backoff
from oncehouse.messaging.message import Message


@dataclass(frozen=True, kw_only=True)
class StoreResult:
    """How many messages were new, and how many repeats."""

    new: int
    repeated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingMessage:
    """A message that a worker may handle."""

    sequence: int
    key_hash: int
    bucket: int
    attempts: int
    """How many attempts were begun."""
    answered: int
    """How many attempts ended with a result; during the others the worker died."""
    message: Message

    @property
    def suspect(self) -> bool:
        """Whether a worker may have died because of it."""
        return self.attempts > self.answered


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptSucceeded:
    waiting: PendingMessage


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFailed:
    waiting: PendingMessage
    error: str
    final: bool = False
    """No further attempt is useful."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptWithdrawn:
    """Not handled: settled or held by another worker, or the database was unavailable."""

    waiting: PendingMessage
    reason: str
    begun: bool = True
    """Whether an attempt was counted."""


MessageOutcome = AttemptSucceeded | AttemptFailed | AttemptWithdrawn


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    concurrency: int = 8
    max_attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(base_seconds=1.0, longest_seconds=600.0))
    parked_holds_key: bool = False
    """Whether later messages of a key wait for a parked one until it is retried or dropped."""
    keep_seconds: float = 7 * 86400.0
    """How long finished messages are kept, so that repeats are recognized."""
    lease_seconds: float = 15.0
    poll_seconds: float = 1.0
    """The longest wait between two polls of an idle inbox."""
    rest_seconds: float = 1.0
    """How long to skip a key whose first message another worker holds."""
    drain_seconds: float = 30.0
    """How long a stop waits for running handlers."""
