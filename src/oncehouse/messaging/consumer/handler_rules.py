"""A handler and what it was declared with: how its batches are cut, retried and bisected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from oncehouse.common.backoff import Backoff
from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.failure_policy import FailurePolicy

Isolation = Literal["thread", "process"]

DEFAULT_BACKOFF = Backoff(base_seconds=0.2, longest_seconds=30.0)


@dataclass(frozen=True, kw_only=True)
class HandlerRules:
    topic: str
    """The source; its retry topics follow the same rules."""
    size: int = 5_000
    max_bytes: int = 16 << 20
    wait_seconds: float = 1.0
    concurrency: int = 8
    attempts: int = 3
    """How often a batch is tried before it is bisected."""
    backoff: Backoff = field(default=DEFAULT_BACKOFF)
    diverts: bool = False
    """Whether there is a failure policy. Without one a failing batch is retried until it succeeds."""
    stuck_seconds: float = 300.0
    adaptive: bool = False
    """Whether size and wait follow the handler, with `size` as the maximum and `wait_seconds` as the minimum."""
    target_seconds: float = 1.0
    """How long a handler should run if the size is adaptive."""

    @property
    def ahead(self) -> int:
        """How many batches are cut and planned at once, including the current one: more if they are small.

        Committing a plan takes Kafka some tens of milliseconds, in which a fast handler processes several batches.
        """
        return max(4, min(48, 30_000 // self.size))


@dataclass(frozen=True, kw_only=True)
class Subscription:
    rules: HandlerRules
    handler: Callable[[Batch], Any]
    is_async: bool = False
    isolation: Isolation = "thread"
    policy: FailurePolicy | None = None

    @property
    def retry_topics(self) -> tuple[str, ...]:
        """Topics through which failed messages come back."""
        return () if self.policy is None else self.policy.topics(self.rules.topic)

    def source_of(self, topic: str) -> str | None:
        """The source of a retry topic; None for the source itself."""
        return None if topic == self.rules.topic else self.rules.topic
