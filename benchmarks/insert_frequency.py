"""The same stream into ClickHouse by an insert for each message and by the batch consumer, side by side.

    python benchmarks/insert_frequency.py [--messages 4000] [--rate 400] [--plot docs/insert-frequency.svg]

Real Kafka and ClickHouse on this machine. Both ways read the same topic while it is being filled, into tables that
refuse inserts at PARTS_TO_THROW parts, as a server does at its own bound under a larger load. Prints a table, draws
inserts, parts and errors over time into build/insert-frequency.{png,svg}, and adds insert_frequency_* to
build/bench.json. Inserts and errors are counted by ClickHouse itself (system.query_log), parts by looking all the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from demo_traffic import make_topic
from figures import write
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.stack import Stack
from oncehouse.errors import TransientError
from oncehouse.messaging import Consumer
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler, send_rows
from oncehouse.messaging.consumer import Batch

MESSAGES = 4_000
RATE = 400
PARTITIONS = 2
PARTS_TO_THROW = 10
LONGEST_SECONDS = 180.0
TOPIC = "stream"
WAYS = {"each": "an insert for each message", "batch": "the batch consumer"}


@dataclass(kw_only=True)
class Way:
    name: str
    seconds: float = 0.0
    rows: int = 0
    inserts: list[float] = field(default_factory=list)
    """When each finished, in seconds from the start."""
    errors: list[float] = field(default_factory=list)
    parts: list[tuple[float, int]] = field(default_factory=list)

    @property
    def most_parts(self) -> int:
        return max((count for _, count in self.parts), default=0)


def fill(servers: str, messages: int, rate: float) -> None:
    """At a steady pace, as services send."""
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 5})
    started = time.monotonic()
    for number in range(messages):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        value = json.dumps({"id": number, "name": f"event {number}"}).encode()
        producer.produce(TOPIC, value=value, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(60)


def insert_each(client: Client, servers: str, is_over: Callable[[], bool]) -> None:
    consumer = ck.Consumer({
        "bootstrap.servers": servers,
        "group.id": "each",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([TOPIC])
    while not is_over():
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        token = f"{message.topic()}/{message.partition()}/{message.offset()}"
        while not is_over():
            try:
                send_rows(client, "each", message.value() or b"", token=token)
                break
            except TransientError:
                time.sleep(0.1)
    consumer.close()


def insert_batches(url: str, servers: str, is_over: Callable[[], bool]) -> None:
    def rows(batch: Batch) -> bytes:
        return b"\n".join(value or b"" for value in batch.values)

    consumer = Consumer(group="batch", bootstrap_servers=servers)
    consumer.batch(TOPIC, size=5_000, wait=1.0)(ClickHouseHandler(url=url, table="batch", rows=rows))
    thread = threading.Thread(target=consumer.run)
    thread.start()
    while not is_over():
        time.sleep(0.1)
    consumer.stop()
    thread.join()


def watch(client: Client, ways: dict[str, Way], messages: int, started: float) -> None:
    """Look at the parts until both tables hold everything, or the time is up."""
    while any(way.rows < messages for way in ways.values()) and time.time() < started + LONGEST_SECONDS:
        found = client.query(
            "SELECT table, count(), sum(rows) FROM system.parts WHERE active AND database = currentDatabase() "
            "GROUP BY table"
        )
        at = time.time() - started
        for table, parts, rows in found:
            way = ways[table]
            way.parts.append((at, int(parts)))
            if way.rows < messages:
                way.rows, way.seconds = int(rows), at
        time.sleep(0.05)


def read_log(client: Client, ways: dict[str, Way], started: float) -> None:
    client.command("SYSTEM FLUSH LOGS")
    for way in ways.values():
        asked = client.query(
            "SELECT type = 'QueryFinish', toFloat64(event_time_microseconds) FROM system.query_log "
            "WHERE query_kind = 'Insert' AND type != 'QueryStart' AND has(tables, {table:String}) "
            "ORDER BY event_time_microseconds",
            {"table": f"{client.database}.{way.name}"},
        )
        for finished, at in asked:
            (way.inserts if finished else way.errors).append(float(at) - started)


def run(stack: Stack, messages: int, rate: float) -> dict[str, Way]:
    servers, url = stack.kafka.bootstrap_servers, stack.clickhouse.url
    client = connect(ClickHouse(url=url))
    make_topic(servers, TOPIC, partitions=PARTITIONS)
    for table in WAYS:
        client.command(
            f"CREATE TABLE {table} (id UInt64, name String) ENGINE = MergeTree ORDER BY id SETTINGS "
            f"parts_to_throw_insert = {PARTS_TO_THROW}, parts_to_delay_insert = 0, "
            "non_replicated_deduplication_window = 20000"
        )
    ways = {name: Way(name=name) for name in WAYS}
    over = threading.Event()
    started = time.time()
    threads = [
        threading.Thread(target=fill, args=(servers, messages, rate)),
        threading.Thread(target=insert_each, args=(client, servers, over.is_set)),
        threading.Thread(target=insert_batches, args=(url, servers, over.is_set)),
    ]
    for thread in threads:
        thread.start()
    watch(client, ways, messages, started)
    over.set()
    for thread in threads:
        thread.join()
    read_log(client, ways, started)
    return ways


def draw(ways: dict[str, Way], files: list[Path]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for way, colour in zip(ways.values(), ("tab:red", "tab:blue"), strict=True):
        for panel, moments in ((panels[0], way.inserts), (panels[2], way.errors)):
            steps = [0.0, *moments, way.seconds]
            counts = [*range(len(moments) + 1), len(moments)]
            panel.step(steps, counts, where="post", color=colour, linewidth=2, label=WAYS[way.name])
        panels[1].plot(
            [at for at, _ in way.parts], [count for _, count in way.parts], color=colour, linewidth=0.8
        )
    panels[1].axhline(PARTS_TO_THROW, color="grey", linestyle=":", label="inserts are refused")
    for panel, title in zip(
        panels, ("inserts so far (logarithmic)", "active parts", "refused inserts so far"), strict=True
    ):
        panel.set_title(title)
        panel.set_xlabel("seconds")
        panel.set_ylim(bottom=0)
    panels[0].set_yscale("log")
    panels[0].set_ylim(bottom=1)
    panels[0].legend(loc="lower right")
    panels[1].legend(loc="upper right")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        # No dates and addresses of other projects inside: the same figures make the same file.
        unsaid = {"Date": None, "Creator": None} if file.suffix == ".svg" else {"Software": None}
        figure.savefig(file, dpi=120, metadata=unsaid)
    plt.close(figure)


def show(ways: dict[str, Way], messages: int) -> None:
    headings = ("", "rows", "inserts", "rows/insert", "inserts/s", "most parts", "refused", "seconds")
    print(f"{headings[0]:<28}" + "".join(f"{heading:>12}" for heading in headings[1:]))
    for way in ways.values():
        inserts = len(way.inserts)
        print(
            f"{WAYS[way.name]:<28}{way.rows:>12,}{inserts:>12,}{way.rows / max(1, inserts):>12.1f}"
            f"{inserts / way.seconds:>12.1f}{way.most_parts:>12}{len(way.errors):>12,}{way.seconds:>12.1f}"
        )
        if way.rows < messages:
            print(f"{'':<28}{messages - way.rows:,} rows had not come after {LONGEST_SECONDS:g} s")


def measure(
    messages: int = MESSAGES, rate: float = RATE, *, plots: list[Path] | None = None
) -> list[dict[str, Any]]:
    """On servers of its own, which it stops again."""
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-frequency-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["kafka", "clickhouse"])
        ways = run(stack, messages, rate)
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)
    show(ways, messages)
    draw(ways, plots or [Path("build/insert-frequency.png"), Path("build/insert-frequency.svg")])
    return [
        {"name": f"insert_frequency_{way.name}_{name}", "value": value, "unit": unit}
        for way in ways.values()
        for name, value, unit in (
            ("inserts", len(way.inserts), "inserts"),
            ("most_parts", way.most_parts, "parts"),
            ("refused", len(way.errors), "inserts"),
            ("seconds", round(way.seconds, 1), "s"),
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second")
    parser.add_argument("--plot", type=Path, action="append", help="where else to draw")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    asked = parser.parse_args()
    plots = [Path("build/insert-frequency.png"), Path("build/insert-frequency.svg"), *(asked.plot or ())]
    write(measure(asked.messages, asked.rate, plots=plots), asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
