"""The pipeline on real servers, and hands that kill, for the tests of this folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cdc_fixtures import cdc, make_cdc
from live_pipeline_fixtures import cluster_pipeline, live_pipeline, make_pipeline, reader, spark
from oncehouse.devstack.clickhouse import ClickHouseServer
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.subprocesses import descendants, signal_tree
from secure_fixtures import authority, secure_kafka

__all__ = [
    "authority",
    "cdc",
    "cluster_pipeline",
    "live_pipeline",
    "make_cdc",
    "make_pipeline",
    "reader",
    "secure_kafka",
    "spark",
]

_DAEMON = b"-m\0oncehouse.pipeline.spark.worker_daemon\0"


@pytest.fixture
def proxy(clickhouse: ClickHouseServer) -> Iterator[FaultProxy]:
    """Between the pipeline and its ClickHouse once `live_pipeline.document["clickhouse"]["url"]` is the proxy's."""
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        yield proxy


@pytest.fixture
def kill_tree() -> Callable[[int], None]:
    """Kills a process and all that it started: a driver, its JVM and its Python workers."""
    return partial(signal_tree, number=signal.SIGKILL)


@pytest.fixture
def kill_workers() -> Callable[[], int]:
    """Kills Spark's Python workers of this very session; says how many there were."""

    def kill() -> int:
        mine = [pid for pid in descendants(os.getpid()) if _is_worker(pid)]
        for pid in mine:
            os.kill(pid, signal.SIGKILL)
        return len(mine)

    return kill


def _is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
        above = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False
    # The daemon forks the workers: it is the one whose parent is the JVM, and it has to live.
    return _DAEMON in command and _DAEMON in above
