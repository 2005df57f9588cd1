"""The brokers as an Aside needs them: topics made, messages written and acknowledged, what a group has not settled.

Holds: messages of a partition are written in order and without gaps (an idempotent producer that rather ends than
leave one out); `send` returns when all are acknowledged by all in-sync replicas. Reads without joining the group.
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
from oncehouse.messaging.failure_policy import Placement

SEND_SECONDS = 30.0
"""After this long without an acknowledgement a message counts as not written."""

_HEADER_ROOM_BYTES = 64 << 10
"""What our headers may add to a message that was as large as its topic allows."""
_LEAST_RETENTION_MS = 7 * 86_400_000
_POLL_SECONDS = 0.05
_NEWS_SECONDS = 1.0
_READ_SECONDS = 30.0
_REPORT_SECONDS = 5.0
"""How long the reports of what was given up may take."""
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
_UNSETTLED_COORDINATOR = frozenset({
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
})  # fmt: skip
_NOT_ALLOWED = frozenset({
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
})  # fmt: skip


class KafkaShelf:
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
        found = self._wait_for(topic, _NEWS_SECONDS)
        return None if found is None else len(found.partitions)

    def create(self, topic: str, *, partitions: int, source: str) -> None:
        described = self._describe(source)
        replicas = len(described.partitions[0].replicas) if described else 1
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replicas,
            config={"cleanup.policy": "delete", **self._as_the_source(source), **_keeping(topic)},
        )
        try:
            self._admin.create_topics([new], operation_timeout=TIMEOUT_SECONDS)[topic].result()
        except KafkaException as error:
            # Another consumer of the group may have been first.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise judge_creation(error, topic, partitions) from error
        if self._wait_for(topic, TIMEOUT_SECONDS) is None:
            raise TransientError(f"the topic {topic} was created, but is not there yet; start again")

    def send(self, placements: Sequence[Placement]) -> list[int]:
        producer = self._open_producer()
        offsets: dict[int, int] = {}
        errors: dict[int, KafkaError] = {}

        def hear(at: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets[at] = message.offset() or 0
            else:
                errors[at] = error

        sent = 0
        try:
            for at, placement in enumerate(placements):
                if errors:
                    break
                _produce(producer, placement, partial(hear, at))
                sent = at + 1
        except KafkaException as error:
            errors[sent] = error.args[0]
        deadline = time.monotonic() + SEND_SECONDS
        while len(offsets) + len(errors.keys() & range(sent)) < sent:
            _serve(producer, _POLL_SECONDS)
            if time.monotonic() > deadline:
                # All at once: one that were given up alone would leave a gap before the next.
                producer.purge()
            if time.monotonic() > deadline + _REPORT_SECONDS:
                # The client may raise a fatal error over the head of a report, which then never comes.
                lost = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - the client's own code
                errors |= {at: lost for at in range(sent) if at not in offsets and at not in errors}
        if errors:
            self._drop_producer(producer)
            first = min(errors)
            raise judge_sending(errors[first], placements[first])
        return [offsets[at] for at in range(len(placements))]

    def unsettled(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
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
                # With the leader epoch the client goes back to where the log was cut, if it was.
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
                    # Rather end than write a later message of a key where an earlier one is missing.
                    "enable.gapless.guarantee": True,
                    "message.timeout.ms": 0,
                    # How large a message may be is the topic's to say.
                    "message.max.bytes": 1_000_000_000,
                })  # fmt: skip
            return self._producer

    def _drop_producer(self, producer: Producer) -> None:
        """After a gap the client takes nothing more; the next call opens another."""
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def _wait_for(self, topic: str, seconds: float) -> Any:
        """The topic once it is known; a broker hears of a new one a little after its creator."""
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
                    f"Kafka does not let us look at the topic {topic}: {describe_error(error)}. Grant Describe on it"
                ) from error
            raise TransientError(
                f"Kafka at {self._servers} did not answer for the topic {topic}: {describe_error(error)}; check the "
                "address and that the brokers run"
            ) from error

    def _as_the_source(self, source: str) -> dict[str, str]:
        """As durable as the source, with room for its largest message and our headers; as far as it may be asked."""
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
    """What the group has committed. Raises KafkaException where a partition cannot be told: that is not "nothing"."""
    found: list[TopicPartition] = consumer.committed(partitions, timeout=TIMEOUT_SECONDS)
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


def _ask_committed(reader: Consumer, here: TopicPartition) -> TopicPartition:
    """What the group has committed; a coordinator that is still being found is waited for."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return read_committed(reader, [here])[0]
        except KafkaException as error:
            if error.args[0].code() not in _UNSETTLED_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def read_to_end(reader: Consumer, where: str) -> Iterator[Message]:
    """Messages of the assigned partitions until each has come to its end as it is now."""
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


def judge_creation(error: KafkaException, topic: str, partitions: int) -> ConfigurationError | TransientError:
    """What to tell when a topic could not be made."""
    said = describe_error(error)
    if error.args[0].code() in _NOT_ALLOWED:
        return ConfigurationError(
            f"Kafka does not let us create the topic {topic}: {said}. Grant Create on it, or let somebody run: "
            f"kafka-topics.sh --create --topic {topic} --partitions {partitions}"
        )
    return TransientError(f"the topic {topic} could not be created: {said}")


def judge_sending(error: KafkaError, placement: Placement) -> TransientError | PermanentError:
    where = f"{placement.topic}/{placement.partition}"
    if error.code() in _REFUSED:
        return PermanentError(
            f"{where} does not take a message that has to be put aside: {error.str()}. Nothing was committed; put the "
            "topic right (its partitions, its max.message.bytes, the rights on it) and start the consumer again"
        )
    return TransientError(f"{where} has not acknowledged a message that has to be put aside: {error.str()}")


def copy_settings(source: Mapping[str, str]) -> dict[str, str]:
    """From the settings of a source to those of the topics beside it."""
    copied = {}
    if (largest := source.get("max.message.bytes", "")).isdecimal():
        copied["max.message.bytes"] = str(int(largest) + _HEADER_ROOM_BYTES)
    if (replicas := source.get("min.insync.replicas", "")).isdecimal():
        copied["min.insync.replicas"] = replicas
    if kept := source.get("retention.ms", ""):
        # A source that forgets fast says nothing of how long a message may wait for its next attempt.
        copied["retention.ms"] = kept if kept == "-1" else str(max(int(kept), _LEAST_RETENTION_MS))
        copied["retention.bytes"] = "-1"
    return copied


def _keeping(topic: str) -> dict[str, str]:
    # Dead letters stay until somebody purges them, whatever the brokers' default is.
    return {"retention.ms": "-1", "retention.bytes": "-1"} if topic.endswith(".dlq") else {}


def _produce(producer: Producer, placement: Placement, hear: Any) -> None:
    while True:
        try:
            producer.produce(
                placement.topic,
                value=placement.value,
                key=placement.key,
                partition=placement.partition,
                headers=list(placement.headers),
                on_delivery=hear,
            )
        except BufferError:
            _serve(producer, _POLL_SECONDS)
        else:
            _serve(producer, 0)
            return


def _serve(producer: Producer, seconds: float) -> None:
    # A fatal error is raised here once; each message that it hit is reported with its own by the next calls.
    with suppress(KafkaException, SystemError):
        producer.poll(seconds)
