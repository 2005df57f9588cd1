"""A batch consumer of Kafka: batches of one partition, in order, committed after success, repeatable after a crash.

`core` decides and does no I/O; `runner` acts for it with a `client` (Kafka, or the broker in memory) and `workers`
(threads, an event loop, processes). `consumer` is what users hold. Names are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehouse.messaging.consumer.batch import Batch
    from oncehouse.messaging.consumer.consumer import Consumer
    from oncehouse.messaging.consumer.health import Health, read_health
    from oncehouse.messaging.consumer.memory_broker import MemoryBroker
    from oncehouse.messaging.consumer.metrics import MemoryMetrics, Metrics

__all__ = ["Batch", "Consumer", "Health", "MemoryBroker", "MemoryMetrics", "Metrics", "read_health"]

_HOMES = {
    "Batch": "batch",
    "Consumer": "consumer",
    "Health": "health",
    "MemoryBroker": "memory_broker",
    "MemoryMetrics": "metrics",
    "Metrics": "metrics",
    "read_health": "health",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
