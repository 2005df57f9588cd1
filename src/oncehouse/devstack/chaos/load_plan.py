"""What a run sends, in three waves: before the fault, while it goes on, and after it.

The second wave repeats events of the first, the third of both: duplicates close by, across epochs and across
restarts. Poison is spread over all of them. The same plan gives the same records in the same places each time.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncehouse.devstack.chaos.generators.factory import GeneratedRecord
from oncehouse.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

WAVES = 3
PARTITIONS = 3

_BORDERS = (0.0, 0.5, 0.75, 1.0)
_NEAR_SHARE = 0.2
_FAR_SHARE = 0.5
_NEAR_DISTANCE = 20
_POISON_SHARE = 0.01
_FLUSH_SECONDS = 60.0

POISON = (
    b"not a record at all",
    b'{"unfinished":',
    b'"unfinished',
    b"\xff\xfe\xfd",
    b"[]",
    b"\x00",
    b"\x00\x00\x00\x00\x01\xff",
    b"",
)
"""Bytes that most formats refuse; which of them a pipeline does is found out before anything is sent."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    record: GeneratedRecord
    topic: int
    """Place of the topic in the pipeline's list."""
    partition: int


@dataclass(frozen=True, kw_only=True)
class Traffic:
    waves: tuple[tuple[Sent, ...], ...]
    identities: int | None
    """How many different events there are; None where only the pipeline knows."""
    partitions: int = PARTITIONS

    @property
    def records(self) -> int:
        return sum(len(wave) for wave in self.waves)


def plan_numbers(unique: int, seed: int) -> list[list[int]]:
    """The numbers of events that each wave sends."""
    rng = random.Random(seed)  # noqa: S311 - made to be repeated
    waves = []
    for start, end in pairwise(_BORDERS):
        numbers: list[int] = []
        first = int(unique * start)
        for number in range(first, int(unique * end)):
            numbers.append(number)
            if rng.random() < _NEAR_SHARE:
                numbers.append(max(0, number - rng.randrange(_NEAR_DISTANCE)))
            if first and rng.random() < _FAR_SHARE:
                numbers.append(rng.randrange(first))
        waves.append(numbers)
    return waves


def plan_traffic(
    make: Callable[[Sequence[int]], GeneratedRecord],
    *,
    unique: int,
    several: int,
    topics: int,
    poison: Sequence[bytes],
    seed: int,
    poison_headers: tuple[tuple[str, bytes], ...] = (),
) -> Traffic:
    """Made-up events: a repeated event is the same bytes, so that it may come back in any place."""
    rng = random.Random(seed + 1)  # noqa: S311 - made to be repeated
    waves = []
    for numbers in plan_numbers(unique, seed):
        records = [make(numbers[at : at + several]) for at in range(0, len(numbers), several)]
        for record in _poison(len(records), poison, poison_headers):
            records.insert(rng.randrange(len(records) + 1), record)
        waves.append(
            tuple(
                Sent(
                    record=record,
                    topic=rng.randrange(topics),
                    partition=rng.randrange(PARTITIONS),
                )
                for record in records
            )
        )
    return Traffic(waves=tuple(waves), identities=unique)


def plan_sample(
    sample: Sequence[GeneratedRecord], *, poison: Sequence[bytes], seed: int, least: int
) -> Traffic:
    """Records of the user's own, in their order in one partition, so that of two with one id the same is first."""
    rng = random.Random(seed + 1)  # noqa: S311 - made to be repeated
    waves = []
    for numbers in plan_numbers(len(sample), seed):
        # A short sample is sent again and again, so that there are enough records for several epochs.
        more = max(0, least // WAVES - len(numbers))
        repeats = rng.choices(numbers, k=more) if numbers else []
        records = [sample[number] for number in (*numbers, *repeats)]
        headers = sample[0].headers
        for record in _poison(len(records), poison, headers):
            records.insert(rng.randrange(len(records) + 1), record)
        waves.append(tuple(Sent(record=record, topic=0, partition=0) for record in records))
    return Traffic(waves=tuple(waves), identities=None, partitions=1)


def _poison(
    records: int, poison: Sequence[bytes], headers: tuple[tuple[str, bytes], ...]
) -> list[GeneratedRecord]:
    count = max(len(poison), int(records * _POISON_SHARE)) if poison else 0
    return [GeneratedRecord(value=poison[at % len(poison)], headers=headers) for at in range(count)]


def read_sample(file: Path, pipeline: Pipeline, *, most: int) -> list[GeneratedRecord]:
    """Records out of a file, one a line.

    A line is the record itself; base64 for Avro and protobuf. Where key or headers matter, it is a JSON object with
    `value` (or `base64`), `key` and `headers`.
    """
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    if not lines:
        raise ConfigurationError(f"{file}: holds no records; write one a line")
    source, identity = pipeline.source, pipeline.identity
    section = source.avro or source.protobuf
    described = bool(
        identity.key or identity.headers or (section is not None and section.version == "header")
    )
    read = _read_described if described else _read_binary if section is not None else _read_plain
    records = []
    for number, line in enumerate(lines[:most], start=1):
        try:
            records.append(read(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"{file}:{number}: {_wanted(read)} ({error})") from None
    return records


def _read_plain(line: bytes) -> GeneratedRecord:
    return GeneratedRecord(value=line)


def _read_binary(line: bytes) -> GeneratedRecord:
    return GeneratedRecord(value=base64.b64decode(line, validate=True))


def _read_described(line: bytes) -> GeneratedRecord:
    given: Mapping[str, Any] = json.loads(line)
    value = base64.b64decode(given["base64"], validate=True) if "base64" in given else given["value"].encode()
    key = given.get("key")
    return GeneratedRecord(
        value=value,
        key=None if key is None else key.encode(),
        headers=tuple((name, str(text).encode()) for name, text in (given.get("headers") or {}).items()),
    )


def _wanted(read: Callable[[bytes], GeneratedRecord]) -> str:
    if read is _read_binary:
        return "a line must be one record in base64"
    return 'a line must be a JSON object such as {"value": "…", "key": "…", "headers": {"name": "…"}}'


def make_topics(bootstrap_servers: str, topics: Sequence[str], *, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    wanted = [NewTopic(topic, num_partitions=partitions, replication_factor=1) for topic in topics]
    for made in admin.create_topics(wanted).values():
        made.result(30)


def produce(bootstrap_servers: str, topics: Sequence[str], wave: Sequence[Sent]) -> None:
    """Send a wave; return when Kafka has kept all of it."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "message.max.bytes": 64 << 20,
            "log_level": 0,
        }
    )
    failures: list[str] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    try:
        for sent in wave:
            record: dict[str, Any] = {"value": sent.record.value, "key": sent.record.key}
            if sent.record.headers:
                record["headers"] = list(sent.record.headers)
            producer.produce(topics[sent.topic], partition=sent.partition, on_delivery=note, **record)
            producer.poll(0)
        left = producer.flush(_FLUSH_SECONDS)
    except (KafkaException, BufferError) as error:
        raise TransientError(f"Kafka at {bootstrap_servers} took no records ({error}). Try again.") from error
    if left or failures:
        reason = failures[0] if failures else f"no answer for {left} of them"
        raise TransientError(f"Kafka at {bootstrap_servers} did not take all records ({reason}). Try again.")
