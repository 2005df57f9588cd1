"""What the stored inbox passes around: a message with its row, what became of it, and how workers are set."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncehouse.common.backoff import Backoff
from oncehouse.messaging.message import Message


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What became of messages that were handed in."""

    new: int
    repeated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A message that a worker may handle."""

    sequence: int
    key_hash: int
    bucket: int
    attempts: int
    """How often its handling was begun."""
    answered: int
    """How many of those ended with an answer; the others ended with their worker."""
    message: Message

    @property
    def suspect(self) -> bool:
        """Whether a worker may have died of it."""
        return self.attempts > self.answered


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    waiting: Waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    waiting: Waiting
    error: str
    final: bool = False
    """No further attempt can help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawn:
    """It was not ours to handle: settled or held by somebody else, or the database was away. Nothing was done."""

    waiting: Waiting
    reason: str
    begun: bool = True
    """Whether an attempt was counted for it."""


Outcome = Done | Failed | Withdrawn


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    concurrency: int = 8
    max_attempts: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(base_seconds=1.0, longest_seconds=600.0))
    parked_holds_key: bool = False
    """Whether later messages of a key wait behind a parked one until a person has dealt with it."""
    keep_seconds: float = 7 * 86400.0
    """For how long finished messages are kept, so that repeats of them are known."""
    lease_seconds: float = 15.0
    poll_seconds: float = 1.0
    """The longest wait between two looks at an idle inbox."""
    rest_seconds: float = 1.0
    """How long a key is left alone whose first message somebody else holds."""
    drain_seconds: float = 30.0
    """How long a stop waits for handlers that have begun."""
