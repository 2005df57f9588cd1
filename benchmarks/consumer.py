"""The batch consumer against the bare confluent-kafka loop, over the same records with the same client settings.

    python benchmarks/consumer.py [records]

The bare loop takes 5,000 records at a time, collects their values and commits without waiting: what one writes by hand,
without retries, dead letters, plans or a second partition side by side. Both sum the bytes of all values, which is
checked. They take turns; each counts with its best time, from its first record to its last. Processor time is that of
the whole process. `measure` gives consumer_over_bare to `make bench`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncehouse.devstack.stack import Stack
from oncehouse.messaging.consumer import Batch, Consumer

RECORDS = 1_000_000
PARTITIONS = 4
SIZE = 5_000
TURNS = 5
VALUE = b"x" * 200
# As the consumer sets it: otherwise the client looks only once a second whether its queue has room.
OPTIONS = {"fetch.queue.backoff.ms": "10"}

Figure = dict[str, str | float]


@dataclass(frozen=True, kw_only=True)
class Run:
    seconds: float
    processor_seconds: float
    total_bytes: int


def fill(servers: str, topic: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=number // 1_000 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def run_bare(servers: str, topic: str, records: int) -> Run:
    settings = {
        "bootstrap.servers": servers,
        "group.id": uuid.uuid4().hex,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        **OPTIONS,
    }
    consumer = BareConsumer(settings)
    consumer.subscribe([topic])
    count = total = 0
    started = processor = 0.0
    while count < records:
        messages = consumer.consume(SIZE, 1.0)
        if not messages:
            continue
        if not count:
            started, processor = time.monotonic(), time.process_time()
        values = [message.value() for message in messages if message.error() is None]
        total += sum(map(len, values))
        count += len(values)
        consumer.commit(asynchronous=True)
    run = Run(
        seconds=time.monotonic() - started,
        processor_seconds=time.process_time() - processor,
        total_bytes=total,
    )
    consumer.close()
    return run


def run_ours(servers: str, topic: str, records: int) -> Run:
    consumer = Consumer(bootstrap_servers=servers, group=uuid.uuid4().hex, options=OPTIONS)
    lock, ends = Lock(), []
    count = total = 0

    @consumer.batch(topic, size=SIZE)
    def handle(batch: Batch) -> None:
        nonlocal count, total
        if not ends:
            ends.append((time.monotonic(), time.process_time()))
        size = sum(map(len, batch.values))
        with lock:
            total += size
            count += len(batch)
            if count >= records:
                ends.append((time.monotonic(), time.process_time()))
                consumer.stop()

    consumer.run()
    (started, processor), (ended, processor_end) = ends[0], ends[-1]
    return Run(seconds=ended - started, processor_seconds=processor_end - processor, total_bytes=total)


def compare(records: int) -> tuple[list[Run], list[Run]]:
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["kafka"])
        servers = stack.kafka.bootstrap_servers
        fill(servers, "bench", records)
        run_bare(servers, "bench", records)  # so that the broker's files are warm for both
        bare, ours = [], []
        for _ in range(TURNS):
            bare.append(run_bare(servers, "bench", records))
            ours.append(run_ours(servers, "bench", records))
    finally:
        stack.down()
        shutil.rmtree(folder)
    assert {run.total_bytes for run in (*bare, *ours)} == {records * len(VALUE)}
    return bare, ours


def measure(records: int = RECORDS) -> list[Figure]:
    bare, ours = compare(records)
    bare_seconds, our_seconds = (min(run.seconds for run in runs) for runs in (bare, ours))
    bare_processor, our_processor = (min(run.processor_seconds for run in runs) for runs in (bare, ours))

    def figure(name: str, value: float, unit: str) -> Figure:
        return {"name": name, "value": round(value, 3), "unit": unit}

    return [
        figure("consumer_over_bare", bare_seconds / our_seconds, "1"),
        figure("consumer_over_bare_processor", bare_processor / our_processor, "1"),
        figure("consumer_records_per_s", round(records / our_seconds), "records/s"),
        figure("bare_consumer_records_per_s", round(records / bare_seconds), "records/s"),
    ]


if __name__ == "__main__":
    for found in measure(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS):
        print(f"{found['name']:<32} {found['value']:>12} {found['unit']}")
