"""How large the records are that wait to be read: a sample of them, measured while a run starts.

Spark must know how many records an epoch may hold before it has read one. A sample that takes too long leaves the size
unknown, which is no error: the first epoch measures it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from oncehouse.config.pipeline import Kafka
from oncehouse.errors import OncehouseError
from oncehouse.pipeline.ingest.epoch_sizing import LEAST_RECORDS
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, Positions, client_settings, read_starting

_RECORDS = 200
_AT_ONCE = 10
_BYTES = 4 << 20
_PATIENCE_SECONDS = 5.0
_OPTIONS = {
    "group.id": "oncehouse-sizes",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    # No more is fetched than is measured.
    "fetch.max.bytes": _BYTES,
    "max.partition.fetch.bytes": _BYTES,
    "message.max.bytes": _BYTES,
    "receive.message.max.bytes": 2 * _BYTES,
    "queued.max.messages.kbytes": _BYTES >> 10,
}


class RecordSizes:
    """Measures on a thread of its own, from the moment it is created."""

    def __init__(self, topics: KafkaTopics, known_ids: Mapping[str, str], positions: Positions) -> None:
        """`known_ids` and `positions` as the ledger has them."""
        self._mean_bytes = 0.0
        self._thread = threading.Thread(
            target=self._measure_in_background,
            args=(topics, known_ids, positions),
            name="oncehouse-sizes",
            daemon=True,
        )
        self._thread.start()

    def mean_bytes(self) -> float:
        """Of a record with its key; 0 where nothing waits or Kafka did not answer."""
        self._thread.join(_PATIENCE_SECONDS)
        return self._mean_bytes

    def _measure_in_background(
        self, topics: KafkaTopics, known_ids: Mapping[str, str], positions: Positions
    ) -> None:
        with suppress(KafkaException, OncehouseError):
            _, starting = read_starting(topics, known_ids, positions)
            latest = topics.latest(starting)
            waiting = {place: at for place, at in starting.items() if at < latest[place]}
            # A few records are read whole whatever their size.
            if sum(latest[place] - at for place, at in waiting.items()) > LEAST_RECORDS:
                self._mean_bytes = _measure(topics.kafka, waiting)


def _measure(kafka: Kafka, starting: Positions) -> float:
    consumer = Consumer({**client_settings(kafka), **_OPTIONS})
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starting.items()])
        sizes = _sample_sizes(consumer)
    finally:
        consumer.close()
    return sum(sizes) / len(sizes) if sizes else 0.0


def _sample_sizes(consumer: Consumer) -> list[int]:
    """Few at once, so that large ones are not held together."""
    sizes: list[int] = []
    patience_seconds = _PATIENCE_SECONDS / 2
    while len(sizes) < _RECORDS and sum(sizes) < _BYTES:
        found = consumer.consume(num_messages=_AT_ONCE, timeout=patience_seconds)
        if not found:
            break
        sizes += [len(one.value() or b"") + len(one.key() or b"") for one in found if one.error() is None]
        patience_seconds = 0.1
    return sizes
