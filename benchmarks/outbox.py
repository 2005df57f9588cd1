"""How fast the relay takes outbox rows to Kafka, beside the bare producer's speed, and what an idle outbox costs.

    python benchmarks/outbox.py [--rows 400000] [--profile]

Real PostgreSQL and Kafka of its own on the same machine. Adds outbox_rows_per_s, outbox_over_bare_producer and
outbox_idle_statements_per_s to build/bench.json. The bare producer sends the same messages from memory, with the same
settings. Statements of an idle relay are counted on the wire: every simple query and every Execute of a client.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer

from demo_traffic import make_topic
from figures import write
from oncehouse.common.database import begin, open_engine
from oncehouse.common.kafka_client import TIMEOUT_SECONDS
from oncehouse.devstack.stack import Stack
from oncehouse.messaging.message import MESSAGE_ID
from oncehouse.messaging.outbox.relay.relay import Relay
from oncehouse.messaging.outbox.relay.sender import producer_settings
from oncehouse.messaging.outbox.relay.settings import RelaySettings
from oncehouse.messaging.outbox.relay.worker import RelayWorker
from oncehouse.messaging.outbox.tables import bucket_of, create_outbox, outbox_tables
from statement_counter import StatementCounter

ROWS = 400_000
ROUNDS = 3
KEYS = 20_000
PARTITIONS = 4
IDLE_SECONDS = 30.0
TOPIC = "bench"
VALUE = (
    b'{"project":"shop","event_type":"view","product_id":%d,"note":"'
    + b"x" * 120
    + b'","at":"2026-01-01T00:00:00Z"}'
)

Message = tuple[uuid.UUID, bytes, bytes]


def make_messages(rows: int) -> list[Message]:
    return [(uuid.uuid4(), b"customer-%d" % (number % KEYS), VALUE % number) for number in range(rows)]


def fill(url: str, messages: list[Message]) -> None:
    with (
        psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        with cursor.copy(
            "COPY oncehouse_outbox (id, bucket, topic, key, value) FROM STDIN (FORMAT binary)"
        ) as copy:
            copy.set_types(["uuid", "int2", "text", "bytea", "bytea"])
            for message_id, key, value in messages:
                copy.write_row((message_id, bucket_of(key, message_id), TOPIC, key, value))
        connection.execute("CHECKPOINT")


def time_bare(servers: str, messages: list[Message]) -> float:
    """Rows a second of the producer alone, with a report for each message as the relay has."""
    producer = Producer(producer_settings(servers, {}))
    done: list[object] = []
    started = time.perf_counter()
    for message_id, key, value in messages:
        while True:
            try:
                producer.produce(
                    TOPIC,
                    value,
                    key,
                    headers=[(MESSAGE_ID, str(message_id))],
                    on_delivery=lambda error, _: done.append(error),
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(TIMEOUT_SECONDS * 4) or any(done):
        raise SystemExit("the bare producer did not get through")
    return len(messages) / (time.perf_counter() - started)


def time_relay(servers: str, url: str, messages: list[Message], *, profile: bool) -> float:
    """Rows a second from the start of the relay until the table is empty and the last row acknowledged."""
    fill(url, messages)
    relay = Relay(database=url, bootstrap_servers=servers, settings=RelaySettings())
    with profiled_workers() if profile else nullcontext():
        started = time.perf_counter()
        done = relay.run(once=True)
        seconds = time.perf_counter() - started
    if done.sent != len(messages):
        raise SystemExit(f"{len(messages)} rows, {done.sent} sent")
    return len(messages) / seconds


@contextmanager
def profiled_workers() -> Iterator[None]:
    """Show where the time of the first worker goes."""
    run, profiles = RelayWorker.run, []

    def profiled(worker: RelayWorker) -> None:
        profiles.append(cProfile.Profile())
        profiles[-1].runcall(run, worker)

    RelayWorker.run = profiled
    try:
        yield
    finally:
        RelayWorker.run = run
        pstats.Stats(profiles[0], stream=sys.stderr).sort_stats("tottime").print_stats(12)


def count_idle(servers: str, url: str, port: int) -> float:
    """Statements a second of a relay with nothing to do, after it has come to rest."""
    with StatementCounter(port) as counter:
        through = url.replace(f":{port}/", f":{counter.port}/")
        stop = threading.Event()
        relay = Relay(database=through, bootstrap_servers=servers)
        thread = threading.Thread(target=lambda: relay.run(stop=stop))
        thread.start()
        time.sleep(15)
        before = counter.statements
        time.sleep(IDLE_SECONDS)
        idle = (counter.statements - before) / IDLE_SECONDS
        stop.set()
        thread.join()
    return idle


def measure(rows: int = ROWS, *, profile: bool = False) -> list[dict[str, Any]]:
    """On servers of its own, which it stops again."""
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-outbox-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["kafka", "postgres"])
        servers, url = stack.kafka.bootstrap_servers, stack.postgres.url
        make_topic(servers, TOPIC, partitions=PARTITIONS)
        engine = open_engine(url, setting="database")
        with begin(engine, whose="bench") as connection:
            create_outbox(connection, outbox_tables())
        engine.dispose()
        messages = make_messages(rows)
        time_bare(servers, messages[: rows // 10])  # warm
        time_relay(servers, url, messages[: rows // 10], profile=False)
        bare, relayed = [], []
        for _ in range(ROUNDS):
            bare.append(time_bare(servers, messages))
            relayed.append(time_relay(servers, url, messages, profile=profile))
            print(
                f"bare {bare[-1]:,.0f} rows/s, relay {relayed[-1]:,.0f} rows/s", file=sys.stderr, flush=True
            )
        idle = count_idle(servers, url, stack.postgres.place.ports["postgres"])
    finally:
        stack.down()
        shutil.rmtree(folder)
    speed, alone = statistics.median(relayed), statistics.median(bare)
    return [
        {"name": "outbox_rows_per_s", "value": round(speed), "unit": "rows/s"},
        {"name": "outbox_bare_producer_rows_per_s", "value": round(alone), "unit": "rows/s"},
        {"name": "outbox_over_bare_producer", "value": round(speed / alone, 3), "unit": "1"},
        {"name": "outbox_idle_statements_per_s", "value": round(idle, 2), "unit": "statements/s"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--profile", action="store_true", help="show where the lanes' time goes")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    options = parser.parse_args()
    figures = measure(options.rows, profile=options.profile)
    for figure in figures:
        print(f"{figure['name']:32} {figure['value']:>10} {figure['unit']}")
    write(figures, options.out)


if __name__ == "__main__":
    main()
