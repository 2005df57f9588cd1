"""Ranges of offsets read by a task itself, compared with Kafka's own client: the same records, whatever they are."""

from __future__ import annotations

import random
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from oncehouse.pipeline.kafka_reader.access import KafkaAccess, SourceRange, TopicPlace
from oncehouse.pipeline.kafka_reader.range_reader import read_ranges

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def make_records(dice: random.Random, count: int):
    for number in range(count):
        key = dice.choice([None, b"", b"key %d" % number, dice.randbytes(dice.randrange(200))])
        value = dice.choice([None, b"", b'{"n": %d}' % number, dice.randbytes(dice.randrange(2_000))])
        headers = dice.choice([None, [("a", b"1")], [("a", None), ("a", b""), ("é", dice.randbytes(40))]])
        yield key, value, headers


def expected(kafka, topic: str, end: int) -> list[tuple]:
    """By confluent-kafka, of committed transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            break
        headers = message.headers()
        found.append(
            (message.offset(), message.timestamp()[1], message.key(), message.value(), headers or None)
        )
    consumer.close()
    return [one for one in found if one[0] < end]


def end_of(kafka, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "ends"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return end


def read(kafka, topic: str, topic_id: str, start: int, end: int, **access) -> list[tuple]:
    place = TopicPlace(topic=topic, topic_id=topic_id, partition=0)
    blocks = list(
        read_ranges(
            KafkaAccess(bootstrap_servers=kafka.bootstrap_servers, **access),
            [SourceRange(place=place, source=7, start=start, end=end)],
            headers=True,
        )
    )
    for block in blocks:
        block.validate(full=True)
        assert set(block.column("source").to_pylist()) == {7}
    rows = pa.Table.from_batches(blocks).to_pylist() if blocks else []
    return [
        (
            row["offset"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            row["key"],
            row["value"],
            None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]],
        )
        for row in rows
    ]


@pytest.fixture
def described(kafka_admin, topic):
    from confluent_kafka import TopicCollection

    def make(**config):
        name = topic(**config)
        (future,) = kafka_admin.describe_topics(TopicCollection([name])).values()
        return name, str(future.result().topic_id)

    return make


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_those_of_kafkas_client(kafka, described, codec):
    name, topic_id = described()
    dice = random.Random(codec)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 20}
    )
    for number, (key, value, headers) in enumerate(make_records(dice, 3_000)):
        producer.produce(name, value=value, key=key, headers=headers, partition=0)
        if number % 500 == 0:
            producer.flush()
    producer.flush()
    whole = expected(kafka, name, 3_000)
    assert len(whole) == 3_000
    assert read(kafka, name, topic_id, 0, 3_000) == whole
    for _ in range(10):
        start, end = sorted(dice.choices(range(3_001), k=2))
        assert read(kafka, name, topic_id, start, end, fetch_bytes=20_000) == whole[start:end]


def test_records_of_aborted_transactions_are_left_out(kafka, described):
    name, topic_id = described()
    dice = random.Random(1)
    producers = []
    for number in range(3):
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "transactional.id": f"{name}-{number}",
                "linger.ms": 0,
            }
        )
        producer.init_transactions()
        producers.append(producer)
    for _ in range(12):
        running = dice.sample(producers, 2)
        for producer in running:
            producer.begin_transaction()
        for number in range(20):
            producer = dice.choice(running)
            producer.produce(name, value=b"%d" % number, partition=0)
            if dice.random() < 0.3:
                producer.flush()
        for producer in running:
            producer.flush()
            dice.choice([producer.commit_transaction, producer.abort_transaction])()
    end = end_of(kafka, name)
    whole = expected(kafka, name, end)
    assert 0 < len(whole) < 240
    assert read(kafka, name, topic_id, 0, end) == whole
    for _ in range(20):
        start, stop = sorted(dice.choices(range(end + 1), k=2))
        wanted = [one for one in whole if start <= one[0] < stop]
        assert read(kafka, name, topic_id, start, stop, fetch_bytes=500) == wanted
