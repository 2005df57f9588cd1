"""Reads Kafka: the end offsets of a pipeline's topics, and the lag of consumer groups.

The readers keep their client, which the first call opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncehouse.config.pipeline import Kafka
from oncehouse.monitoring.background_probe import BackgroundProbe
from oncehouse.monitoring.unavailable import NoAnswer
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics

if TYPE_CHECKING:
    from oncehouse.messaging.consumer.group_lag import Groups, GroupStatus
    from oncehouse.messaging.settings import KafkaAddress

EndOffsets = dict[tuple[str, int], int]

WAIT_SECONDS = 5.0
"""How long a person waits for Kafka; its client takes much longer to give up."""


def ask_kafka(
    kafka: Kafka | None, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[EndOffsets | None, str | None]:
    """Kafka's end offsets, or why they are not known; neither for a pipeline without Kafka."""
    if kafka is None:
        return None, None
    answer = BackgroundProbe(EndOffsetReader(kafka), refresh_seconds=0.0).read(wait_seconds=wait_seconds)
    if not isinstance(answer, NoAnswer):
        return answer, None
    if answer.failed:
        return None, answer.why
    return None, f"Kafka at {kafka.bootstrap_servers} has not answered within {wait_seconds:g} s."


def read_ends(topics: KafkaTopics) -> EndOffsets:
    facts = topics.describe()
    places = [(topic, number) for topic, found in facts.items() for number in range(found.partitions)]
    return topics.latest(places)


class EndOffsetReader:
    def __init__(self, kafka: Kafka | None) -> None:
        self._kafka = kafka
        self._topics: KafkaTopics | None = None

    def __call__(self) -> EndOffsets:
        if self._kafka is None:
            return {}
        if self._topics is None:
            self._topics = KafkaTopics(self._kafka)
        return read_ends(self._topics)


class GroupReader:
    def __init__(self, groups: Iterable[str], kafka: KafkaAddress) -> None:
        self._names = tuple(groups)
        self._kafka = kafka
        self._groups: Groups | None = None

    def __call__(self) -> tuple[GroupStatus, ...]:
        from oncehouse.messaging.consumer.group_lag import Groups

        if self._groups is None:
            self._groups = Groups(
                self._names, bootstrap_servers=self._kafka.bootstrap_servers, options=self._kafka.options
            )
        return self._groups.read()
