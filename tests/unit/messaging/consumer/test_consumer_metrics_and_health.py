"""Metrics, health file, stuck handlers, signals: what operators and probes see of a consumer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pytest

import oncehouse.messaging.consumer as package
from oncehouse.errors import TransientError
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker, MemoryMetrics, read_health
from oncehouse.messaging.consumer.health import Health, HealthFile
from oncehouse.messaging.consumer.metrics import NAMES, NoMetrics

PATIENCE_SECONDS = 30.0


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


def test_every_metric_that_is_written_stands_in_the_list_and_the_other_way_round():
    text = "".join(file.read_text() for file in Path(package.__file__).parent.glob("*.py"))
    written = set(re.findall(r'_metrics\.(?:increment|gauge|timing)\(\s*"([^"]+)"', text))
    assert written == set(NAMES)


def test_metrics_may_go_nowhere():
    nowhere = NoMetrics()
    nowhere.increment("lag")
    nowhere.gauge("lag", 1)
    nowhere.timing("lag", 1)


def test_metrics_and_lag_of_a_run():
    broker, metrics = MemoryBroker({"events": 1}), MemoryMetrics()
    consumer = Consumer(group="g", broker=broker, metrics=metrics)
    consumer.batch("events", size=2)(lambda batch: None)
    for _ in range(4):
        broker.send("events", b"x")
    consumer.run_until_idle()
    assert metrics.counts["records.handled"] == 4
    assert metrics.counts["batches.handled"] == 2
    assert metrics.counts["commits.done"] >= 2
    assert len(metrics.timings["handler.seconds"]) == 2
    assert metrics.gauges["lag", (("partition", 0), ("topic", "events"))] >= 0


def test_a_stuck_handler_is_counted_logged_and_ages_the_health_file(tmp_path, caplog):
    broker, metrics, file = (
        MemoryBroker({"events": 1}, clock=SystemClock()),
        MemoryMetrics(),
        tmp_path / "health",
    )
    consumer = Consumer(group="g", broker=broker, metrics=metrics, health_file=file)
    go = Event()

    @consumer.batch("events", size=1, stuck=0.05)
    def handle(batch: Batch) -> None:
        go.wait(PATIENCE_SECONDS)

    broker.send("events", b"x")
    thread = Thread(target=consumer.run)
    thread.start()
    wait_for(lambda: file.exists() and not json.loads(file.read_text())["healthy"], "the file says it")
    assert metrics.counts["handlers.stuck"] == 1
    assert "is it stuck?" in caplog.text
    (partition,) = consumer.health().partitions
    assert partition.stuck
    assert partition.running_seconds is not None
    go.set()
    wait_for(lambda: json.loads(file.read_text())["healthy"], "the file says that all is well again")
    consumer.stop()
    thread.join(PATIENCE_SECONDS)
    assert json.loads(file.read_text())["state"] == "stopped"


def test_a_health_file_is_written_once_while_something_is_stuck(tmp_path):
    def health(*, healthy: bool, at: float) -> Health:
        return Health(healthy=healthy, state="running", group="g", process=1, written_at=at, partitions=())

    path = tmp_path / "health"
    file = HealthFile(path)
    for at, healthy in enumerate([True, False, False, False]):
        file.write(health(healthy=healthy, at=float(at)))
    assert read_health(path, max_age_seconds=10, now=5).written_at == 1.0
    with pytest.raises(TransientError, match="is 99 s old"):
        read_health(path, max_age_seconds=10, now=100)
    path.write_text("{}")
    with pytest.raises(TransientError, match="has no health of a consumer"):
        read_health(path, max_age_seconds=10, now=5)


def test_a_health_file_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group="g", broker=broker, health_file=tmp_path / "no" / "folder")
    consumer.batch("events")(lambda batch: None)
    broker.send("events", b"x")
    consumer.run_until_idle()
    assert broker.committed("g", "events") == 1
    assert "health file cannot be written" in caplog.text


PROGRAM = """
import time
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Consumer, MemoryBroker

broker = MemoryBroker({"events": 1}, clock=SystemClock())
broker.send("events", b"x")
consumer = Consumer(group="g", broker=broker)

@consumer.batch("events", size=1)
def handle(batch):
    print("handling", flush=True)
    time.sleep(0.5)

consumer.run()
print("committed", broker.committed("g", "events"), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_program_goes_on_to_its_end(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "handling\n"
        program.send_signal(number)
        assert program.stdout.read() == "committed 1\n"
    assert program.returncode == 0
