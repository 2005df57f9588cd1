"""A dead-letter topic in Kafka: read it from its beginning, replay from it, purge it.

Guarantee: a dead letter is replayed once, however often the command is killed or repeated. The message and its replay
mark are written in one transaction, and a second replay of the same topic fences the first. Consumers of the target see
such messages once if they read only committed ones, which is librdkafka's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from oncehouse.common.kafka_client import TIMEOUT_SECONDS, client_settings, describe_error
from oncehouse.errors import ConfigurationError, FencedError, OncehouseError, PermanentError, TransientError
from oncehouse.messaging.message import ORIGIN, ORIGIN_TIME, Headers, Message
from oncehouse.messaging.retries.dead_letters import (
    DeadLetterSelection,
    ReplayMarks,
    TopicDeadLetter,
    collect_marks,
    is_replay_mark,
    is_replayed,
    select_dead_letters,
)
from oncehouse.messaging.retries.kafka_retry_broker import read_to_end
from oncehouse.messaging.retries.retry_routing import REPLAYED, own_headers

_DEAD_LETTERS_PER_TRANSACTION = 200
_TRANSACTION_SECONDS = 30.0
"""How long a killed replay can block readers of the target before Kafka aborts its transaction."""
_COMMIT_SECONDS = 60.0
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001 - the client's own


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    sent: int = 0
    known: int = 0
    """Dead letters that had been replayed before."""
    strangers: int = 0
    """Dead letters without an origin, or whose origin is not this topic's source."""


class DeadLetterStore:
    def __init__(
        self, topic: str, *, bootstrap_servers: str, options: Mapping[str, str | SecretStr] | None = None
    ) -> None:
        self.topic = topic
        self._servers = bootstrap_servers
        self._settings = client_settings(bootstrap_servers, options or {})
        self._admin = AdminClient(self._settings)

    def read(self) -> Iterator[Message]:
        """Every message that the topic has now, replay marks included, each partition in order."""
        starts = [
            TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in range(self._count(self.topic))
        ]
        with self._reader() as reader:
            reader.assign(starts)
            yield from map(_as_message, read_to_end(reader, self.topic))

    def read_marks(self) -> ReplayMarks:
        return collect_marks(self.read())

    def find(self, partition: int, offset: int) -> TopicDeadLetter | None:
        if partition >= self._count(self.topic):
            return None
        with self._reader() as reader:
            here = TopicPartition(self.topic, partition, offset)
            first, end = reader.get_watermark_offsets(here, timeout=TIMEOUT_SECONDS)
            if not first <= offset < end:
                return None
            reader.assign([here])
            message = next((_as_message(raw) for raw in read_to_end(reader, self.topic)), None)
        if message is None or message.offset != offset or is_replay_mark(message):
            return None
        return TopicDeadLetter(message=message)

    def replay(self, selection: DeadLetterSelection, *, to: str | None = None) -> ReplayResult:
        """Send the selected dead letters that were not replayed yet, to their origin or to the topic `to`."""
        partitions = {to: self._count(to)} if to is not None else {}
        with self._transactions() as producer:
            marks = self.read_marks()
            result = ReplayResult()
            selected = select_dead_letters(self.read(), selection)
            while chunk := list(islice(selected, _DEAD_LETTERS_PER_TRANSACTION)):
                fresh = [dead_letter for dead_letter in chunk if not is_replayed(dead_letter, marks)]
                unroutable = [
                    dead_letter
                    for dead_letter in fresh
                    if to is None and not self._came_from_source(dead_letter)
                ]
                sent = [dead_letter for dead_letter in fresh if dead_letter not in unroutable]
                for target in (
                    {dead_letter.origin.topic for dead_letter in sent if dead_letter.origin}
                    if to is None
                    else ()
                ):
                    partitions.setdefault(target, self._count(target))
                if sent:
                    self._send(producer, sent, to, partitions)
                result = ReplayResult(
                    sent=result.sent + len(sent),
                    known=result.known + len(chunk) - len(fresh),
                    strangers=result.strangers + len(unroutable),
                )
        return result

    def delete(self, ends: Mapping[int, int]) -> None:
        """Delete the records before these offsets, by partition."""
        places = [TopicPartition(self.topic, number, offset) for number, offset in ends.items()]
        try:
            for answer in self._admin.delete_records(places, request_timeout=TIMEOUT_SECONDS).values():
                answer.result()
        except KafkaException as error:
            raise _wrap_error(error, f"{self.topic} could not be purged") from error

    def _came_from_source(self, dead_letter: TopicDeadLetter) -> bool:
        """A forged header must not send a replay to a topic that is not the source of these dead letters."""
        return dead_letter.origin is not None and self.topic.startswith(f"{dead_letter.origin.topic}.")

    def _send(
        self,
        producer: Producer,
        dead_letters: list[TopicDeadLetter],
        to: str | None,
        partitions: Mapping[str, int],
    ) -> None:
        producer.begin_transaction()
        for dead_letter in dead_letters:
            topic, partition = _target(dead_letter, to, partitions)
            _produce(
                producer,
                topic,
                partition,
                dead_letter.message.key,
                dead_letter.message.value,
                _headers(dead_letter),
            )
        marked: dict[int, list[int]] = {}
        for dead_letter in dead_letters:
            marked.setdefault(dead_letter.message.partition, []).append(dead_letter.message.offset)
        for partition, offsets in marked.items():
            named = ",".join(map(str, offsets)).encode()
            _produce(producer, self.topic, partition, None, None, ((REPLAYED, named),))
        producer.commit_transaction(_COMMIT_SECONDS)

    @contextmanager
    def _transactions(self) -> Iterator[Producer]:
        producer = Producer({
            **self._settings,
            "transactional.id": f"oncehouse-dlq-{self.topic}",
            "transaction.timeout.ms": int(_TRANSACTION_SECONDS * 1000),
            "message.max.bytes": 1_000_000_000,
            # The partition that Kafka's own clients would choose for the key.
            "partitioner": "murmur2_random",
        })  # fmt: skip
        try:
            # Aborts the transaction of a killed replay before the marks are read.
            producer.init_transactions(_COMMIT_SECONDS)
            yield producer
        except KafkaException as error:
            with suppress(KafkaException):
                producer.abort_transaction(TIMEOUT_SECONDS)
            raise _wrap_error(error, f"the replay of {self.topic} was interrupted") from error

    def _count(self, topic: str) -> int:
        try:
            found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
            return len(found[topic].result().partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConfigurationError(self._describe_missing(topic)) from error
            raise _wrap_error(error, f"{topic} at {self._servers} could not be described") from error

    def _describe_missing(self, topic: str) -> str:
        error = f"there is no topic {topic} at {self._servers}"
        if topic != self.topic:
            return f"{error}; create it first"
        return (
            f"{error}; a consumer with RetryTopics or DeadLetterTopic creates it when it starts. If the topic has "
            "another name, give that name, with --named if it does not end in .dlq"
        )

    @contextmanager
    def _reader(self) -> Iterator[Consumer]:
        consumer = Consumer({
            **self._settings,
            # A consumer must name a group; nothing is committed to this one.
            "group.id": "oncehouse-dlq",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        })  # fmt: skip
        with closing(consumer):
            try:
                yield consumer
            except KafkaException as error:
                raise _wrap_error(error, f"{self.topic} could not be read") from error


def _target(dead_letter: TopicDeadLetter, to: str | None, partitions: Mapping[str, int]) -> tuple[str, int]:
    if to is not None or dead_letter.origin is None:
        return to or "", -1
    is_routable = dead_letter.origin.partition < partitions[dead_letter.origin.topic]
    return dead_letter.origin.topic, dead_letter.origin.partition if is_routable else -1


def _headers(dead_letter: TopicDeadLetter) -> Headers:
    """Its own headers and its first position, by which an inbox recognizes a repeat."""
    kept = ((name, dead_letter.message.header(name)) for name in (ORIGIN, ORIGIN_TIME))
    return own_headers(dead_letter.message) + tuple(
        (name, value) for name, value in kept if value is not None
    )


def _produce(
    producer: Producer, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    while True:
        try:
            producer.produce(topic, value=value, key=key, partition=partition, headers=list(headers))
        except BufferError:
            producer.poll(0.1)
        else:
            return


def _as_message(raw: RawMessage) -> Message:
    headers: Iterable[Any] = raw.headers() or ()
    kind, milliseconds = raw.timestamp()
    return Message(
        topic=raw.topic() or "",
        partition=raw.partition() or 0,
        offset=raw.offset() or 0,
        key=_as_bytes(raw.key()),
        value=_as_bytes(raw.value()),
        headers=tuple(headers),
        timestamp_ms=milliseconds if kind else None,
    )


def _as_bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _wrap_error(error: KafkaException, what: str) -> OncehouseError:
    kafka_error, text = error.args[0], describe_error(error)
    if kafka_error.code() in _FENCED:
        return FencedError(f"{what}: another replay of the same topic has started since; let it finish")
    if kafka_error.code() in {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }:
        return ConfigurationError(f"{what}: {text}. Grant the user the missing permission")
    if kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return PermanentError(f"{what}: {text}. Raise max.message.bytes of the target")
    return TransientError(
        f"{what}: {text}. Check kafka.bootstrap_servers and that the brokers run, then try again: completed work is "
        "not repeated"
    )
