"""The metrics of a consumer: all names in one list, and the interface that receives them.

Tags are topic and partition where they apply. Pass a Consumer an object with these three methods that forwards the
values to your own system.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Final, Protocol

_log = logging.getLogger("oncehouse.consumer")

NAMES: Final[Mapping[str, str]] = {
    # Counters
    "records.fetched": "records that came from Kafka",
    "records.handled": "records of batches that their handler took",
    "records.put_aside": "records that went to the retry topics or the dead letters",
    "records.gone": "offsets that Kafka deleted before they were read",
    "batches.handled": "batches that their handler took",
    "batches.failed": "attempts that ended with an error, by kind",
    "batches.bisected": "batches cut in two to find the record that cannot be handled",
    "batches.cancelled": "batches given up because their partition left or the time to stop was up",
    "commits.done": "commits that Kafka acknowledged",
    "commits.failed": "commits that it refused or did not answer",
    "partitions.assigned": "partitions that came",
    "partitions.revoked": "partitions that were asked back",
    "partitions.lost": "partitions that were gone before we were asked",
    "partitions.stopped": "times that a partition stood still because of its handler or its dead letters",
    "handlers.stuck": "handlers found running too long",
    "client.errors": "errors that the Kafka client reported and recovers from by itself",
    # Timings, in seconds
    "handler.seconds": "one call of the handler",
    "poll.seconds": "one wait for records",
    # Gauges
    "lag": "offsets of a partition that are not done",
    "batch.size": "how many records the next batch of a partition may have",
    "handlers.running": "handlers under way",
}


class Metrics(Protocol):
    """May be called from several threads; must not block."""

    def increment(self, name: str, count: float = 1, **tags: str | int) -> None: ...
    def gauge(self, name: str, value: float, **tags: str | int) -> None: ...
    def timing(self, name: str, seconds: float, **tags: str | int) -> None: ...


class NoMetrics:
    def increment(self, name: str, count: float = 1, **tags: str | int) -> None:
        pass

    def gauge(self, name: str, value: float, **tags: str | int) -> None:
        pass

    def timing(self, name: str, seconds: float, **tags: str | int) -> None:
        pass


class GuardedMetrics:
    """The user's metrics, whose errors must not cost a partition: they are logged, and the consumer goes on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def increment(self, name: str, count: float = 1, **tags: str | int) -> None:
        with _logged(name):
            self._metrics.increment(name, count, **tags)

    def gauge(self, name: str, value: float, **tags: str | int) -> None:
        with _logged(name):
            self._metrics.gauge(name, value, **tags)

    def timing(self, name: str, seconds: float, **tags: str | int) -> None:
        with _logged(name):
            self._metrics.timing(name, seconds, **tags)


@contextmanager
def _logged(name: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever the user's code raises
        _log.exception("the metric %s could not be written", name)


class MemoryMetrics:
    """Keeps sums by name, for tests and small tools."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: dict[str, float] = defaultdict(float)
        self.gauges: dict[tuple[str, tuple[tuple[str, str | int], ...]], float] = {}
        self.timings: dict[str, list[float]] = defaultdict(list)

    def increment(self, name: str, count: float = 1, **tags: str | int) -> None:  # noqa: ARG002
        with self._lock:
            self.counts[name] += count

    def gauge(self, name: str, value: float, **tags: str | int) -> None:
        with self._lock:
            self.gauges[name, tuple(sorted(tags.items()))] = value

    def timing(self, name: str, seconds: float, **tags: str | int) -> None:  # noqa: ARG002
        with self._lock:
            self.timings[name].append(seconds)
