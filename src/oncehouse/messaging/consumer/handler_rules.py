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
    """The source; retry topics that belong to it follow the same rules."""
    size: int = 5_000
    max_bytes: int = 16 << 20
    wait_seconds: float = 1.0
    concurrency: int = 8
    attempts: int = 3
    """How often a batch is tried where it stands before it is bisected."""
    backoff: Backoff = field(default=DEFAULT_BACKOFF)
    diverts: bool = False
    """There is a place for messages that the handler cannot take. Without one a batch is retried until it passes."""
    stuck_seconds: float = 300.0
    adaptive: bool = False
    """`size` and `wait_seconds` are where the size ends and the wait begins; both follow the handler."""
    target_seconds: float = 1.0
    """How long a handler should run, where the size is adaptive."""

    @property
    def ahead(self) -> int:
        """How many batches are cut and planned at once, the one under way included: more when they are small.

        A plan takes Kafka some tens of milliseconds; in that time fast handlers take some batches.
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
        """Topics through which comes back what was put aside."""
        return () if self.policy is None else self.policy.topics(self.rules.topic)

    def source_of(self, topic: str) -> str | None:
        """The source of a retry topic, whose consumer alone writes to it; None for the source itself."""
        return None if topic == self.rules.topic else self.rules.topic
