"""Handlers in processes of their own: what dies there is a failed attempt, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from consumer_handlers import die_once, sleep_for_long, terminate_itself
from oncehouse.common.backoff import Backoff
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker, MemoryMetrics, process_workers
from oncehouse.messaging.consumer.partition_tasks import InlineExecutor
from oncehouse.messaging.consumer.process_workers import ProcessWorkers, _Worker, describe_exit
from oncehouse.messaging.consumer.workers import CancelFlag, HandlerJob
from oncehouse.messaging.retries.retry_topics import DeadLetterTopic

QUICKLY = Backoff(base_seconds=0.01, longest_seconds=0.01)
PATIENCE_SECONDS = 60.0


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


def test_a_handler_that_dies_fails_its_attempt_and_the_consumer_goes_on(tmp_path, caplog):
    broker = MemoryBroker({"events": 4}, clock=SystemClock())
    metrics = MemoryMetrics()
    consumer = Consumer(group="g", broker=broker, metrics=metrics)
    consumer.batch("events", size=2, isolation="process", backoff=QUICKLY, concurrency=1)(die_once)
    hows = ("kill", "exit", "transient", "local")
    for partition, how in enumerate(hows):
        (tmp_path / how).mkdir()
        for value in (str(tmp_path / how), how):
            broker.send("events", value.encode(), partition=partition)
    thread = Thread(target=consumer.run)
    thread.start()
    wait_for(lambda: [broker.committed("g", "events", at) for at in range(4)] == [2] * 4, "all batches")
    consumer.stop()
    thread.join(PATIENCE_SECONDS)
    for partition, how in enumerate(hows):
        lines = (tmp_path / how / "attempts").read_text().splitlines()
        assert lines == [f"{attempt} events/{partition}/0-1 [0, 1]" for attempt in (1, 2)]
    assert metrics.counts["batches.failed"] == 4
    said = caplog.text
    assert "ended with signal SIGKILL" in said
    assert "ended with exit code 3" in said
    assert "TransientError: from the process" in said
    assert "LocalError: from the process" in said


def test_a_process_that_is_over_time_is_killed(tmp_path):
    broker = MemoryBroker({"events": 1}, clock=SystemClock())
    consumer = Consumer(group="g", broker=broker, drain=0.1)
    consumer.batch("events", size=1, isolation="process")(sleep_for_long)
    broker.send("events", str(tmp_path).encode())
    thread = Thread(target=consumer.run)
    thread.start()
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text() != "", "the handler")
    consumer.stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    wait_for(lambda: not Path(f"/proc/{pid.read_text()}").exists(), "the end of its process")
    assert broker.committed("g", "events") == 0


def test_handlers_that_a_process_cannot_have_are_refused(caplog):
    broker = MemoryBroker({"events": 1}, clock=SystemClock())
    consumer = Consumer(group="g", broker=broker)

    async def handle(batch: Batch) -> None: ...

    with pytest.raises(ConfigurationError, match="takes plain handlers"):
        consumer.batch("events", isolation="process")(handle)
    consumer.batch("events", size=1, isolation="process")(lambda batch: None)
    broker.send("events", b"1")
    thread = Thread(target=consumer.run)
    thread.start()
    wait_for(lambda: "imported by name" in caplog.text, "the advice")
    consumer.stop()
    thread.join(PATIENCE_SECONDS)


def test_exits_are_told_in_words():
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(3) == "exit code 3"


def test_a_term_signal_to_the_whole_group_of_processes_is_the_consumers_to_judge(tmp_path):
    broker = MemoryBroker({"events": 1}, clock=SystemClock())
    consumer = Consumer(group="g", broker=broker)
    consumer.batch("events", size=1, attempts=1, isolation="process", retries=DeadLetterTopic())(
        terminate_itself
    )
    broker.send("events", str(tmp_path).encode())
    thread = Thread(target=consumer.run)
    thread.start()
    wait_for(lambda: broker.committed("g", "events") == 1, "the batch")
    consumer.stop()
    thread.join(PATIENCE_SECONDS)
    assert (tmp_path / "done").exists()
    assert broker.messages("events.dlq") == []


ENDS_AT_ONCE = """
import sys, threading, time
from pathlib import Path
from consumer_handlers import sleep_for_long
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Consumer, MemoryBroker

if __name__ == "__main__":
    broker = MemoryBroker({"events": 1}, clock=SystemClock())
    consumer = Consumer(group="g", broker=broker)
    consumer.batch("events", size=1, isolation="process")(sleep_for_long)
    broker.send("events", sys.argv[1].encode())
    threading.Thread(target=consumer.run, daemon=True).start()
    while not (Path(sys.argv[1]) / "pid").exists():
        time.sleep(0.01)
"""


def test_a_program_that_ends_without_a_stop_waits_for_no_handler(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ENDS_AT_ONCE)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])
    done = subprocess.run(
        [sys.executable, program, tmp_path],
        env=os.environ | {"PYTHONPATH": paths},
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0


class Process:
    """A process that may have ended."""

    def __init__(self, *, alive: bool) -> None:
        self.alive, self.killed = alive, False

    def is_alive(self) -> bool:
        return self.alive

    def kill(self) -> None:
        self.killed = True

    def join(self, seconds: float) -> None:
        pass


class Pipe:
    def close(self) -> None:
        pass


def test_a_process_that_ended_while_idle_is_not_given_the_next_batch():
    workers = ProcessWorkers(executor=InlineExecutor())
    living, dead = (_Worker(process=Process(alive=alive), pipe=Pipe()) for alive in (True, False))
    workers._idle += [living, dead]
    assert workers._pop_living() is living
    assert workers._pop_living() is None


def test_a_batch_that_is_cancelled_while_its_process_starts_is_killed(monkeypatch):
    workers, started = (
        ProcessWorkers(executor=InlineExecutor()),
        _Worker(process=Process(alive=True), pipe=Pipe()),
    )
    job = HandlerJob(ticket=None, handler=print, batch=None, done=print, flag=CancelFlag())

    def start(handler: object) -> _Worker:
        workers.cancel(job)
        return started

    monkeypatch.setattr(process_workers, "_start", start)
    assert workers._accept_records(job) is started
    assert started.process.killed
