"""Syncs of the shop in processes of their own, for tests that kill them.

`sync_job.py JSON` sets the shop up as the JSON says and then obeys lines on its standard input: `work` forks a process
that runs the syncs over and over, `kill` ends it as kill -9 does, `crash POINT` forks one that has to die at the point,
`drain` runs all syncs until nothing waits; `fill`, `kill_fill` and `crash_fill POINT` do the same with a backfill, and
`join_fill` waits for its end. Each line is answered by one. The defects are seeded on purpose.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select

from oncehouse.common import failpoints
from oncehouse.messaging.bucket_leases import BucketLeases
from oncehouse.sync import state
from oncehouse.sync.backfill import backfill
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.model.engines import EngineRows, KeyReading, Replacing
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.rounds import lease
from oncehouse.sync.rounds.lease import SyncLease
from oncehouse.sync.rounds.runner import FailedRun, run_once, run_until_stopped
from oncehouse.sync.tables import operations


def ignore_deletes() -> None:
    """The old tool's first defect."""
    choose_rows = Replacing.choose_rows

    def choose(self: Replacing, reading: Any) -> EngineRows:
        return choose_rows(self, type(reading)(number=reading.number, present=reading.present, absent={}))

    Replacing.choose_rows = choose  # type: ignore[method-assign]


def remove_by_key() -> None:
    """What a storage does that knows an operation by its key: the change during the sync goes with the older one."""

    def remove(_self: OutboxStorage, engine: Any, sync: str, ids: Any) -> None:
        with engine.execution_options(oncehouse_writes=True).begin() as connection:
            keys = select(operations.c.key).where(operations.c.id.in_([int(one) for one in ids]))
            connection.execute(
                delete(operations).where(operations.c.sync == sync, operations.c.key.in_(keys))
            )

    OutboxStorage.remove = remove  # type: ignore[method-assign]


def number_after_reading() -> None:
    """A chunk that takes its number when it has read, and does not look whether the lease is still its own."""
    read_chunk = backfill._read_chunk

    def read(sync: type[ModelSync], number: int, keys: list[str]) -> KeyReading:
        reading = read_chunk(sync, number, keys)
        with sync.open_source().begin() as connection:
            return replace(reading, number=state.take_reading(connection, sync.declaration().name))

    backfill._read_chunk = read
    SyncLease.fence = lambda _self, _connection: None  # type: ignore[method-assign]


def hang_after_reading(flag: Path) -> None:
    """While the file is there a chunk does not go on, once it has read; it says so by another file."""
    read_chunk = backfill._read_chunk

    def read(sync: type[ModelSync], number: int, keys: list[str]) -> KeyReading:
        reading = read_chunk(sync, number, keys)
        give_up_at = time.monotonic() + DRAIN_SECONDS
        while flag.exists() and time.monotonic() < give_up_at:
            flag.with_suffix(".hangs").touch()
            time.sleep(0.02)
        return reading

    backfill._read_chunk = read


def never_free() -> None:
    """A lock that does not run out: whoever is killed holds it for good."""

    class Lock(BucketLeases):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "lease_seconds": 1e9})

    lease.BucketLeases = Lock  # type: ignore[misc]


DRAIN_SECONDS = 60
DEFECTS: dict[str, Callable[[], None]] = {
    "ignore_deletes": ignore_deletes,
    "remove_by_key": remove_by_key,
    "number_after_reading": number_after_reading,
    "never_free": never_free,
}


def work(syncs: list[type[ModelSync]]) -> None:
    run_until_stopped(syncs, threading.Event(), report=lambda _outcome: None)


def drain(syncs: list[type[ModelSync]]) -> None:
    """Until a pass finds nothing left; what is held by the dead waits for their lease.

    A slow machine may need long for a backlog: it is given up only when no fewer operations wait than before.
    """
    fewest, give_up_at = sys.maxsize, time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < give_up_at:
        outcomes = run_once(syncs)
        failed = [one for one in outcomes if isinstance(one, FailedRun)]
        for one in failed:
            sys.stderr.write(f"{one.sync}: {one.error}\n")
        done = [one for one in outcomes if not isinstance(one, FailedRun)]
        if not failed and not any(one.operations or one.held_elsewhere for one in done):
            return
        waiting = count_waiting(syncs)
        if waiting < fewest:
            fewest, give_up_at = waiting, time.monotonic() + DRAIN_SECONDS
        time.sleep(0.2)
    raise SystemExit(f"syncs did not come to rest: {fewest} operations waited for {DRAIN_SECONDS} s; {done}")


def count_waiting(syncs: list[type[ModelSync]]) -> int:
    waiting = 0
    for sync in syncs:
        with sync.open_source().connect() as connection:
            waiting += sync.get_storage().measure(connection, sync.declaration().name).count
    return waiting


def fill(syncs: list[type[ModelSync]], chunk: int) -> None:
    """Backfill all of them, from where they were left."""
    for sync in syncs:
        backfill.backfill(sync, chunk=chunk)


def fork(task: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            task()
            os._exit(0)
        finally:
            os._exit(3)
    return child


def die_at(point: str, task: Callable[[], None]) -> None:
    failpoints._NAME, _, times = point.partition(":")
    failpoints._left = int(times or 1)
    task()


def main() -> None:
    given = json.loads(sys.argv[1])
    syncs = importlib.import_module(given.get("module", "synced_shop")).configure(given)
    if "hang" in given:
        hang_after_reading(Path(given["hang"]))
    for name in given.get("defects", []):
        DEFECTS[name]()
    chunk = given.get("chunk", 20)
    children: dict[str, int] = {}
    orders: dict[str, Callable[[str], None]] = {
        "work": lambda _point: children.update(work=fork(lambda: work(syncs))),
        "kill": lambda _point: end(children["work"]),
        "crash": lambda point: crash_at(point, lambda: drain(syncs)),
        "drain": lambda _point: drain(syncs),
        "fill": lambda _point: children.update(fill=fork(lambda: fill(syncs, chunk))),
        "kill_fill": lambda _point: end(children["fill"]),
        "crash_fill": lambda point: crash_at(point, lambda: fill(syncs, chunk)),
        "join_fill": lambda _point: join(children["fill"]),
    }
    try:
        for line in sys.stdin:
            order, _, point = line.strip().partition(" ")
            orders[order](point)
            sys.stdout.write(f"{order}\n")
            sys.stdout.flush()
    finally:
        for child in children.values():
            with suppress(ProcessLookupError, ChildProcessError):  # most have ended
                end(child)


def join(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0, "the backfill failed"


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def crash_at(point: str, task: Callable[[], None]) -> None:
    _, status = os.waitpid(fork(lambda: die_at(point, task)), 0)
    assert os.WIFSIGNALED(status), f"{point} was not reached"


if __name__ == "__main__":
    main()
    # Nothing is tidied up: Django would look for what is gone already.
    os._exit(0)
