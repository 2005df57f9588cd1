"""Syncs of the shop in processes of their own, for tests that kill them.

`sync_job.py JSON` sets the shop up as the JSON says and then obeys lines on its standard input: `work` forks a process
that runs the syncs over and over, `kill` ends it as kill -9 does, `crash POINT` forks one that has to die at the point,
`drain` runs all syncs until nothing waits. Each line is answered by one. The defects are seeded on purpose.
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
from typing import Any

from sqlalchemy import delete, select

from oncehouse import crash
from oncehouse.sync.engines import Replacing, Rows
from oncehouse.sync.model_sync import ModelSync
from oncehouse.sync.outbox_storage import OutboxStorage
from oncehouse.sync.running import Failure, run_once, run_until_stopped
from oncehouse.sync.tables import operations


def ignore_deletes() -> None:
    """The old tool's first defect."""
    choose_rows = Replacing.choose_rows

    def choose(self: Replacing, reading: Any) -> Rows:
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


DRAIN_SECONDS = 60
DEFECTS: dict[str, Callable[[], None]] = {"ignore_deletes": ignore_deletes, "remove_by_key": remove_by_key}


def work(syncs: list[type[ModelSync]]) -> None:
    run_until_stopped(syncs, threading.Event(), report=lambda _outcome: None)


def drain(syncs: list[type[ModelSync]]) -> None:
    """Until a pass finds nothing left; what is held by the dead waits for their lease."""
    give_up_at = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < give_up_at:
        outcomes = run_once(syncs)
        failed = [one for one in outcomes if isinstance(one, Failure)]
        for one in failed:
            sys.stderr.write(f"{one.sync}: {one.error}\n")
        done = [one for one in outcomes if not isinstance(one, Failure)]
        if not failed and not any(one.operations or one.held_elsewhere for one in done):
            return
        time.sleep(0.2)
    raise SystemExit(f"syncs did not come to rest in {DRAIN_SECONDS} s")


def fork(task: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            task()
        finally:
            os._exit(3)
    return child


def die_at(point: str, task: Callable[[], None]) -> None:
    crash._NAME, _, times = point.partition(":")
    crash._left = int(times or 1)
    task()


def main() -> None:
    given = json.loads(sys.argv[1])
    syncs = importlib.import_module(given.get("world", "sync_world")).configure(given)
    for name in given.get("defects", []):
        DEFECTS[name]()
    child = 0
    for line in sys.stdin:
        order, _, point = line.strip().partition(" ")
        if order == "work":
            child = fork(lambda: work(syncs))
        elif order == "kill":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif order == "crash":
            _, status = os.waitpid(fork(lambda: die_at(point, lambda: drain(syncs))), 0)  # noqa: B023 - forked at once
            assert os.WIFSIGNALED(status), f"{point} was not reached"
        else:
            drain(syncs)
        sys.stdout.write(f"{order}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    # Nothing is tidied up: Django would look for what is gone already.
    os._exit(0)
