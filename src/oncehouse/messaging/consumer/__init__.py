"""The batch consumer of Kafka: batches of one partition in order, committed after success, repeatable after a crash.

Start reading at `consumer` (what users declare and run) and `state_machine` (every decision; does no I/O). `runner`
carries the decisions out with a `client` (Kafka's, or the broker in memory) and `workers` (threads, an event loop,
processes). Imports `oncehouse.messaging.retries` for failed messages. The public names load on first use.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

if TYPE_CHECKING:
    from oncehouse.messaging.clock import ManualClock
    from oncehouse.messaging.consumer.batch import Batch
    from oncehouse.messaging.consumer.consumer import Consumer
    from oncehouse.messaging.consumer.health import Health, read_health
    from oncehouse.messaging.consumer.memory_broker import MemoryBroker
    from oncehouse.messaging.consumer.metrics import MemoryMetrics, Metrics
    from oncehouse.messaging.consumer.time_report import TimeReport

__all__ = [
    "Batch",
    "Consumer",
    "Health",
    "ManualClock",
    "MemoryBroker",
    "MemoryMetrics",
    "Metrics",
    "TimeReport",
    "read_health",
]

_HOMES = {
    "Batch": "oncehouse.messaging.consumer.batch",
    "Consumer": "oncehouse.messaging.consumer.consumer",
    "Health": "oncehouse.messaging.consumer.health",
    "ManualClock": "oncehouse.messaging.clock",
    "MemoryBroker": "oncehouse.messaging.consumer.memory_broker",
    "MemoryMetrics": "oncehouse.messaging.consumer.metrics",
    "Metrics": "oncehouse.messaging.consumer.metrics",
    "TimeReport": "oncehouse.messaging.consumer.time_report",
    "read_health": "oncehouse.messaging.consumer.health",
}


__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="messaging")
