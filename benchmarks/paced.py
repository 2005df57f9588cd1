"""A pipeline under a steady load: so many events a second, and what became of each of them.

The producer is a process of its own (this file as a program). An event's `created_at` is the moment at which it was due
to be sent, so an event that is sent late counts as late. It is visible when ClickHouse has finished the insert that
holds it: the row names its batch, the query log says when that ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from measure import Place, Topic, create_table, make_pipeline
from oncehouse.config import Pipeline
from oncehouse.devstack.demo_events import encode_columns, make_columns, make_topic
from oncehouse.pipeline.run import run_pipeline
from traffic import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICE_SECONDS = 0.02
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Load:
    servers: str
    topic: str
    rate: int
    seconds: float

    @property
    def events(self) -> int:
        return int(self.rate * self.seconds)


def due(load: Load, elapsed_seconds: float) -> int:
    """How many events should have been sent by now."""
    return min(load.events, int(elapsed_seconds * load.rate))


def make_slice(first: int, last: int, started_at: float, rate: int) -> list[bytes]:
    """The events `first` to before `last`, each with the moment at which it is due."""
    serials = np.arange(first, last, dtype=np.int64)
    moments = pa.array(((started_at + serials / rate) * 1000).astype(np.int64), pa.timestamp("ms", tz="UTC"))
    columns = make_columns(serials)
    return encode_columns(columns.set_column(columns.column_names.index("created_at"), "created_at", moments))


def send_all(load: Load) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": load.servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    started_at, sent = time.time(), 0
    while sent < load.events:
        until = due(load, time.time() - started_at)
        for number, message in enumerate(
            make_slice(sent, until, started_at, load.rate) if until > sent else ()
        ):
            producer.produce(load.topic, message, partition=(sent + number) % PARTITIONS)
        producer.poll(0)
        sent = until
        time.sleep(max(0.0, _SLICE_SECONDS - (time.time() - started_at) % _SLICE_SECONDS))
    if producer.flush(60):
        raise SystemExit("Kafka did not take all events")


@contextmanager
def run_beside(pipeline: Pipeline, spark: SparkSession) -> Iterator[threading.Thread]:
    """The pipeline on a thread of its own, as `oncehouse run` has it; stopped at the end."""
    stop, failed = threading.Event(), []

    def run() -> None:
        try:
            run_pipeline(pipeline, stop=stop, spark=spark)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, name=pipeline.pipeline)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]


@contextmanager
def under_load(place: Place, spark: SparkSession, *, rate: int, seconds: float, name: str) -> Iterator[Load]:
    """A new pipeline that is under way, and a producer that has just begun; at the end every event has arrived."""
    load = Load(servers=place.stack.kafka.bootstrap_servers, topic=name, rate=rate, seconds=seconds)
    make_topic(load.servers, name, partitions=PARTITIONS)
    topic = Topic(name=name, produced=load.events, unique=load.events, value_bytes=0)
    pipeline = make_pipeline(place, topic)
    create_table(place, pipeline)
    with run_beside(pipeline, spark) as running:
        producer = subprocess.Popen([sys.executable, __file__, json.dumps(load.__dict__)])
        try:
            yield load
            if producer.wait(seconds + _PATIENCE_SECONDS):
                raise SystemExit("No figures: the producer failed")
            _wait_for_rows(place, name, load.events, running)
        finally:
            producer.kill()
            producer.wait()


def _wait_for_rows(place: Place, table: str, events: int, running: threading.Thread) -> None:
    ends_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
        ((rows, distinct),) = place.client.query(f"SELECT count(), uniqExact(product_id) FROM {table}")
        if rows == distinct == events:
            return
        if rows > events or time.monotonic() > ends_at or not running.is_alive():
            raise SystemExit(f"No figures: {table} has {rows:,} rows, {distinct:,} different, for {events:,}")
        time.sleep(0.2)


if __name__ == "__main__":
    send_all(Load(**json.loads(sys.argv[1])))
