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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demo_traffic import encode_columns, make_columns, make_topic
from measure import Place, Topic, create_table, make_pipeline
from oncehouse.config.pipeline import Pipeline
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
    phases: Sequence[tuple[int, float]]
    """(events a second, seconds), one after the other."""

    @property
    def events(self) -> int:
        return sum(int(rate * seconds) for rate, seconds in self.phases)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.phases)

    @property
    def corners(self) -> tuple[list[float], list[int]]:
        """The ends of the phases: their seconds, and how many events are due by then."""
        return (
            [0.0, *accumulate(seconds for _, seconds in self.phases)],
            [0, *accumulate(int(rate * seconds) for rate, seconds in self.phases)],
        )


def due(load: Load, elapsed_seconds: float) -> int:
    """How many events should have been sent by now."""
    seconds, events = load.corners
    return int(np.interp(elapsed_seconds, seconds, events))


def make_slice(load: Load, first: int, last: int, started_at: float) -> list[bytes]:
    """The events `first` to before `last`, each with the moment at which it is due."""
    serials = np.arange(first, last, dtype=np.int64)
    seconds, events = load.corners
    moments = (started_at + np.interp(serials, events, seconds)) * 1000
    columns = make_columns(serials)
    place = columns.column_names.index("created_at")
    created_at = pa.array(np.round(moments).astype(np.int64), pa.timestamp("ms", tz="UTC"))
    return encode_columns(columns.set_column(place, "created_at", created_at))


def send_all(load: Load) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": load.servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    started_at, sent = time.time(), 0
    while sent < load.events:
        until = due(load, time.time() - started_at)
        messages = make_slice(load, sent, until, started_at) if until > sent else []
        for number, message in enumerate(messages):
            producer.produce(load.topic, message, partition=(sent + number) % PARTITIONS)
        producer.poll(0)
        sent = until
        time.sleep(max(0.0, _SLICE_SECONDS - (time.time() - started_at) % _SLICE_SECONDS))
    if producer.flush(60):
        raise SystemExit("Kafka did not take all events")


@contextmanager
def run_in_background(pipeline: Pipeline, spark: SparkSession) -> Iterator[threading.Thread]:
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
def under_load(
    place: Place, spark: SparkSession, phases: Sequence[tuple[int, float]], *, name: str, **sections: Any
) -> Iterator[Load]:
    """A new pipeline that is under way, and a producer that has just begun; at the end every event has arrived."""
    load = Load(servers=place.stack.kafka.bootstrap_servers, topic=name, phases=phases)
    make_topic(load.servers, name, partitions=PARTITIONS)
    topic = Topic(name=name, produced=load.events, unique=load.events, value_bytes=0)
    pipeline = make_pipeline(place, topic, **sections)
    create_table(place, pipeline)
    with run_in_background(pipeline, spark) as running:
        producer = subprocess.Popen([sys.executable, __file__, json.dumps(load.__dict__)])
        try:
            yield load
            if producer.wait(load.seconds + _PATIENCE_SECONDS):
                raise SystemExit("No figures: the producer failed")
            wait_for_rows(place, name, load.events, running)
        finally:
            producer.kill()
            producer.wait()


def wait_for_rows(place: Place, table: str, events: int, running: threading.Thread) -> None:
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
