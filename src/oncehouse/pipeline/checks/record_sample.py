"""A sample of what the topics hold now, read as the pipeline would read it, without changing anything.

The newest records are fetched by a consumer that commits nothing, and go through the read task itself into a
folder that is removed again: formats, transforms and routes are those of the pipeline. It shows how many records would
become dead letters, how rows spread over a table's partitions, and how fast a topic grows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from oncehouse.common.kafka_client import describe_error
from oncehouse.common.process_folder import process_folder
from oncehouse.errors import TransientError
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.base import EVENT_COLUMN, HEADERS
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, Positions, client_settings
from oncehouse.pipeline.ingest.manifest import DeadLetterManifest, ReadPlan
from oncehouse.pipeline.ingest.part_files import PARTITIONS, read_rows
from oncehouse.pipeline.ingest.read_plan import build_read_plan
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.transform.plan_builder import plan_transform

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Kafka, Pipeline
    from oncehouse.ledger.models import Schema

_RECORDS = 5000
_PATIENCE_SECONDS = 10.0
_WINDOWS_SECONDS = (3600.0, 86400.0)
_OVERHEAD_BYTES = 12
"""What Kafka writes for a record besides its key and value, roughly."""


@dataclass(frozen=True, kw_only=True)
class RecordSample:
    records: int
    dead: int
    first_dead: str
    """Position, reason and detail of one of them."""
    rows: Mapping[str, pa.Table]
    """By table, in the columns that are sent."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    block: pa.RecordBatch
    bytes_per_record: Mapping[str, float]
    """By topic."""


def fetch_newest(kafka: Kafka, topics: KafkaTopics) -> Fetched | None:
    """The newest records of all partitions together; None when there are none."""
    facts = topics.describe()
    places = [(topic, number) for topic, found in facts.items() for number in range(found.partitions)]
    earliest, latest = topics.earliest(places), topics.latest(places)
    share = max(1, _RECORDS // max(len(places), 1))
    starting = {place: max(earliest[place], latest[place] - share) for place in places}
    filled = {place: offset for place, offset in starting.items() if offset < latest[place]}
    if not filled:
        return None
    messages = list(_consume(kafka, filled, latest))
    if not messages:
        return None
    return Fetched(block=as_block(kafka, messages), bytes_per_record=_measure(messages))


def _consume(kafka: Kafka, starting: Positions, latest: Positions) -> Iterator[Message]:
    consumer = Consumer(
        {
            **client_settings(kafka),
            "group.id": "oncehouse-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starting.items()])
        # Aborted transactions leave holes, so the end of a partition may never be seen: then the time is up.
        left, waited = set(starting), 0.0
        while left and waited < _PATIENCE_SECONDS:
            messages = consumer.consume(num_messages=_RECORDS, timeout=1.0)
            waited = 0.0 if messages else waited + 1.0
            for message in messages:
                if message.error() is None:
                    yield message
                    place = (str(message.topic()), int(message.partition() or 0))
                    if int(message.offset() or 0) >= latest[place] - 1:
                        left.discard(place)
            if not messages and waited >= 2.0:
                return
    except KafkaException as error:
        raise TransientError(f"Kafka gives no sample of the records: {describe_error(error)}") from error
    finally:
        consumer.close()


def as_block(kafka: Kafka, messages: list[Message]) -> pa.RecordBatch:
    """Messages as a read task gets them."""
    ordinals = {topic: number for number, topic in enumerate(sorted(kafka.topics))}
    columns = {
        "source": pa.array(
            [ordinals[str(m.topic())] * PARTITIONS + int(m.partition() or 0) for m in messages], pa.int32()
        ),
        "offset": pa.array([m.offset() for m in messages], pa.int64()),
        "timestamp": pa.array(
            [max(0, m.timestamp()[1]) * 1000 for m in messages], pa.timestamp("us", tz="UTC")
        ),
        "key": pa.array([m.key() for m in messages], pa.binary()),
        "value": pa.array([m.value() for m in messages], pa.binary()),
        "headers": pa.array([_headers(m) for m in messages], HEADERS),
    }
    return pa.record_batch(columns)


def _headers(message: Message) -> list[dict[str, Any]]:
    headers: Any = message.headers()
    return [{"key": key, "value": value} for key, value in headers or ()]


def _measure(messages: list[Message]) -> dict[str, float]:
    sizes: dict[str, list[int]] = {}
    for message in messages:
        size = len(message.value() or b"") + len(message.key() or b"") + _OVERHEAD_BYTES
        sizes.setdefault(str(message.topic()), []).append(size)
    return {topic: sum(found) / len(found) for topic, found in sizes.items()}


@contextmanager
def read_sample(
    pipeline: Pipeline, schemas: tuple[Schema, ...], topics: KafkaTopics
) -> Iterator[RecordSample | None]:
    """The sample as the pipeline would read it; what was written for it is gone at the end of the block."""
    fetched = fetch_newest(topics.kafka, topics)
    if fetched is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="check-", dir=process_folder()) as folder:
        yield read_block(pipeline, schemas, fetched.block, folder)


def read_block(
    pipeline: Pipeline, schemas: tuple[Schema, ...], block: pa.RecordBatch, folder: str
) -> RecordSample:
    """Records as the pipeline would read them, with `folder` for what a read task writes."""
    plan = build_read_plan(pipeline, schemas, epoch=0, token=0, whole=True)
    transform = plan_transform(pipeline, token=0, files_root=folder)
    return _read(replace(plan, files_root=folder, transform=transform), block)


def _read(plan: ReadPlan, block: pa.RecordBatch) -> RecordSample:
    manifest = read_records(plan, "check", [block])
    store = FileStore(plan.files_root)
    tables: dict[str, list[pa.Table]] = {}
    for chunk in manifest.chunks:
        for part in chunk.parts:
            rows = read_rows(store, part.file).drop_columns(EVENT_COLUMN)
            tables.setdefault(plan.tables[part.table].name, []).append(rows)
    dead = [dead_letters for dead_letters in manifest.letters if dead_letters.kind == "dead"]
    return RecordSample(
        records=manifest.read,
        dead=sum(dead_letters.rows for dead_letters in dead),
        first_dead=_first(dead),
        rows={name: pa.concat_tables(parts).combine_chunks() for name, parts in tables.items()},
    )


def _first(dead_letters: list[DeadLetterManifest]) -> str:
    return dead_letters[0].sample if dead_letters else ""


def measure_growth(kafka: Kafka, topics: KafkaTopics, *, now: float) -> dict[str, float]:
    """Bytes a second by which the busiest partition of each topic grows, in the last hour or day, whichever is more."""
    fetched = fetch_newest(kafka, topics)
    if fetched is None:
        return {}
    fastest = dict.fromkeys(fetched.bytes_per_record, 0.0)
    places = [
        (topic, number)
        for topic, found in topics.describe().items()
        if topic in fastest
        for number in range(found.partitions)
    ]
    latest = topics.latest(places)
    for seconds in _WINDOWS_SECONDS:
        for place, offset in topics.offsets_at(places, now - seconds).items():
            # -1: no record is younger than that.
            records = latest[place] - offset if offset >= 0 else 0
            fastest[place[0]] = max(fastest[place[0]], records / seconds)
    return {topic: rate * fetched.bytes_per_record[topic] for topic, rate in fastest.items() if rate}
