"""One handler and what it was declared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.handler_rules import Rules
from oncehouse.messaging.failure_policy import Aside

Isolation = Literal["thread", "process"]


@dataclass(frozen=True, kw_only=True)
class Subscription:
    rules: Rules
    handler: Callable[[Batch], Any]
    is_async: bool = False
    isolation: Isolation = "thread"
    aside: Aside | None = None

    @property
    def beside(self) -> tuple[str, ...]:
        """Topics through which comes back what was put aside."""
        return () if self.aside is None else self.aside.topics(self.rules.topic)

    def source_of(self, topic: str) -> str | None:
        """The source of a retry topic, whose consumer alone writes to it; None for the source itself."""
        return None if topic == self.rules.topic else self.rules.topic
