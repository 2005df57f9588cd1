"""A dead-letter topic in Kafka: read from its beginning, replayed from, purged.

Holds: a letter is replayed once, however often the command is killed or repeated: the message and the mark that it was
replayed are one transaction, and a second replay of the same topic shuts out the first. Readers of the target see such
messages once if they read committed ones only, as librdkafka does by itself.
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
    Choice,
    Letter,
    Marks,
    collect_marks,
    is_mark,
    is_replayed,
    pick_letters,
)
from oncehouse.messaging.retries.kafka_retry_broker import read_to_end
from oncehouse.messaging.retries.retry_routing import REPLAYED, own_headers

_LETTERS_A_TRANSACTION = 200
_TRANSACTION_SECONDS = 30.0
"""How long a killed replay may hold up readers of the target before Kafka ends its transaction."""
_COMMIT_SECONDS = 60.0
_SHUT_OUT = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001 - the client's own


@dataclass(frozen=True, kw_only=True)
class Replayed:
    sent: int = 0
    known: int = 0
    """Letters that were replayed before."""
    strangers: int = 0
    """Letters that do not say which topic they came from, or name one that is not this topic's source."""


class LetterTopic:
    def __init__(
        self, topic: str, *, bootstrap_servers: str, options: Mapping[str, str | SecretStr] | None = None
    ) -> None:
        self.topic = topic
        self._servers = bootstrap_servers
        self._settings = client_settings(bootstrap_servers, options or {})
        self._admin = AdminClient(self._settings)

    def read(self) -> Iterator[Message]:
        """Every message of the topic as it is now, marks included, each partition in its order."""
        starts = [
            TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in range(self._count(self.topic))
        ]
        with self._reader() as reader:
            reader.assign(starts)
            yield from map(_as_message, read_to_end(reader, self.topic))

    def read_marks(self) -> Marks:
        return collect_marks(self.read())

    def find(self, partition: int, offset: int) -> Letter | None:
        if partition >= self._count(self.topic):
            return None
        with self._reader() as reader:
            here = TopicPartition(self.topic, partition, offset)
            first, end = reader.get_watermark_offsets(here, timeout=TIMEOUT_SECONDS)
            if not first <= offset < end:
                return None
            reader.assign([here])
            message = next((_as_message(raw) for raw in read_to_end(reader, self.topic)), None)
        if message is None or message.offset != offset or is_mark(message):
            return None
        return Letter(message=message)

    def replay(self, choice: Choice, *, to: str | None = None) -> Replayed:
        """Send the letters that are meant and were not replayed before, to where they came from or to one topic."""
        partitions = {to: self._count(to)} if to is not None else {}
        with self._transactions() as producer:
            marks = self.read_marks()
            done = Replayed()
            letters = pick_letters(self.read(), choice)
            while chunk := list(islice(letters, _LETTERS_A_TRANSACTION)):
                fresh = [letter for letter in chunk if not is_replayed(letter, marks)]
                homeless = [letter for letter in fresh if to is None and not self._came_from_source(letter)]
                sent = [letter for letter in fresh if letter not in homeless]
                for target in {letter.origin.topic for letter in sent if letter.origin} if to is None else ():
                    partitions.setdefault(target, self._count(target))
                if sent:
                    self._send(producer, sent, to, partitions)
                done = Replayed(
                    sent=done.sent + len(sent),
                    known=done.known + len(chunk) - len(fresh),
                    strangers=done.strangers + len(homeless),
                )
        return done

    def delete(self, ends: Mapping[int, int]) -> None:
        """Delete what stands before these offsets, by partition."""
        asked = [TopicPartition(self.topic, number, offset) for number, offset in ends.items()]
        try:
            for answer in self._admin.delete_records(asked, request_timeout=TIMEOUT_SECONDS).values():
                answer.result()
        except KafkaException as error:
            raise _judge(error, f"{self.topic} could not be purged") from error

    def _came_from_source(self, letter: Letter) -> bool:
        """A forged header must not lead a replay into a topic that these dead letters have nothing to do with."""
        return letter.origin is not None and self.topic.startswith(f"{letter.origin.topic}.")

    def _send(
        self, producer: Producer, letters: list[Letter], to: str | None, partitions: Mapping[str, int]
    ) -> None:
        producer.begin_transaction()
        for letter in letters:
            topic, partition = _target(letter, to, partitions)
            _produce(producer, topic, partition, letter.message.key, letter.message.value, _headers(letter))
        marked: dict[int, list[int]] = {}
        for letter in letters:
            marked.setdefault(letter.message.partition, []).append(letter.message.offset)
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
            # Ends what a killed replay left open, before the marks are read.
            producer.init_transactions(_COMMIT_SECONDS)
            yield producer
        except KafkaException as error:
            with suppress(KafkaException):
                producer.abort_transaction(TIMEOUT_SECONDS)
            raise _judge(error, f"the replay of {self.topic} was cut off") from error

    def _count(self, topic: str) -> int:
        try:
            found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
            return len(found[topic].result().partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConfigurationError(self._tell_missing(topic)) from error
            raise _judge(error, f"{topic} at {self._servers} could not be looked at") from error

    def _tell_missing(self, topic: str) -> str:
        said = f"there is no topic {topic} at {self._servers}"
        if topic != self.topic:
            return f"{said}; create it first"
        return (
            f"{said}; a consumer with RetryTopics or DeadLetterTopic makes it when it starts. Where it has another "
            "name, say that one, with --named if it does not end in .dlq"
        )

    @contextmanager
    def _reader(self) -> Iterator[Consumer]:
        consumer = Consumer({
            **self._settings,
            # A client wants a group; nothing is ever committed to this one.
            "group.id": "oncehouse-dlq",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        })  # fmt: skip
        with closing(consumer):
            try:
                yield consumer
            except KafkaException as error:
                raise _judge(error, f"{self.topic} could not be read") from error


def _target(letter: Letter, to: str | None, partitions: Mapping[str, int]) -> tuple[str, int]:
    if to is not None or letter.origin is None:
        return to or "", -1
    fits = letter.origin.partition < partitions[letter.origin.topic]
    return letter.origin.topic, letter.origin.partition if fits else -1


def _headers(letter: Letter) -> Headers:
    """Its own headers, and where it stood first, so that an inbox knows it again."""
    kept = ((name, letter.message.header(name)) for name in (ORIGIN, ORIGIN_TIME))
    return own_headers(letter.message) + tuple((name, value) for name, value in kept if value is not None)


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


def _judge(error: KafkaException, what: str) -> OncehouseError:
    found, said = error.args[0], describe_error(error)
    if found.code() in _SHUT_OUT:
        return FencedError(
            f"{what}: another replay of the same topic has begun meanwhile; let that one finish"
        )
    if found.code() in {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }:
        return ConfigurationError(f"{what}: {said}. Grant the user what is missing")
    if found.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return PermanentError(f"{what}: {said}. Raise max.message.bytes of the target")
    return TransientError(
        f"{what}: {said}. Check kafka.bootstrap_servers and that the brokers run, then ask again: what was done is not "
        "done twice"
    )
