"""Three sources at their own paces, five tables built from them, one kill -9, and a comparison: `python run.py`.

Starts a ClickHouse of its own (the dev stack), feeds it hour by hour while `oncehouse etl run` works beside it,
kills that half-way, starts another one, and compares every row of the Facts with a join in plain Python. Exit 0
only when nothing is missing, doubled or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from oncehouse.clickhouse.client import Client, connect
from oncehouse.config import ClickHouse
from oncehouse.devstack.stack import Stack
from shop import HOUR_MS, START_MS, Row, Shop, expect_facts, make_shop

HERE = Path(__file__).resolve().parent
ONCEHOUSE = (sys.executable, "-c", "from oncehouse.cli.app import main; main()", "etl")
EVERY_HOURS = {"stage.orders": 1, "stage.payments": 3, "stage.customers": 12}
"""How often each system sends what has piled up."""
FACTS = {
    "dwh.customers": "SELECT customer, country FROM dwh.customers",
    "dwh.orders": "SELECT id, toUnixTimestamp64Milli(pos), customer, country, quantity FROM dwh.orders",
    "dwh.payments": "SELECT id, toUnixTimestamp64Milli(pos), order_id, country, quantity, amount FROM dwh.payments",
    "dwh.large": "SELECT id, toUnixTimestamp64Milli(pos), country, quantity FROM dwh.large",
    "dwh.daily": "SELECT toString(day), country, payments, amount FROM dwh.daily",
}
PATIENCE_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description="The ETL example, from an empty server to compared Facts.")
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--hours", type=int, default=48, help="hours of data")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two hours of data")
    parser.add_argument("--no-kill", action="store_true", help="let the scheduler live")
    arguments = parser.parse_args()
    shop = make_shop(arguments.orders, hours=arguments.hours, seed=arguments.seed)
    with start_clickhouse() as url:
        client = connect(ClickHouse(url=url))
        prepare(client, url)
        run_shop(client, url, shop, pause_seconds=arguments.pause, kill=not arguments.no_kill)
        etl(url, "graph")
        etl(url, "status")
        etl(url, "log", "--limit", "5")
        etl(url, "log", "checks", "--limit", "5")
        return compare(client, expect_facts(shop))


@contextmanager
def start_clickhouse() -> Iterator[str]:
    stack = Stack(folder=Path(tempfile.mkdtemp(prefix="oncehouse-etl-")))
    try:
        stack.up(["clickhouse"])
        yield stack.clickhouse.url
    finally:
        stack.discard()


def prepare(client: Client, url: str) -> None:
    """The scheduler's own tables, then those of the shop, then a look at whether all fits together."""
    etl(url, "init", "--yes", quiet=True)
    without_comments = "\n".join(
        line for line in (HERE / "tables.sql").read_text().splitlines() if not line.startswith("--")
    )
    for statement in without_comments.split(";\n"):
        if statement.strip(" ;\n"):
            client.command(statement.strip(" ;\n"))
    for topic in ("Orders", "Payments"):
        etl(url, "log", "create", topic, "--yes", quiet=True)
    etl(url, "check")


def run_shop(client: Client, url: str, shop: Shop, *, pause_seconds: float, kill: bool) -> None:
    """Feed the sources while a scheduler works; in the middle it is killed and another one takes over."""
    scheduler = start_scheduler(url)
    try:
        for hour in range(1, shop.hours + 1):
            for table, rows in arrivals(shop, hour).items():
                insert(client, table, rows)
            time.sleep(pause_seconds)
            if kill and hour == shop.hours // 2:
                scheduler.kill()
                scheduler.wait()
                print(f"hour {hour}: killed the scheduler (kill -9) and started another one")
                scheduler = start_scheduler(url)
        declare_end(url, shop)
        await_idle(url)
    finally:
        scheduler.terminate()
        scheduler.wait()


def declare_end(url: str, shop: Shop) -> None:
    """Nothing more comes: else the last orders would wait for news of customers, who do not change any more."""
    end = datetime.fromtimestamp((START_MS + shop.hours * HOUR_MS) / 1000, UTC)
    for source in ("StageOrders", "StagePayments", "StageCustomers"):
        etl(url, "declare", source, end.strftime("%Y-%m-%dT%H:%M:%S"), "--as", "shop")


def arrivals(shop: Shop, hour: int) -> dict[str, list[dict[str, Any]]]:
    """What each system sends at the end of this hour: all that has piled up, if its time has come."""
    sent = {}
    for table, every in EVERY_HOURS.items():
        if hour % every == 0 or hour == shop.hours:
            end_ms = START_MS + hour * HOUR_MS
            begin_ms = START_MS + (hour - 1) // every * every * HOUR_MS
            sent[table] = rows_between(shop, table, begin_ms, end_ms)
    return sent


def rows_between(shop: Shop, table: str, begin_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """Rows of a Stage table by the time of the data; the shop's lists are sorted by it."""

    def cut(rows: list[Any]) -> list[Any]:
        first, last = (bisect_left(rows, at, key=lambda row: row.time_ms) for at in (begin_ms, end_ms))
        return rows[first:last]

    match table:
        case "stage.orders":
            return [
                {"id": row.id, "pos": row.time_ms, "customer": row.customer, "quantity": row.quantity}
                for row in cut(shop.orders)
            ]
        case "stage.payments":
            return [
                {"id": row.id, "pos": row.time_ms, "order_id": row.order, "amount": row.amount}
                for row in cut(shop.payments)
            ]
        case _:
            return [
                {"id": row.id, "pos": row.time_ms, "customer": row.customer, "country": row.country}
                for row in cut(shop.customers)
            ]


def insert(client: Client, table: str, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["pos"] = pa.array(columns["pos"], pa.timestamp("ms", tz="UTC"))
    data = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    client.insert_arrow(table, tuple(columns), sink.getvalue(), {})


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "CLICKHOUSE_URL": url}


def start_scheduler(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen((*ONCEHOUSE, "run"), cwd=HERE, env=environment(url), stdout=subprocess.DEVNULL)


def etl(url: str, *words: str, quiet: bool = False) -> str:
    """One command of the scheduler, shown as a user would see it."""
    done = subprocess.run(
        (*ONCEHOUSE, *words), cwd=HERE, env=environment(url), check=True, stdout=subprocess.PIPE, text=True
    )
    if not quiet:
        print(f"$ oncehouse etl {' '.join(words)}\n{done.stdout}")
    return done.stdout


def await_idle(url: str) -> None:
    """Until no topic has anything to do, and none has failed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        topics = json.loads(etl(url, "status", "--json", quiet=True))["topics"]
        if all(topic["decision"] == "waiting" and topic["reason"] == "nothing new" for topic in topics):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"topics still have work to do: {topics}")
        time.sleep(0.5)


def compare(client: Client, expected: dict[str, list[Row]]) -> int:
    """Every row of every Fact against the independent join, counted: a doubled row is one too many."""
    print(f"{'table':<15}{'expected':>10}{'found':>10}{'missing':>10}{'too many':>10}")
    wrong = 0
    for table, sql in FACTS.items():
        want, have = Counter(expected[table]), Counter(client.query(sql))
        missing, extra = (want - have).total(), (have - want).total()
        wrong += missing + extra
        print(f"{table:<15}{want.total():>10,}{have.total():>10,}{missing:>10,}{extra:>10,}")
    print(
        "every row is where it belongs"
        if not wrong
        else "the Facts differ from the join computed independently"
    )
    return 0 if not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
