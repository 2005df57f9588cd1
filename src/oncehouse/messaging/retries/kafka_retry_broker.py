"""Kafka's implementation of `RetryBroker`: creates topics, writes messages, reads what a group has not committed.

Guarantee: the messages of a partition are written in order and without gaps (the idempotent producer fails rather than
skip one); `send` returns once all in-sync replicas have acknowledged all. Reads without joining the group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Lock
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.failure_policy import OutgoingMessage

SEND_SECONDS = 30.0
"""After this time without an acknowledgement a message counts as not written."""

_HEADER_MARGIN_BYTES = 64 << 10
"""What oncehouse's headers may add to a message of the largest size that its topic allows."""
_LEAST_RETENTION_MS = 7 * 86_400_000
_POLL_SECONDS = 0.05
_METADATA_SECONDS = 1.0
_READ_SECONDS = 30.0
_REPORT_SECONDS = 5.0
"""How long the delivery reports of purged messages may take."""
_REFUSED = frozenset({
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client's own codes begin with an underscore
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
})  # fmt: skip
_COORDINATOR_MOVING = frozenset({
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
})  # fmt: skip
_NOT_ALLOWED = frozenset({
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
})  # fmt: skip


class KafkaRetryBroker:
    def __init__(
        self, *, bootstrap_servers: str, group: str, options: Mapping[str, str | SecretStr] | None = None
    ) -> None:
        self._settings = client_settings(bootstrap_servers, options or {})
        self._servers = bootstrap_servers
        self._group = group
        self._admin = AdminClient(self._settings)
        self._producer: Producer | None = None
        self._lock = Lock()

    def count_partitions(self, topic: str) -> int | None:
        found = self._wait_for(topic, _METADATA_SECONDS)
        return None if found is None else len(found.partitions)

    def create(self, topic: str, *, partitions: int, source: str) -> None:
        described = self._describe(source)
        replicas = len(described.partitions[0].replicas) if described else 1
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replicas,
            config={
                "cleanup.policy": "delete",
                **self._copy_source_settings(source),
                **_make_topic_config(topic),
            },
        )
        try:
            self._admin.create_topics([new], operation_timeout=TIMEOUT_SECONDS)[topic].result()
        except KafkaException as error:
            # Another consumer of the group may have been first.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise wrap_creation_error(error, topic, partitions) from error
        if self._wait_for(topic, TIMEOUT_SECONDS) is None:
            raise TransientError(f"the topic {topic} was created, but is not there yet; start again")

    def send(self, outgoing: Sequence[OutgoingMessage]) -> list[int]:
        producer = self._open_producer()
        offsets: dict[int, int] = {}
        errors: dict[int, KafkaError] = {}

        def record_report(at: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets[at] = message.offset() or 0
            else:
                errors[at] = error

        sent = 0
        try:
            for at, placement in enumerate(outgoing):
                if errors:
                    break
                _produce(producer, placement, partial(record_report, at))
                sent = at + 1
        except KafkaException as error:
            errors[sent] = error.args[0]
        deadline = time.monotonic() + SEND_SECONDS
        while len(offsets) + len(errors.keys() & range(sent)) < sent:
            _serve(producer, _POLL_SECONDS)
            if time.monotonic() > deadline:
                # All at once: purging one message alone would leave a gap before the next.
                producer.purge()
            if time.monotonic() > deadline + _REPORT_SECONDS:
                # If the client raises a fatal error in place of a delivery report, that report never comes.
                lost = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - the client's own code
                errors |= {at: lost for at in range(sent) if at not in offsets and at not in errors}
        if errors:
            self._drop_producer(producer)
            first = min(errors)
            raise wrap_send_error(errors[first], outgoing[first])
        return [offsets[at] for at in range(len(outgoing))]

    def read_uncommitted(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        where = f"{topic}/{partition}"
        with self._reader(where) as reader:
            here = TopicPartition(topic, partition)
            committed = _ask_committed(reader, here)
            first, end = reader.get_watermark_offsets(here, timeout=TIMEOUT_SECONDS)
            start = max(first, committed.offset)
            if start >= end:
                return
            here.offset = start if committed.offset >= 0 else OFFSET_BEGINNING
            if here.offset == committed.offset and committed.leader_epoch is not None:
                # With the leader epoch the client goes back to where the log was truncated, if it was.
                here = TopicPartition(topic, partition, start, leader_epoch=committed.leader_epoch)
            reader.assign([here])
            for message in read_to_end(reader, where):
                yield message.offset() or 0, message.key()

    def close(self) -> None:
        with self._lock:
            if self._producer is not None:
                self._producer.flush(SEND_SECONDS)
                self._producer = None

    def _open_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer({
                    "linger.ms": 5,
                    **self._settings,
                    "acks": "all",
                    "enable.idempotence": True,
                    # Fail rather than write a later message of a key where an earlier one is missing.
                    "enable.gapless.guarantee": True,
                    "message.timeout.ms": 0,
                    # The topic's limit applies.
                    "message.max.bytes": 1_000_000_000,
                })  # fmt: skip
            return self._producer

    def _drop_producer(self, producer: Producer) -> None:
        """After a gap the client accepts nothing more; the next call opens another."""
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def _wait_for(self, topic: str, seconds: float) -> Any:
        """The topic's description once it is known; brokers learn of a new topic a little later than its creator."""
        deadline = time.monotonic() + seconds
        while (found := self._describe(topic)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return found

    def _describe(self, topic: str) -> Any:
        try:
            found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
            return found[topic].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code in _NOT_ALLOWED:
                raise ConfigurationError(
                    f"Kafka refuses to describe the topic {topic}: {describe_error(error)}. Grant Describe on it"
                ) from error
            raise TransientError(
                f"Kafka at {self._servers} did not answer for the topic {topic}: {describe_error(error)}; check the "
                "address and that the brokers run"
            ) from error

    def _copy_source_settings(self, source: str) -> dict[str, str]:
        """As durable as the source, with a margin for oncehouse's headers; empty if the source cannot be described."""
        resource = ConfigResource(ResourceType.TOPIC, source)
        try:
            found = self._admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[
                resource
            ].result()
        except KafkaException:
            return {}
        return copy_settings({name: str(entry.value) for name, entry in found.items()})

    @contextmanager
    def _reader(self, where: str) -> Iterator[Consumer]:
        consumer = Consumer({
            **self._settings,
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        with closing(consumer):
            try:
                yield consumer
            except KafkaException as error:
                raise TransientError(f"{where} could not be read: {describe_error(error)}") from error


def read_committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """The group's committed offsets. Raises KafkaException for a partition that could not be read."""
    found: list[TopicPartition] = consumer.committed(partitions, timeout=TIMEOUT_SECONDS)
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


def _ask_committed(reader: Consumer, here: TopicPartition) -> TopicPartition:
    """The group's committed offset; waits while the coordinator is being elected."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return read_committed(reader, [here])[0]
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_MOVING or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def read_to_end(reader: Consumer, where: str) -> Iterator[Message]:
    """Messages of the assigned partitions up to their current ends."""
    open_ends = {(at.topic, at.partition) for at in reader.assignment()}
    while open_ends:
        message = reader.poll(_READ_SECONDS)
        if message is None:
            raise TransientError(f"{where}: Kafka sent nothing for {_READ_SECONDS:g} s; try again")
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own code
            open_ends.discard((message.topic(), message.partition()))
        else:
            raise KafkaException(error)


def wrap_creation_error(
    error: KafkaException, topic: str, partitions: int
) -> ConfigurationError | TransientError:
    """For a topic that could not be created."""
    text = describe_error(error)
    if error.args[0].code() in _NOT_ALLOWED:
        return ConfigurationError(
            f"Kafka refuses to create the topic {topic}: {text}. Grant Create on it, or run: "
            f"kafka-topics.sh --create --topic {topic} --partitions {partitions}"
        )
    return TransientError(f"the topic {topic} could not be created: {text}")


def wrap_send_error(error: KafkaError, placement: OutgoingMessage) -> TransientError | PermanentError:
    where = f"{placement.topic}/{placement.partition}"
    if error.code() in _REFUSED:
        return PermanentError(
            f"{where} refuses a failed message: {error.str()}. Nothing was committed; correct the topic "
            "(its partitions, its max.message.bytes, the permissions on it) and start the consumer again"
        )
    return TransientError(f"{where} has not acknowledged a failed message: {error.str()}")


def copy_settings(source: Mapping[str, str]) -> dict[str, str]:
    """The settings of a source that its retry topics take over."""
    copied = {}
    if (largest := source.get("max.message.bytes", "")).isdecimal():
        copied["max.message.bytes"] = str(int(largest) + _HEADER_MARGIN_BYTES)
    if (replicas := source.get("min.insync.replicas", "")).isdecimal():
        copied["min.insync.replicas"] = replicas
    if kept := source.get("retention.ms", ""):
        # A source with a short retention must not shorten the wait for the next attempt.
        copied["retention.ms"] = kept if kept == "-1" else str(max(int(kept), _LEAST_RETENTION_MS))
        copied["retention.bytes"] = "-1"
    return copied


def _make_topic_config(topic: str) -> dict[str, str]:
    # Dead letters stay until they are purged, whatever the brokers' default is.
    return {"retention.ms": "-1", "retention.bytes": "-1"} if topic.endswith(".dlq") else {}


def _produce(producer: Producer, placement: OutgoingMessage, on_delivery: Any) -> None:
    while True:
        try:
            producer.produce(
                placement.topic,
                value=placement.value,
                key=placement.key,
                partition=placement.partition,
                headers=list(placement.headers),
                on_delivery=on_delivery,
            )
        except BufferError:
            _serve(producer, _POLL_SECONDS)
        else:
            _serve(producer, 0)
            return


def _serve(producer: Producer, seconds: float) -> None:
    # A fatal error is raised here once; the next calls report each message that it affected.
    with suppress(KafkaException, SystemError):
        producer.poll(seconds)
