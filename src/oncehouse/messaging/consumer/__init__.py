"""The batch consumer of Kafka: batches of one partition in order, committed after success, repeatable after a crash.

Start reading at `consumer` (what users declare and run) and `state_machine` (every decision; does no I/O). `runner`
carries the decisions out with a `client` (Kafka's, or the broker in memory) and `workers` (threads, an event loop,
processes). Imports `oncehouse.messaging.retries` for failed messages. The public names load on first use.
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
