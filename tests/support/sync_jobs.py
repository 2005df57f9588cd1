"""`sync_job.py` as tests start it, and how they wait for what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.changes.redis_storage import RedisStorage

PATIENCE_SECONDS = 60
SUPPORT = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1] / "src")])}


class Job:
    """`sync_job.py`, which does what it is told and says when it is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, order: str) -> None:
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().split() == order.split()[:1], f"{order} failed"


@contextmanager
def start_job(**given: Any) -> Iterator[Job]:
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "sync_job.py"), json.dumps(given)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Job(process)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


def see_inserts(proxy: FaultProxy, count: int) -> None:
    """Let the syncs come as far as so many inserts."""
    goal, give_up_at = proxy.inserts + count, time.monotonic() + PATIENCE_SECONDS
    while proxy.inserts < goal:
        assert time.monotonic() < give_up_at, "the syncs stand still"
        time.sleep(0.02)


def lose_while_away(
    storage: RedisStorage, writer: Any, sync: str, kind: OperationKind, keys: Sequence[str]
) -> None:
    """The old tool's way in place of `RedisStorage.register`: what Redis does not take is gone."""
    storage._add(writer, sync, kind, keys)
