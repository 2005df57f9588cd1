"""Dead letters copied to a Kafka topic, each once, however often that is asked for.

A message carries the letter's own key and bytes, and in its headers where it came from and why it is dead. Before
anything is sent, the headers of the target topic are read: what is there already is not sent again, so an export
that was cut off goes on, and a second one sends only what is new. The letters stay in the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from oncehouse.common.kafka_client import describe_error
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.pipeline.ingest.kafka_source import client_settings, group_of

HEADER = "oncehouse-letter"
"""Names the letter: a hash of its position and bytes."""

Headers = list[tuple[str, str | bytes | None]]

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 30.0
_FLUSH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Exported:
    sent: int
    known: int
    """Letters that the topic had already."""


def name_dead_letter(pipeline: str, row: dict[str, Any]) -> bytes:
    """The same for the same letter each time; another one once its bytes have been edited."""
    place = f"{pipeline}\0{row['topic']}\0{row['partition']}\0{row['offset']}\0{row['row'] or 0}\0"
    return hashlib.sha256(place.encode() + (row["value"] or b"")).hexdigest()[:32].encode()


def make_headers(pipeline: str, dead_letter: dict[str, Any]) -> Headers:
    """Our own headers, and behind them those that the record came with."""
    at = dead_letter["timestamp"]
    own = {
        HEADER: name_dead_letter(pipeline, dead_letter),
        "oncehouse-pipeline": pipeline.encode(),
        "oncehouse-topic": dead_letter["topic"].encode(),
        "oncehouse-partition": str(dead_letter["partition"]).encode(),
        "oncehouse-offset": str(dead_letter["offset"]).encode(),
        "oncehouse-row": str(dead_letter["row"] or 0).encode(),
        "oncehouse-timestamp": b"" if at is None else at.isoformat().encode(),
        "oncehouse-reason": (dead_letter["reason"] or "").encode(),
        "oncehouse-detail": (dead_letter["detail"] or "").encode(),
    }
    came = [(header["key"], header["value"]) for header in dead_letter["headers"] or ()]
    return [*own.items(), *came]


def export_dead_letters(
    kafka: Kafka,
    pipeline: str,
    topic: str,
    dead_letters: Iterable[dict[str, Any]],
    *,
    partitions: Sequence[int],
) -> Exported:
    """Send the letters that the topic does not hold yet, and return once the brokers have them all."""
    known = set(_read_names(kafka, topic, partitions, group=group_of(pipeline)))
    failures: list[KafkaError] = []
    producer = Producer(
        {**client_settings(kafka), "enable.idempotence": True, "acks": "all", "compression.type": "zstd"}
    )

    def receive(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    sent = skipped = 0
    for dead_letter in dead_letters:
        name = name_dead_letter(pipeline, dead_letter)
        if name in known:
            skipped += 1
            continue
        known.add(name)
        _send(producer, topic, dead_letter, make_headers(pipeline, dead_letter), receive)
        sent += 1
        if failures:
            break
    left = producer.flush(_FLUSH_SECONDS)
    if failures or left:
        _raise(topic, failures, left)
    return Exported(sent=sent, known=skipped)


def _send(
    producer: Producer,
    topic: str,
    dead_letter: dict[str, Any],
    headers: Headers,
    receive: Callable[[KafkaError | None, Message], None],
) -> None:
    at = dead_letter["timestamp"]
    while True:
        try:
            producer.produce(
                topic,
                value=dead_letter["value"],
                key=dead_letter["key"],
                headers=headers,
                timestamp=0 if at is None else max(0, round(at.timestamp() * 1000)),
                on_delivery=receive,
            )
        except BufferError:
            producer.poll(_POLL_SECONDS)
        else:
            producer.poll(0)
            return


def _raise(topic: str, failures: Sequence[KafkaError], left: int) -> None:
    if failures and not failures[0].retriable():
        raise PermanentError(
            f"Topic {topic} does not take the dead letters: {failures[0].str()}. What it has taken is not sent "
            "again by the next export."
        )
    raise TransientError(
        f"Kafka has not confirmed {left or len(failures)} dead letters for the topic {topic}. Export again: what "
        "it has taken is not sent twice."
    )


def _names_in(message: Message) -> Iterator[bytes]:
    headers: Any = message.headers()
    return (value for key, value in headers or () if key == HEADER)


def _read_names(kafka: Kafka, topic: str, partitions: Sequence[int], *, group: str) -> Iterator[bytes]:
    """The names of all letters that the topic holds; only headers are kept in memory."""
    consumer = Consumer(
        {
            **client_settings(kafka),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        waiting, idle_seconds = set(partitions), 0.0
        while waiting:
            messages = consumer.consume(num_messages=1000, timeout=_POLL_SECONDS)
            idle_seconds = 0.0 if messages else idle_seconds + _POLL_SECONDS
            if idle_seconds >= _PATIENCE_SECONDS:
                raise TransientError(
                    f"Kafka does not answer for the topic {topic}. Nothing was sent; try again."
                )
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                    waiting.discard(message.partition())
                elif error is not None:
                    raise TransientError(
                        f"The topic {topic} cannot be read: {error.str()}. Nothing was sent."
                    )
                else:
                    yield from _names_in(message)
    except KafkaException as error:
        raise ConfigurationError(f"The topic {topic} cannot be read: {describe_error(error)}") from error
    finally:
        consumer.close()
