"""What the scheduler itself costs: a round over 1,000 idle topics, and what it adds to one step.

Adds etl_idle_round_s, etl_idle_round_queries and etl_step_overhead_ms to build/bench.json. The overhead is a step's
whole time less the time of the same INSERT … SELECT sent alone; both are medians over so many steps that the servers,
which have just been started, are warm for most of them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import write
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.stack import Stack
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler
from oncehouse.etl.scheduler.step_runner import StepDone
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets, RocksDbOffsets
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.state.transitions import OffsetStore

TOPICS = 1000
ROUNDS = 5
STEPS = 100
ROWS_PER_STEP = 10_000


class CountingClient(Client):
    calls = 0

    def query(self, *arguments: Any, **named: Any) -> list[tuple[Any, ...]]:
        self.calls += 1
        return super().query(*arguments, **named)

    def command(self, *arguments: Any, **named: Any) -> object:
        self.calls += 1
        return super().command(*arguments, **named)


def measure_idle_round(client: CountingClient, topics: int) -> tuple[float, int]:
    """Every topic with a source of its own that holds nothing new."""
    client.command("CREATE DATABASE IF NOT EXISTS idle")
    store = RocksDbOffsets(client, "idle.Offsets")
    store.prepare()
    lineage = []
    for number in range(topics):
        table = f"idle.stage{number}"
        client.command(
            f"CREATE TABLE {table} (pos DateTime64(3), id UInt64) ENGINE = MergeTree ORDER BY (pos, id)"
        )
        client.command(f"INSERT INTO {table} SELECT fromUnixTimestamp64Milli(1700000000000), 1")
        lineage.append(Topic(topic=f"t{number}", dst=f"idle.fact{number}", depends_on=(table,)))
    done = "(fromUnixTimestamp64Milli(1700000000000), 1)"
    client.command(
        f"INSERT INTO idle.Offsets (topic, last, next) SELECT 't' || toString(number), {done}, {done} "
        f"FROM numbers({topics})"
    )
    seconds: list[float] = []
    with Scheduler(client, store, lineage, folder=Path()) as scheduler:
        scheduler.run_round()
        for _ in range(ROUNDS):
            client.calls = 0
            started = time.perf_counter()
            done_round = scheduler.run_round()
            seconds.append(time.perf_counter() - started)
            if done_round.outcomes:
                raise SystemExit(f"a topic that should be idle ran: {done_round.outcomes[0]}")
    return statistics.median(seconds), client.calls


def measure_overhead(client: CountingClient, store: OffsetStore, database: str, steps: int) -> float:
    client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    store.prepare()
    client.command(
        f"CREATE TABLE {database}.stage (pos DateTime64(3), id UInt64) ENGINE = MergeTree ORDER BY (pos, id)"
    )
    client.command(
        f"INSERT INTO {database}.stage SELECT fromUnixTimestamp64Milli(1700000000000 + number), number "
        f"FROM numbers({steps * ROWS_PER_STEP})"
    )
    client.command(
        f"CREATE TABLE {database}.fact (pos DateTime64(3), id UInt64) ENGINE = MergeTree ORDER BY (pos, id) "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command(
        f"CREATE VIEW {database}.transform AS SELECT pos, id FROM {database}.stage "
        "WHERE (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64}) "
        "AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"
    )
    topic = Topic(
        topic="bench",
        dst=f"{database}.fact",
        depends_on=(f"{database}.stage",),
        transform=f"{database}.transform",
        maxstep_rows=ROWS_PER_STEP,
    )
    whole: list[float] = []
    alone: list[float] = []
    with Scheduler(client, store, (topic,), folder=Path(), worker=TopicWorker(hostid="bench")) as scheduler:
        transitions.seek(store, "bench", Position(time_ms=1, id=0))
        for _ in range(steps):
            (step,) = scheduler.plan()
            started = time.perf_counter()
            outcomes = scheduler.run_round().outcomes
            whole.append(time.perf_counter() - started)
            if not all(isinstance(outcome, StepDone) for outcome in outcomes):
                raise SystemExit(f"a step failed: {outcomes}")
            insert = next(one for one in step.operations if hasattr(one, "token"))
            settings = {**insert.settings, "insert_deduplication_token": f"{insert.token}-alone"}
            # Without its look at who holds the topic: by now nobody does, and the look is the scheduler's cost.
            bare, _, _ = insert.sql.partition(" WHERE NOT throwIf")
            started = time.perf_counter()
            client.command(bare, insert.parameters, settings)
            alone.append(time.perf_counter() - started)
    return (statistics.median(whole) - statistics.median(alone)) * 1000


def measure(topics: int, steps: int = STEPS) -> list[dict[str, Any]]:
    """On servers of its own, which it stops again."""
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-etl-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["zookeeper", "clickhouse"])
        client = CountingClient(connect(ClickHouse(url=stack.clickhouse.url)).config)
        overhead = measure_overhead(client, RocksDbOffsets(client, "local.Offsets"), "local", steps)
        keeper = measure_overhead(
            client, KeeperMapOffsets(client, "keeper.Offsets", "/bench"), "keeper", steps
        )
        idle, queries = measure_idle_round(client, topics)
    finally:
        stack.down()
        shutil.rmtree(folder)
    return [
        {"name": "etl_idle_round_s", "value": round(idle, 3), "unit": "s"},
        {"name": "etl_idle_round_queries", "value": queries, "unit": "queries"},
        {"name": "etl_step_overhead_ms", "value": round(max(overhead, keeper), 1), "unit": "ms"},
        {"name": "etl_step_overhead_rocksdb_ms", "value": round(overhead, 1), "unit": "ms"},
        {"name": "etl_step_overhead_keepermap_ms", "value": round(keeper, 1), "unit": "ms"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--steps", type=int, default=STEPS, help="over how many steps medians are taken")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    options = parser.parse_args()
    figures = measure(options.topics, options.steps)
    for figure in figures:
        print(f"{figure['name']:32} {figure['value']:>10} {figure['unit']}")
    write(figures, options.out)


if __name__ == "__main__":
    main()
