"""What the shops' `run.py` have in common: servers of their own, a sync beside the traffic, the dashboard twice.

PostgreSQL, Redis and ClickHouse are those of the dev stack, on free ports and in a temporary folder; nothing of them,
and no process, outlives the command, however it ends. A run ends with 0 only when each query of the dashboard
shows in ClickHouse what the same question shows in PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

import psycopg

from oncehouse import ConfigurationError, OncehouseError, PermanentError
from oncehouse.clickhouse.client import connect
from oncehouse.config import ClickHouse
from oncehouse.devstack.stack import Stack
from oncehouse.devstack.subprocesses import ONCEHOUSE, last_words

DATABASE = "shop"
PATIENCE_SECONDS = 120
INTERRUPTED_EXIT_CODE = 130
FIGURES = 2
"""The last columns of every query: how many orders, and what they brought in."""

Say = Callable[[str], None]
Words = tuple[str, ...]
Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A folder with a program, and the commands with which its user would run it there."""

    folder: Path
    prepare: tuple[Words, ...]
    sync: Words
    traffic: Words
    status: Words
    packages: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def main(shop: Shop) -> int:
    parser = argparse.ArgumentParser(
        description=f"{shop.folder.name}, from empty servers to equal dashboards."
    )
    parser.add_argument("--changes", type=int, default=1000, help="how many changes (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="other changes (%(default)s)")
    parser.add_argument("--stay", action="store_true", help="leave servers and sync running until Ctrl-C")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also where a shell that started us in the background has Ctrl-C ignored.
        signal.signal(number, signal.default_int_handler)
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", flush=True)

    try:
        check_packages(shop)
        with start_servers(say) as environment, open_log() as log:
            stage = Stage(shop=shop, environment={**environment, **shop.environment}, log=log, say=say)
            return play(stage, changes=asked.changes, seed=asked.seed, stay=asked.stay)
    except OncehouseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; everything is stopped", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE


def check_packages(shop: Shop) -> None:
    if missing := [name for name in shop.packages if find_spec(name) is None]:
        raise ConfigurationError(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}. Run `make shops`, or first: "
            f"pip install 'oncehouse[{','.join((*shop.packages, 'sync', 'dev-stack'))}]'"
        )


@contextmanager
def start_servers(say: Say) -> Iterator[dict[str, str]]:
    """The addresses, as variables that the shops read."""
    stack = Stack(folder=Path(tempfile.mkdtemp(prefix="oncehouse-shop-")))
    try:
        say("starting PostgreSQL, Redis and ClickHouse")
        stack.up(["postgres", "redis", "clickhouse"])
        environment = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(stack.postgres.place.ports["postgres"]),
            "PGUSER": "postgres",
            "PGDATABASE": DATABASE,
            "REDIS_PORT": str(stack.redis.place.ports["redis"]),
            "CLICKHOUSE_URL": stack.clickhouse.url,
        }
        make_databases(environment)
        yield environment
    finally:
        # Whoever is impatient must not keep the servers from being stopped.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stack.discard()


def make_databases(environment: Mapping[str, str]) -> None:
    with connect_postgres({**environment, "PGDATABASE": "postgres"}) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    connect(ClickHouse(url=environment["CLICKHOUSE_URL"])).command(f"CREATE DATABASE {DATABASE}")


def connect_postgres(environment: Mapping[str, str]) -> psycopg.Connection[Row]:
    return psycopg.connect(
        host=environment["PGHOST"],
        port=environment["PGPORT"],
        user=environment["PGUSER"],
        dbname=environment["PGDATABASE"],
        autocommit=True,
    )


@contextmanager
def open_log() -> Iterator[Path]:
    """Where the programs say what nobody reads while all is well."""
    with tempfile.TemporaryDirectory(prefix="oncehouse-shop-log-") as folder:
        yield Path(folder) / "log"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A shop with its servers."""

    shop: Shop
    environment: Mapping[str, str]
    log: Path
    say: Say


def play(stage: Stage, *, changes: int, seed: int, stay: bool = False) -> int:
    """Make the tables, let traffic and sync run side by side until nothing waits, and show the dashboard."""
    for words in stage.shop.prepare:
        stage.say(show(words))
        run_to_end(stage, words)
    stage.say(show(stage.shop.sync) + " &")
    with start(stage, stage.shop.sync) as sync:
        traffic = (*stage.shop.traffic, "--changes", str(changes), "--seed", str(seed))
        stage.say(show(traffic))
        run_to_end(stage, traffic, say_line=lambda line: stage.say(f"  {line}"))
        await_rest(stage, sync)
        wrong = show_dashboard(stage)
        if stay:
            wait_for_interrupt(stage, sync)
    return 1 if wrong else 0


def await_rest(stage: Stage, sync: subprocess.Popen[str]) -> None:
    """Until every change is in ClickHouse: an operation is removed only after its row was accepted there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    told: set[str] = set()
    while True:
        answer = run_to_end(stage, stage.shop.status)
        syncs = json.loads(answer)["syncs"]
        if all(one["waiting"] == 0 for one in syncs):
            break
        for error in {one["last_error"] for one in syncs if one["last_error"]} - told:
            stage.say(f"still waiting: {error}")
            told.add(error)
        if sync.poll() is not None or time.monotonic() > deadline:
            waiting = ", ".join(f"{one['sync']} {one['waiting']}" for one in syncs)
            raise PermanentError(
                f"There are still changes that are not in ClickHouse: {waiting}. "
                f"The last words of the sync:\n{last_words(stage.log)}"
            )
        time.sleep(0.3)
    rows = ", ".join(f"{one['sync']} {one['rows_synced']:,}" for one in syncs)
    stage.say(f"nothing waits any more; rows synced: {rows}")


def wait_for_interrupt(stage: Stage, sync: subprocess.Popen[str]) -> None:
    print(f"\nServers and sync run until Ctrl-C. In another terminal, in {stage.shop.folder}:\n")
    changed = {name: value for name, value in stage.environment.items() if os.environ.get(name) != value}
    print(f"export {' '.join(f'{name}={value}' for name, value in changed.items())}", flush=True)
    with suppress(KeyboardInterrupt):
        if sync.wait() != 0:
            raise PermanentError(f"The sync ended. Its last words:\n{last_words(stage.log)}")


def run_to_end(stage: Stage, words: Words, say_line: Say | None = None) -> str:
    """What the command printed; each line is told at once, if somebody wants to hear."""
    heard = []
    with start(stage, words, stdout=subprocess.PIPE) as process:
        for line in process.stdout or ():
            heard.append(line)
            if say_line is not None:
                say_line(line.rstrip())
        if process.wait() != 0:
            raise PermanentError(
                f"`{show(words)}` ended with exit {process.returncode}:\n{last_words(stage.log)}"
            )
    return "".join(heard)


@contextmanager
def start(stage: Stage, words: Words, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command in the shop's folder, which a Ctrl-C reaches only through us; it is ended with the block."""
    with stage.log.open("a") as log:
        process = subprocess.Popen(
            words,
            cwd=stage.shop.folder,
            env={**os.environ, **stage.environment},
            stdin=subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def show(words: Words) -> str:
    """As a person would type it."""
    typed = ("oncehouse", *words[len(ONCEHOUSE) :]) if words[: len(ONCEHOUSE)] == ONCEHOUSE else words
    return " ".join("python" if word == sys.executable else word for word in typed)


def show_dashboard(stage: Stage) -> int:
    """Every query with its answers from both databases; in how many rows they differ."""
    wrong = 0
    for file in sorted(stage.shop.folder.glob("dashboard/*.clickhouse.sql")):
        query = file.read_text()
        here = ask_clickhouse(stage.environment, query)
        names, there = ask_postgres(
            stage.environment, file.with_name(file.name.replace("clickhouse", "postgres"))
        )
        print("", indent(query, "    "), *compare_answers(names, here, there), sep="\n", flush=True)
        wrong += count_differences(here, there)
        if not here:
            raise PermanentError(f"{file.name} shows no rows, so there is nothing to compare")
    print("\nequal" if not wrong else f"\n{wrong} rows differ: ClickHouse does not show what PostgreSQL has")
    return wrong


def ask_clickhouse(environment: Mapping[str, str], query: str) -> list[Row]:
    return connect(ClickHouse(url=f"{environment['CLICKHOUSE_URL']}/{DATABASE}")).query(query)


def ask_postgres(environment: Mapping[str, str], file: Path) -> tuple[list[str], list[Row]]:
    with connect_postgres(environment) as connection, connection.cursor() as cursor:
        cursor.execute(file.read_text().encode())
        return [column.name for column in cursor.description or ()], cursor.fetchall()


def count_differences(here: Sequence[Row], there: Sequence[Row]) -> int:
    return sum(ours != theirs for _, ours, theirs in pair_rows(here, there))


def pair_rows(here: Sequence[Row], there: Sequence[Row]) -> list[tuple[Row, Row | None, Row | None]]:
    """What a row is about, and its figures from both sides."""
    ours, theirs = ({row[:-FIGURES]: row[-FIGURES:] for row in rows} for rows in (here, there))
    return [(key, ours.get(key), theirs.get(key)) for key in sorted(ours.keys() | theirs.keys())]


def compare_answers(names: Sequence[str], here: Sequence[Row], there: Sequence[Row]) -> list[str]:
    """A table of both answers, with a mark at what differs."""
    absent = ("-",) * FIGURES
    keys, figures = names[:-FIGURES], names[-FIGURES:]
    table = [(*keys, *figures, *figures, "")]
    for key, ours, theirs in pair_rows(here, there):
        shown = [
            f"{value:,}" if value != "-" else value for value in (*(ours or absent), *(theirs or absent))
        ]
        table.append((*map(str, key), *shown, "" if ours == theirs else "<- differs"))
    widths = [max(len(row[at]) for row in table) for at in range(len(names) + FIGURES)]
    left = sum(width + 2 for width in widths[: len(keys)])
    middle = sum(width + 2 for width in widths[len(keys) : len(names)])
    return [f"{'':{left}}{'ClickHouse':{middle}}PostgreSQL"] + [
        "  ".join(
            f"{cell:<{width}}" if at < len(keys) else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, [*widths, 0], strict=True))
        ).rstrip()
        for row in table
    ]
