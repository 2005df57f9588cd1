"""Which topics Kafka has: asked once a topic, so that a message for one that is not there is refused at once.

The producer itself would hold such a message back for half a minute, and every other message of the claim with it. A
broker that makes topics when they are first named is given a moment for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, Producer

from oncehouse.common.kafka_client import TIMEOUT_SECONDS

_ASK_AGAIN_SECONDS = (0.1, 0.4, 1.0)
_FORGET_SECONDS = 10.0
_PASSING = frozenset({KafkaError.LEADER_NOT_AVAILABLE})


class KnownTopics:
    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._there: set[str] = set()
        self._missing: dict[str, tuple[float, str]] = {}

    def find_missing(
        self, producer: Producer, topics: Iterable[str], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> dict[str, str]:
        """Why messages cannot go to these topics; nothing for those that are there. Raises KafkaException."""
        missing: dict[str, str] = {}
        for topic in topics:
            if topic in self._there:
                continue
            until, reason = self._missing.get(topic, (0.0, ""))
            if self._monotonic() >= until:
                reason = self._ask(producer, topic, timeout_seconds)
            if reason:
                missing[topic] = reason
        return missing

    def forget(self) -> None:
        """After a failure: a topic may have been deleted."""
        self._there.clear()

    def _ask(self, producer: Producer, topic: str, timeout_seconds: float) -> str:
        for seconds in (*_ASK_AGAIN_SECONDS, None):
            error = producer.list_topics(topic, timeout=timeout_seconds).topics[topic].error
            if error is None or error.code() in _PASSING:
                self._there.add(topic)
                self._missing.pop(topic, None)
                return ""
            if seconds is not None:
                self._sleep(seconds)
        reason = f"topic {topic}: {error.str()}; make the topic or let us write to it, then retry"
        self._missing[topic] = (self._monotonic() + _FORGET_SECONDS, reason)
        return reason
