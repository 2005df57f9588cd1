"""The faults that are played over a user's pipeline, each with the defect that it was made to notice.

A scenario sends, lets the fault happen, and brings everything to rest; that it really happened is part of it. What must
hold at the end is the same for all (`oracle.py`), and where it is more, the scenario itself demands it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.devstack.chaos.scenario_run import NoFaultError, NotHeldError, ScenarioRun, freeze, thaw
from oncehouse.devstack.proxies.faults import AnswerError, CutBody, DelayAnswer, DropAnswer, Fault, HoldBody
from oncehouse.devstack.subprocesses import python_workers
from oncehouse.ledger.catalog import batches, epochs, leases
from oncehouse.ledger.models import AttemptOutcome

if TYPE_CHECKING:
    import subprocess

_FENCED_EXIT_CODE = 4
_INSERT_TIMEOUT_SECONDS = 2.0
_SLOW_SECONDS = 4.0
# Longer than any client waits: the answer never comes.
_HELD_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    row: int
    """Of the table of faults in docs/chaos.md."""
    what: str
    defect: str
    run: Callable[[ScenarioRun], None]
    clickhouse: Mapping[str, object] = field(default_factory=dict)


def die(run: ScenarioRun, *, point: str) -> None:
    run.send(2)
    run.die_at(point)
    run.send()
    run.drain()


def die_in_insert(run: ScenarioRun, *, fault: Fault) -> None:
    """At once when the fault has befallen an INSERT, whose end the driver does not live to see."""
    proxy = run.environment.proxy
    run.send(2)
    before = proxy.happened[type(fault)]
    proxy.inject(fault)
    with run.start("run") as process:
        run.await_work(process)
        run.wait_until(lambda: proxy.happened[type(fault)] > before, "an INSERT under way")
        process.kill()
        process.wait()
    proxy.take_back()
    run.send()
    run.drain()


def fail_inserts(run: ScenarioRun, *, fault: Fault, times: int) -> None:
    proxy = run.environment.proxy
    before = proxy.happened[type(fault)]
    run.send(3)
    proxy.inject(fault, times=times)
    try:
        run.drain()
    finally:
        proxy.take_back()
    if proxy.happened[type(fault)] == before:
        raise NoFaultError("no INSERT met the fault")


def freeze_driver(run: ScenarioRun) -> None:
    run.send()
    with run.start("run") as frozen:
        run.await_work(frozen)
        freeze(frozen)
        run.send(2)
        run.wait_until(lambda: _leases_ran_out(run), "the leases of the frozen driver to run out")
        run.drain()
        before = _state(run)
        thaw(frozen)
        code = run.end_of(frozen)
    if code != _FENCED_EXIT_CODE:
        raise NotHeldError(
            f"the driver that woke up was not fenced but ended with exit {code}: {run.last_line()}"
        )
    if _state(run) != before:
        raise NotHeldError("the driver that woke up has changed the ledger")


def _leases_ran_out(run: ScenarioRun) -> bool:
    now = run.catalog.now()
    return all(lease.expires_at < now for lease in leases.list_leases(run.catalog))


def _state(run: ScenarioRun) -> tuple[object, ...]:
    return epochs.list_epochs(run.catalog), batches.list_batches(run.catalog)


def run_two_drivers(run: ScenarioRun) -> None:
    run.send(2)
    with run.start("run") as first:
        run.await_work(first)
        with run.start("run", "--no-wait", "--once") as second:
            code = run.end_of(second)
        if code != _FENCED_EXIT_CODE:
            raise NotHeldError(
                f"the second driver did not leave with exit {_FENCED_EXIT_CODE} but with {code}"
            )
        run.send()
        run.await_rest(first)


def kill_worker(run: ScenarioRun) -> None:
    """When ClickHouse has done an INSERT, and the worker that sent it waits for the answer."""
    proxy = run.environment.proxy
    before = proxy.happened[DelayAnswer]

    def kill(process: subprocess.Popen[bytes]) -> None:
        run.wait_until(lambda: proxy.happened[DelayAnswer] > before, "an INSERT that waits for its answer")
        if not sum(_kill(pid) for pid in python_workers(process.pid)):
            raise NoFaultError("all Python workers had gone before they were killed")

    proxy.inject(DelayAnswer(seconds=_HELD_SECONDS))
    _disturb(run, kill)


def _kill(pid: int) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_broker(run: ScenarioRun) -> None:
    """It is away until the stream has given up, so that reading surely begins again."""
    stack = run.environment.stack

    def kill(_process: subprocess.Popen[bytes]) -> None:
        stack.kill("kafka")
        try:
            run.wait_until(lambda: "Starting again" in run.said(), "a stream that finds no broker")
        finally:
            stack.start("kafka")

    _disturb(run, kill)


def kill_clickhouse(run: ScenarioRun) -> None:
    """It is away while events go on to come, so that inserts surely meet its absence."""
    stack = run.environment.stack
    run.send()
    with run.start("run") as process:
        run.await_work(process)
        stack.kill("clickhouse")
        try:
            run.send(2)
            run.wait_until(lambda: _has_failed_attempt(run), "an insert that finds no server")
        finally:
            stack.start("clickhouse")
        run.await_rest(process)


def _has_failed_attempt(run: ScenarioRun) -> bool:
    return any(
        attempt.outcome not in (None, AttemptOutcome.INSERTED, AttemptOutcome.ALREADY_THERE)
        or batch.attempts > 1
        for batch in batches.list_batches(run.catalog)
        for attempt in batches.list_attempts(run.catalog, batch.batch_id)
    )


def delete_checkpoint(run: ScenarioRun) -> None:
    def delete(_process: subprocess.Popen[bytes]) -> None:
        folder = Path(run.pipeline.ledger.files) / run.pipeline.pipeline / "checkpoints"
        found = list(folder.iterdir())
        if not found:
            raise NoFaultError(f"there is no checkpoint in {folder}")
        # Spark writes into it meanwhile, so that one try may leave something behind.
        run.wait_until(lambda: not any(_is_left(one) for one in found), "the checkpoint to be gone")

    _disturb(run, delete)


def _is_left(checkpoint: Path) -> bool:
    shutil.rmtree(checkpoint, ignore_errors=True)
    return checkpoint.exists()


def _disturb(run: ScenarioRun, fault: Callable[[subprocess.Popen[bytes]], None]) -> None:
    """Let a fault happen to a pipeline at work, and send more."""
    run.send()
    with run.start("run") as process:
        run.await_work(process)
        run.send()
        fault(process)
        run.send()
        run.await_rest(process)


def terminate(run: ScenarioRun) -> None:
    run.send(2)
    with run.start("run") as process:
        run.await_work(process)
        run.end_in_order(process)
    run.send()
    run.drain()


def _killed(point: str, what: str, defect: str) -> Scenario:
    name, _, _ = point.partition(":")
    return Scenario(
        name=f"driver killed, {name}", row=1, what=what, defect=defect, run=partial(die, point=point)
    )


SCENARIOS = (
    _killed(
        "parts written:2",
        "kill -9 when an epoch's rows are written and nothing of it is decided",
        "offsets skipped",
    ),
    _killed("before registering:2", "kill -9 when an epoch is decided and not registered", "offsets skipped"),
    _killed("after registering:2", "kill -9 right after an epoch was registered", "unfinished forgotten"),
    _killed("before making batches", "kill -9 when parts are there and no batch", "unfinished forgotten"),
    _killed("after making batches", "kill -9 when a batch is cut and not sent", "unfinished forgotten"),
    _killed(
        "before inserting", "kill -9 when an attempt is written down and not begun", "unfinished forgotten"
    ),
    _killed(
        "after inserting",
        "kill -9 when ClickHouse has the rows and the ledger does not know",
        "token left out",
    ),
    Scenario(
        name="driver killed in the middle of an INSERT",
        row=1,
        what="kill -9 when half of an INSERT's body is sent",
        defect="unfinished forgotten",
        run=partial(die_in_insert, fault=HoldBody()),
    ),
    Scenario(
        name="driver killed before the answer",
        row=1,
        what="kill -9 when ClickHouse has done an INSERT and its answer is on the way",
        defect="token left out",
        run=partial(die_in_insert, fault=DelayAnswer(seconds=_HELD_SECONDS)),
    ),
    Scenario(
        name="answer swallowed",
        row=2,
        what="ClickHouse does an INSERT and its answer never arrives",
        defect="token left out",
        run=partial(fail_inserts, fault=DropAnswer(), times=2),
    ),
    Scenario(
        name="connection cut",
        row=2,
        what="connections end in the middle of an INSERT",
        defect="failures believed",
        run=partial(fail_inserts, fault=CutBody(), times=2),
    ),
    Scenario(
        name="frozen driver wakes up",
        row=4,
        what="SIGSTOP, another driver takes over, SIGCONT: the first is fenced",
        defect="fencing ignored",
        run=freeze_driver,
    ),
    Scenario(
        name="two drivers",
        row=5,
        what="a second driver on the same pipeline leaves, the first goes on",
        defect="fencing ignored",
        run=run_two_drivers,
    ),
    Scenario(
        name="Python worker killed",
        row=6,
        what="kill -9 of Spark's Python workers while one waits for the answer to an INSERT",
        defect="token left out",
        run=kill_worker,
    ),
    Scenario(
        name="broker killed",
        row=7,
        what="kill -9 of Kafka, and its restart when the stream has given up",
        defect="offsets skipped",
        run=kill_broker,
    ),
    Scenario(
        name="ClickHouse answers 5xx",
        row=8,
        what="INSERTs are answered with 503",
        defect="failures believed",
        run=partial(fail_inserts, fault=AnswerError(), times=3),
    ),
    Scenario(
        name="ClickHouse is slow",
        row=8,
        what="answers come after clickhouse.insert_timeout, after the client has given up",
        defect="token left out",
        run=partial(fail_inserts, fault=DelayAnswer(seconds=_SLOW_SECONDS), times=2),
        clickhouse={"insert_timeout": _INSERT_TIMEOUT_SECONDS},
    ),
    Scenario(
        name="ClickHouse killed",
        row=8,
        what="kill -9 of ClickHouse, inserts that find no server, and its restart",
        defect="failures believed",
        run=kill_clickhouse,
    ),
    Scenario(
        name="checkpoint deleted",
        row=11,
        what="Spark's checkpoint is deleted under a running pipeline",
        defect="offsets skipped",
        run=delete_checkpoint,
    ),
    Scenario(
        name="SIGTERM",
        row=17,
        what="SIGTERM in the middle, and a new start",
        defect="offsets skipped",
        run=terminate,
    ),
)
