"""`make demo`: a million events with duplicates through a kill -9 and a lost answer, and nothing lost or doubled.

A private stack is started in a temporary folder and taken down at the end, however it ends. The pipeline runs
as its users run it, through the command line, in processes of its own. The demo ends with exit 0 only when both
mishaps really happened and every event is in ClickHouse once.
"""

from __future__ import annotations

import shutil
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
from demo_results import DemoResult, compare, show_demo
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.devstack.stack import Stack
from oncehouse.devstack.subprocesses import ONCEHOUSE, last_words, spark_settings, start_command
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.pipeline.checks.preflight import open_catalog

EVENTS = 1_000_000
BROKEN = 37
TABLE = "events"

_TOPIC = "events"
_PARTITIONS = 4
# So that there is a half-way: with the default limits a million events would be one epoch.
_EPOCHS_ABOUT = 7
_KILL_AFTER_SHARE = 0.4
_SLOWEST_RUN_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class _DemoRun:
    """What the demo plays on."""

    folder: Path
    stack: Stack
    proxy: FaultProxy
    traffic: DemoTraffic
    say: Callable[[str], None]

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def scratch(self) -> Path:
        """For what a killed process leaves behind: it goes with the folder."""
        return self.folder / "tmp"


def run_demo(
    *,
    events: int = EVENTS,
    broken: int = BROKEN,
    say: Callable[[str], None] = print,
) -> DemoResult:
    with ExitStack() as at_end:
        folder = Path(tempfile.mkdtemp(prefix="oncehouse-demo-"))
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        stack = Stack(folder=folder / "stack")
        at_end.callback(stack.discard)
        say("starting Kafka and ClickHouse")
        stack.up(say=say)
        proxy = at_end.enter_context(FaultProxy(server_port=stack.clickhouse.place.ports["http"]))
        traffic = plan_traffic(events, broken=broken)
        demo_run = _DemoRun(folder=folder, stack=stack, proxy=proxy, traffic=traffic, say=say)
        return _play(demo_run)


def _play(demo_run: _DemoRun) -> DemoResult:
    traffic, say = demo_run.traffic, demo_run.say
    servers = demo_run.stack.kafka.bootstrap_servers
    make_topic(servers, _TOPIC, partitions=_PARTITIONS)
    say(f"producing {len(traffic.first)} events and {traffic.broken} broken records")
    produce(servers, _TOPIC, traffic.first, partitions=_PARTITIONS, broken=traffic.broken)
    demo_run.scratch.mkdir()
    demo_run.file.write_text(_describe_pipeline(demo_run))
    _run_to_end(demo_run, "table", "create", "--yes")
    pipeline = load_pipeline(demo_run.file)
    catalog = open_catalog(pipeline)
    try:
        killed_at = _run_and_kill(demo_run, catalog)
        say(f"sending {len(traffic.resent)} events once more")
        produce(servers, _TOPIC, traffic.resent, partitions=_PARTITIONS)
        say("starting the pipeline again; the answer to its first insert will be lost")
        demo_run.proxy.inject(DropAnswer())
        _run_to_end(demo_run, "run", "--once")
        say("verifying")
        verified = _run(demo_run, "verify") == 0
        client = connect(ClickHouse(url=demo_run.stack.clickhouse.url))
        return _count(demo_run, catalog, client, killed_at=killed_at, verified=verified)
    finally:
        catalog.close()


def _count(
    demo_run: _DemoRun, catalog: Catalog, client: Client, *, killed_at: float, verified: bool
) -> DemoResult:
    traffic, counts = demo_run.traffic, epochs.total_counts(catalog)
    return DemoResult(
        produced=traffic.produced,
        unique=counts.new,
        duplicates=counts.duplicate,
        dead_letters=counts.dead_letter,
        expected=(traffic.unique, traffic.duplicates, traffic.broken),
        found=compare(client, TABLE, traffic),
        events_per_second=traffic.produced / _measure_run_seconds(catalog, killed_at),
        inserts=demo_run.proxy.inserts,
        kills=1,
        answers_swallowed=demo_run.proxy.happened[DropAnswer],
        verified=verified,
    )


def _measure_run_seconds(catalog: Catalog, killed_at: float) -> float:
    """From each run's first epoch to the kill and to the last loaded batch: starts of the JVM are left out."""
    started: dict[int, float] = {}
    for epoch in reversed(epochs.list_epochs(catalog)):
        started.setdefault(epoch.token, epoch.started_at)
    first, *later = sorted(started.values())
    last_loaded = max((batch.loaded_at or 0.0 for batch in batches.list_batches(catalog)), default=0.0)
    return (killed_at - first) + sum(last_loaded - start for start in later[:1])


def _describe_pipeline(demo_run: _DemoRun) -> str:
    described = {
        "pipeline": "demo",
        "source": {
            "kafka": {"bootstrap_servers": demo_run.stack.kafka.bootstrap_servers, "topics": [_TOPIC]},
            "fields": FIELDS,
        },
        "identity": {"fields": list(IDENTITY)},
        "tables": [{"name": TABLE}],
        "clickhouse": {"url": demo_run.proxy.url},
        "ledger": {"catalog": "sqlite:///ledger/catalog.db", "files": "ledger/files"},
        "epoch": {"max_rows": max(1, len(demo_run.traffic.first) // _EPOCHS_ABOUT)},
        "spark": {"settings": spark_settings(connector_jars(), demo_run.scratch)},
    }
    return yaml.safe_dump(described, sort_keys=False)


def _run_and_kill(demo_run: _DemoRun, catalog: Catalog) -> float:
    """Start the pipeline, kill -9 it when it has settled about half of the events, and say when that was."""
    demo_run.say("starting the pipeline")
    half_way = int(len(demo_run.traffic.first) * _KILL_AFTER_SHARE)
    with _start(demo_run, "run") as process:
        deadline = time.monotonic() + _SLOWEST_RUN_SECONDS
        while _settled(demo_run, catalog) < half_way:
            if process.poll() is not None or time.monotonic() > deadline:
                raise PermanentError(
                    f"The pipeline did not get half-way. Its last words:\n{_last_words(demo_run)}"
                )
            time.sleep(0.05)
        process.kill()
        killed_at = time.time()
        process.wait()
    settled = _settled(demo_run, catalog)
    demo_run.say(f"killed it with -9 after {settled} records")
    if settled >= len(demo_run.traffic.first) + demo_run.traffic.broken:
        raise PermanentError("The pipeline was done before it was killed. Run the demo with more --events.")
    return killed_at


def _settled(demo_run: _DemoRun, catalog: Catalog) -> int:
    if not (demo_run.folder / "ledger" / "catalog.db").exists() or not catalog.exists():
        return 0
    return epochs.total_counts(catalog).read


def _run_to_end(demo_run: _DemoRun, *command: str) -> None:
    if exit_code := _run(demo_run, *command):
        output = _last_words(demo_run)
        raise PermanentError(f"`oncehouse {' '.join(command)}` ended with exit {exit_code}:\n{output}")


def _run(demo_run: _DemoRun, *command: str) -> int:
    with _start(demo_run, *command) as process:
        try:
            return process.wait(_SLOWEST_RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PermanentError(
                f"`oncehouse {' '.join(command)}` did not end within {_SLOWEST_RUN_SECONDS:.0f} s. Its last words:\n"
                f"{_last_words(demo_run)}"
            ) from error


def _start(demo_run: _DemoRun, *command: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    words = (*ONCEHOUSE, "--debug", *command, str(demo_run.file))
    _log(demo_run).unlink(missing_ok=True)
    return start_command(words, log=_log(demo_run), scratch=demo_run.scratch)


def _log(demo_run: _DemoRun) -> Path:
    return demo_run.folder / "oncehouse.log"


def _last_words(demo_run: _DemoRun) -> str:
    return last_words(_log(demo_run))


def main(arguments: Sequence[str] | None = None) -> int:
    """`python examples/demo/demo.py [--events N]`."""
    return show_demo(run_demo, arguments, described=__doc__, events=EVENTS)


if __name__ == "__main__":
    sys.exit(main())
