"""Whether Kafka can be read now, asked of any broker: it answers, and each partition of the topics has a leader."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import TopicMetadata

from oncehouse.common.kafka_client import describe_error
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.ingest.kafka_source import client_settings

_NO_BROKER = -1
_OPTIONS = {
    "enable.auto.commit": False,
    # A topic that was deleted must not come back because a client asks for it.
    "allow.auto.create.topics": False,
    # A broker that is back is noticed soon; by default the client waits for up to ten seconds.
    "reconnect.backoff.max.ms": 1000,
}


class KafkaProbe:
    """Keeps its client, which joins no group and fetches nothing."""

    def __init__(self, kafka: Kafka, *, group: str, timeout_seconds: float) -> None:
        self._topics = kafka.topics
        self._timeout_seconds = timeout_seconds
        try:
            self._client = Consumer({**client_settings(kafka), **_OPTIONS, "group.id": group})
        except KafkaException as error:
            raise ConfigurationError(f"source.kafka.options: {describe_error(error)}") from error

    def find_trouble(self) -> str | None:
        ends_at = time.monotonic() + self._timeout_seconds
        for topic in self._topics:
            try:
                left_seconds = max(0.1, ends_at - time.monotonic())
                known = self._client.list_topics(topic, timeout=left_seconds).topics[topic]
            except KafkaException as error:
                return describe_error(error)
            if (trouble := find_leaderless(known)) is not None:
                return trouble
        return None

    def close(self) -> None:
        self._client.close()


def find_leaderless(topic: TopicMetadata) -> str | None:
    """A topic that is not there has no partitions here; the stream says that it has gone."""
    without = [number for number, found in sorted(topic.partitions.items()) if found.leader == _NO_BROKER]
    if not without:
        return None
    return f"topic {topic.topic}: no leader for partition {', '.join(map(str, without))}"
