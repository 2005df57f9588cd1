"""`make cluster-demo`: a pipeline on a Spark cluster while an executor, a machine and the driver are killed.

Master, two workers, Kafka, ClickHouse, PostgreSQL and an S3 API are started as processes of their own in a temporary
folder and ended again, however it ends. Two drivers run as their users run them: one works, one waits. It ends with
exit 0 only when all three kills happened on the way and every event is in ClickHouse once.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml

from demo_events import FIELDS, IDENTITY, DemoTraffic, make_topic, plan_traffic, produce
from demo_results import Comparison, compare, show_demo
from oncehouse.clickhouse.client import connect
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.spark import CLUSTER
from oncehouse.devstack.stack import Stack
from oncehouse.devstack.subprocesses import (
    ONCEHOUSE,
    descendants,
    last_words,
    signal_tree,
    spark_settings,
    start_command,
)
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.pipeline.checks.preflight import open_catalog

EVENTS = 300_000
TABLE = "events"
_PARTS = ("kafka", "clickhouse", "postgres", "s3", "spark")
_TOPIC = "events"
_PARTITIONS = 4
# Epochs enough that each kill falls into the middle of the work.
_EPOCHS_ABOUT = 15
_SLOWEST_SECONDS = 900.0
_EXECUTOR = b"CoarseGrainedExecutorBackend"


@dataclass(frozen=True, kw_only=True)
class ClusterResult:
    produced: int
    expected_rows: int
    found: Comparison
    executors_killed: int
    machines_killed: int
    drivers_followed: int
    verified: bool

    @property
    def went_well(self) -> bool:
        return (
            self.found.exact
            and self.found.rows == self.expected_rows
            and (self.executors_killed, self.machines_killed, self.drivers_followed) == (1, 1, 1)
            and self.verified
        )

    def lines(self) -> list[str]:
        return [
            f"produced {self.produced}",
            f"rows in ClickHouse {self.found.rows}",
            f"executors killed {self.executors_killed}",
            f"machines killed {self.machines_killed}",
            f"drivers followed {self.drivers_followed}",
            f"verify {'ok' if self.verified else 'failed'}",
            *self.found.lines(),
        ]


@dataclass(frozen=True, kw_only=True)
class _ClusterDemoRun:
    folder: Path
    stack: Stack
    traffic: DemoTraffic
    say: Callable[[str], None]

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str, *command: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        scratch = self.folder / "tmp" / name
        scratch.mkdir(parents=True, exist_ok=True)
        return start_command((*ONCEHOUSE, *command, str(self.file)), log=self.log(name), scratch=scratch)


def run_cluster_demo(*, events: int = EVENTS, say: Callable[[str], None] = print) -> ClusterResult:
    with ExitStack() as at_end:
        folder = Path(tempfile.mkdtemp(prefix="oncehouse-cluster-"))
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        stack = Stack(folder=folder / "stack")
        at_end.callback(stack.discard)
        say("starting Kafka, ClickHouse, PostgreSQL, an S3 API, a Spark master and two workers")
        stack.up(_PARTS, say=say)
        demo_run = _ClusterDemoRun(folder=folder, stack=stack, traffic=plan_traffic(events), say=say)
        return _play(demo_run)


def _play(demo_run: _ClusterDemoRun) -> ClusterResult:
    traffic, servers = demo_run.traffic, demo_run.stack.kafka.bootstrap_servers
    make_topic(servers, _TOPIC, partitions=_PARTITIONS)
    demo_run.say(f"producing {len(traffic.first)} events")
    produce(servers, _TOPIC, traffic.first, partitions=_PARTITIONS)
    demo_run.file.write_text(describe_cluster_pipeline(demo_run.stack, events=len(traffic.first)))
    if not _run(demo_run, "table", "table", "create", "--yes"):
        raise PermanentError("The table could not be made.")
    catalog = open_catalog(load_pipeline(demo_run.file))
    try:
        with demo_run.start("driver-1", "run") as first:
            _await(demo_run, "driver-1", first, lambda: _settled(catalog) > 0)
            demo_run.say("driver 1 works; starting driver 2, which waits")
            with demo_run.start("driver-2", "run") as second:
                _kill_on_the_way(demo_run, catalog, first)
                demo_run.say(f"sending {len(traffic.resent)} events once more")
                produce(servers, _TOPIC, traffic.resent, partitions=_PARTITIONS)
                return _finish(demo_run, catalog, second)
    finally:
        catalog.close()


def _kill_on_the_way(demo_run: _ClusterDemoRun, catalog: Catalog, driver: subprocess.Popen[bytes]) -> None:
    _go_to(demo_run, catalog, driver, 0.2)
    executors = _executors(demo_run.stack, CLUSTER[1])
    if not executors:
        raise PermanentError(f"{CLUSTER[1]} has no executor. Its log is {demo_run.stack.log(CLUSTER[1])}.")
    signal_tree(executors[0], signal.SIGKILL)
    demo_run.say(f"killed an executor with -9 after {_settled(catalog)} records")
    _go_to(demo_run, catalog, driver, 0.4)
    machine = demo_run.stack.process(CLUSTER[2])
    if machine is None:
        raise PermanentError(
            f"{CLUSTER[2]} has ended by itself. Its log is {demo_run.stack.log(CLUSTER[2])}."
        )
    signal_tree(machine.pid, signal.SIGKILL)
    demo_run.say(f"killed a machine with -9, worker and executors, after {_settled(catalog)} records")
    _go_to(demo_run, catalog, driver, 0.6)
    signal_tree(driver.pid, signal.SIGKILL)
    driver.wait()
    settled = _settled(catalog)
    demo_run.say(f"killed driver 1 with -9 after {settled} records")
    if settled >= len(demo_run.traffic.first):
        raise PermanentError("The pipeline was done before all was killed. Run the demo with more --events.")


def _finish(demo_run: _ClusterDemoRun, catalog: Catalog, second: subprocess.Popen[bytes]) -> ClusterResult:
    traffic = demo_run.traffic
    _await(demo_run, "driver-2", second, lambda: _settled(catalog) >= traffic.produced)
    client = connect(ClickHouse(url=demo_run.stack.clickhouse.url))

    def arrived() -> bool:
        ((rows,),) = client.query(f"SELECT count() FROM {TABLE}")
        return int(rows) >= traffic.unique

    _await(demo_run, "driver-2", second, arrived)
    tokens = {lease.token for lease in leases.list_leases(catalog)}
    second.send_signal(signal.SIGTERM)
    ended = second.wait(_SLOWEST_SECONDS)
    demo_run.say("driver 2 took over, finished and was stopped; verifying")
    verified = _run(demo_run, "verify", "verify")
    return ClusterResult(
        produced=traffic.produced,
        expected_rows=traffic.unique,
        found=compare(client, TABLE, traffic),
        executors_killed=1,
        machines_killed=int(demo_run.stack.process(CLUSTER[2]) is None),
        drivers_followed=int(tokens == {2} and ended == 0),
        verified=verified,
    )


def describe_cluster_pipeline(stack: Stack, *, events: int) -> str:
    """The pipeline file: a catalog in PostgreSQL, files in a bucket, tasks on the stack's cluster."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
    }
    described = {
        "pipeline": "demo",
        "source": {
            "kafka": {"bootstrap_servers": stack.kafka.bootstrap_servers, "topics": [_TOPIC]},
            "fields": FIELDS,
        },
        "identity": {"fields": list(IDENTITY)},
        "tables": [{"name": TABLE}],
        "clickhouse": {"url": stack.clickhouse.url},
        "ledger": {"catalog": stack.postgres.url, "files": stack.s3.files("demo")},
        "epoch": {"max_rows": max(1, events // _EPOCHS_ABOUT)},
        "spark": {
            "master": stack.spark_master.url,
            "settings": spark_settings(connector_jars(), stack.folder.parent / "tmp") | settings,
        },
    }
    return yaml.safe_dump(described, sort_keys=False)


def _executors(stack: Stack, worker: str) -> list[int]:
    """Executors of one machine, by pid."""
    machine = stack.process(worker)
    if machine is None:
        return []
    return [pid for pid in descendants(machine.pid) if _is_executor(pid)]


def _is_executor(pid: int) -> bool:
    try:
        return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _settled(catalog: Catalog) -> int:
    return epochs.total_counts(catalog).read if catalog.exists() else 0


def _go_to(
    demo_run: _ClusterDemoRun, catalog: Catalog, driver: subprocess.Popen[bytes], share: float
) -> None:
    wanted = int(len(demo_run.traffic.first) * share)
    _await(demo_run, "driver-1", driver, lambda: _settled(catalog) >= wanted)


def _await(
    demo_run: _ClusterDemoRun, name: str, process: subprocess.Popen[bytes], condition: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + _SLOWEST_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise PermanentError(f"{name} did not go on. Its last words:\n{last_words(demo_run.log(name))}")
        time.sleep(0.05)


def _run(demo_run: _ClusterDemoRun, name: str, *command: str) -> bool:
    with demo_run.start(name, *command) as process:
        if process.wait(_SLOWEST_SECONDS) == 0:
            return True
    demo_run.say(last_words(demo_run.log(name)))
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """`python examples/demo/cluster_demo.py [--events N]`."""
    return show_demo(run_cluster_demo, arguments, described=__doc__, events=EVENTS)


if __name__ == "__main__":
    sys.exit(main())
