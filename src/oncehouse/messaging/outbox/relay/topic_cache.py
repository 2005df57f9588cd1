"""Which topics exist, asked once per topic, so that a message for a missing topic is refused at once.

The producer itself would hold such a message back for half a minute, and all other messages of the claim with it. A
broker that creates topics on first use gets a moment for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, Producer

from oncehouse.common.kafka_client import TIMEOUT_SECONDS

_RETRY_SECONDS = (0.1, 0.4, 1.0)
_FORGET_SECONDS = 10.0
_PASSING = frozenset({KafkaError.LEADER_NOT_AVAILABLE})


class TopicCache:
    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._existing: set[str] = set()
        self._missing: dict[str, tuple[float, str]] = {}

    def find_missing(
        self, producer: Producer, topics: Iterable[str], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> dict[str, str]:
        """Why messages cannot be sent to these topics; existing ones are left out. Raises KafkaException."""
        missing: dict[str, str] = {}
        for topic in topics:
            if topic in self._existing:
                continue
            until, reason = self._missing.get(topic, (0.0, ""))
            if self._monotonic() >= until:
                reason = self._ask(producer, topic, timeout_seconds)
            if reason:
                missing[topic] = reason
        return missing

    def forget(self) -> None:
        """After a failure: a topic may have been deleted."""
        self._existing.clear()

    def _ask(self, producer: Producer, topic: str, timeout_seconds: float) -> str:
        for seconds in (*_RETRY_SECONDS, None):
            error = producer.list_topics(topic, timeout=timeout_seconds).topics[topic].error
            if error is None or error.code() in _PASSING:
                self._existing.add(topic)
                self._missing.pop(topic, None)
                return ""
            if seconds is not None:
                self._sleep(seconds)
        reason = f"topic {topic}: {error.str()}; create the topic or grant Write on it, then retry"
        self._missing[topic] = (self._monotonic() + _FORGET_SECONDS, reason)
        return reason
