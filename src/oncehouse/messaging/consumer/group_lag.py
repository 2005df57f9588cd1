"""Consumer groups as Kafka reports them: members, and the lag of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import ConfigurationError, TransientError

_ANSWER_SECONDS = TIMEOUT_SECONDS + 5


@dataclass(frozen=True, kw_only=True, order=True)
class GroupPartition:
    topic: str
    partition: int
    committed: int
    lag: int


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    group: str
    state: str
    """As Kafka names it: stable, empty, dead, …"""
    members: int
    partitions: tuple[GroupPartition, ...]
    """Those with a committed offset."""

    @property
    def lag(self) -> int:
        return sum(found.lag for found in self.partitions)


class Groups:
    """Reads these groups from the brokers. One client, kept open."""

    def __init__(
        self, groups: Iterable[str], *, bootstrap_servers: str, options: Mapping[str, str | SecretStr]
    ) -> None:
        self._groups = tuple(groups)
        self._where = bootstrap_servers
        try:
            self._admin = AdminClient(client_settings(bootstrap_servers, options))
        except KafkaException as error:
            raise ConfigurationError(f"kafka.options: {describe_error(error)}") from error

    def read(self) -> tuple[GroupStatus, ...]:
        """Raises TransientError if the brokers do not answer or refuse."""
        try:
            return tuple(self._read_group(group) for group in self._groups)
        except KafkaException as error:
            raise TransientError(
                f"Kafka at {self._where} does not list the consumer groups ({describe_error(error)}). Check that "
                "the broker is up, kafka.bootstrap_servers, and the right to Describe the groups."
            ) from error

    def _read_group(self, group: str) -> GroupStatus:
        described = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)
        listed = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_SECONDS
        )
        description = described[group].result(timeout=_ANSWER_SECONDS)
        places = listed[group].result(timeout=_ANSWER_SECONDS).topic_partitions or []
        committed = [place for place in places if place.offset >= 0]
        ends = self._read_ends(committed)
        return GroupStatus(
            group=group,
            state=description.state.name.lower().replace("_", " "),
            members=len(description.members),
            partitions=tuple(
                sorted(
                    GroupPartition(
                        topic=place.topic,
                        partition=place.partition,
                        committed=place.offset,
                        lag=max(0, ends[place.topic, place.partition] - place.offset),
                    )
                    for place in committed
                )
            ),
        )

    def _read_ends(self, places: Iterable[TopicPartition]) -> dict[tuple[str, int], int]:
        offset_specs = {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in places}
        if not offset_specs:
            return {}
        futures = self._admin.list_offsets(offset_specs, request_timeout=TIMEOUT_SECONDS)
        return {
            (place.topic, place.partition): future.result(timeout=_ANSWER_SECONDS).offset
            for place, future in futures.items()
        }
