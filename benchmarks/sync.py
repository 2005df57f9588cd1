"""Model sync beside django-clickhouse on the same changes, and what noticing a change costs a save.

    python benchmarks/sync.py [--changes 100000] [--turns 3] [--saves 1500]

Real PostgreSQL, Redis and ClickHouse of its own. Both sides run the same program (sync_orders.py) on the same table,
with the same Django and the same driver, django-clickhouse in an environment of its own (build/django-clickhouse, made
from requirements/django-clickhouse.txt). They take turns; a turn makes the changes, and then the time is taken from the
first round until all is in ClickHouse, which is checked. Adds sync_over_django_clickhouse, sync_capture_overhead and
what they are made of to build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

import sync_orders
from environments import make_environment
from figures import figure, say, write
from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.stack import Stack

CHANGES = 100_000
TURNS = 3
SAVES = 1_500
# The default of both, and one that lets each show what it can.
BATCH_SIZES = (10_000, 100_000)
HERE = Path(__file__).parent

OURS, THEIRS = "oncehouse", "django-clickhouse"


class SyncProgram:
    """A process that makes changes and syncs them with one of the tools."""

    def __init__(self, name: str, python: str | Path, address: dict[str, str]) -> None:
        self.name = name
        self.table = f"of_{name.replace('-', '_')}"
        command = [str(python), str(HERE / "sync_worker.py"), name, json.dumps(address)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def do(self, task: str, **given: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps({"do": task, **given}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name} ended with {self._process.wait()}")
        return json.loads(line)


@contextmanager
def open_servers() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-sync-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["postgres", "redis", "clickhouse"])
        yield stack
    finally:
        stack.down()
        shutil.rmtree(folder)


def compare_throughput(stack: Stack, changes: int, turns: int) -> list[dict[str, Any]]:
    client = connect(ClickHouse(url=stack.clickhouse.url))
    client.command("CREATE DATABASE bench")
    address = {
        "postgres": stack.postgres.url,
        "redis": stack.redis.url,
        "clickhouse": stack.clickhouse.url,
        "database": "bench",
    }
    speeds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as at_end:
        programs = []
        for name, python in ((OURS, sys.executable), (THEIRS, make_environment(THEIRS))):
            programs.append(SyncProgram(name, python, address))
            at_end.callback(programs[-1].close)
        for program in programs:  # warm
            take_turn(client, program, stack.postgres.url, changes // 20, BATCH_SIZES[0])
        for _ in range(turns):
            for program in programs:
                for size in BATCH_SIZES:
                    done = take_turn(client, program, stack.postgres.url, changes, size)
                    speeds.setdefault((program.name, size), []).append(changes / done["seconds"])
                    say(
                        f"{program.name}, batches of {size:,}: {changes / done['seconds']:,.0f} rows/s, "
                        f"{done['processor_seconds'] / changes * 1e6:.1f} us of its processor a row"
                    )
    medians = {key: statistics.median(found) for key, found in speeds.items()}
    return make_figures(medians)


def take_turn(
    client: Any, program: SyncProgram, postgres: str, changes: int, batch_size: int
) -> dict[str, Any]:
    client.command(f"TRUNCATE TABLE bench.{program.table}")
    program.do("change", changes=changes)
    done = program.do("sync", batch_size=batch_size)
    check(client, program, postgres, changes)
    return done


def check(client: Any, program: SyncProgram, postgres: str, changes: int) -> None:
    """That ClickHouse has what the database has."""
    asked = (
        "SELECT count(*), count(distinct id), sum(id), sum(quantity), sum(total), sum(length(status)) FROM"
    )
    with psycopg.connect(postgres.replace("+psycopg", "")) as connection:
        wanted = connection.execute(f"{asked} {sync_orders.TABLE}").fetchone()
    (found,) = client.query(f"{asked} bench.{program.table} FINAL")
    if [float(one) for one in found] != [float(one) for one in wanted] or wanted[0] != changes:
        raise SystemExit(f"No figures: {program.name} has {found} in ClickHouse, the database {wanted}")


def make_figures(medians: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
    figures = []
    default, large = BATCH_SIZES
    for name, spelled in ((OURS, "sync"), (THEIRS, "django_clickhouse")):
        figures += [
            figure(f"{spelled}_rows_per_s", round(medians[name, default]), "rows/s"),
            figure(f"{spelled}_large_batches_rows_per_s", round(medians[name, large]), "rows/s"),
        ]
    return [
        *figures,
        figure("sync_over_django_clickhouse", medians[OURS, default] / medians[THEIRS, default], "1"),
        figure(
            "sync_over_django_clickhouse_large_batches", medians[OURS, large] / medians[THEIRS, large], "1"
        ),
    ]


def measure_capture(stack: Stack, saves: int) -> list[dict[str, Any]]:
    """In a database of its own: the other one is full of what the comparison left."""
    with psycopg.connect(stack.postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE capture")
    command = [
        sys.executable,
        str(HERE / "sync_capture.py"),
        f"{stack.postgres.url.rpartition('/')[0]}/capture",
    ]
    run = subprocess.run([*command, "--saves", str(saves)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, float]] = json.loads(run.stdout)
    overheads = {name: one["captured_us"] / one["bare_us"] - 1 for name, one in found.items()}
    for name, one in found.items():
        say(f"{name}: {one['bare_us']:.0f} us, captured {one['captured_us']:.0f} us: {overheads[name]:+.1%}")
    return [
        *(figure(f"sync_capture_overhead_{name}", overhead, "1") for name, overhead in overheads.items()),
        figure("sync_capture_overhead", max(overheads.values()), "1"),
    ]


def measure(changes: int = CHANGES, turns: int = TURNS, saves: int = SAVES) -> list[dict[str, Any]]:
    """On servers of its own, which it stops again."""
    with open_servers() as stack:
        load_average = os.getloadavg()[0]
        return [
            *compare_throughput(stack, changes, turns),
            *measure_capture(stack, saves),
            figure("sync_load_average", load_average, "1"),
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--saves", type=int, default=SAVES, help="pairs of saves for the cost of noticing them"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    options = parser.parse_args(arguments)
    figures = measure(options.changes, options.turns, options.saves)
    for one in figures:
        print(f"{one['name']:<44} {one['value']:>12} {one['unit']}")
    write(figures, options.out)


if __name__ == "__main__":
    main()
