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

from oncehouse.devstack.chaos.scenario_run import NoFaultError, NotHeldError, Play, freeze, thaw
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
    play: Callable[[Play], None]
    clickhouse: Mapping[str, object] = field(default_factory=dict)


def die(play: Play, *, point: str) -> None:
    play.send(2)
    play.die_at(point)
    play.send()
    play.drain()


def die_in_insert(play: Play, *, fault: Fault) -> None:
    """At once when the fault has befallen an INSERT, whose end the driver does not live to see."""
    proxy = play.ground.proxy
    play.send(2)
    before = proxy.happened[type(fault)]
    proxy.inject(fault)
    with play.start("run") as process:
        play.await_work(process)
        play.wait_until(lambda: proxy.happened[type(fault)] > before, "an INSERT under way")
        process.kill()
        process.wait()
    proxy.take_back()
    play.send()
    play.drain()


def fail_inserts(play: Play, *, fault: Fault, times: int) -> None:
    proxy = play.ground.proxy
    before = proxy.happened[type(fault)]
    play.send(3)
    proxy.inject(fault, times=times)
    try:
        play.drain()
    finally:
        proxy.take_back()
    if proxy.happened[type(fault)] == before:
        raise NoFaultError("no INSERT met the fault")


def freeze_driver(play: Play) -> None:
    play.send()
    with play.start("run") as frozen:
        play.await_work(frozen)
        freeze(frozen)
        play.send(2)
        play.wait_until(lambda: _leases_ran_out(play), "the leases of the frozen driver to run out")
        play.drain()
        before = _state(play)
        thaw(frozen)
        code = play.end_of(frozen)
    if code != _FENCED_EXIT_CODE:
        raise NotHeldError(
            f"the driver that woke up was not fenced but ended with exit {code}: {play.last_line()}"
        )
    if _state(play) != before:
        raise NotHeldError("the driver that woke up has changed the ledger")


def _leases_ran_out(play: Play) -> bool:
    now = play.catalog.now()
    return all(lease.expires_at < now for lease in leases.list_leases(play.catalog))


def _state(play: Play) -> tuple[object, ...]:
    return epochs.list_epochs(play.catalog), batches.list_batches(play.catalog)


def run_two_drivers(play: Play) -> None:
    play.send(2)
    with play.start("run") as first:
        play.await_work(first)
        with play.start("run", "--no-wait", "--once") as second:
            code = play.end_of(second)
        if code != _FENCED_EXIT_CODE:
            raise NotHeldError(
                f"the second driver did not leave with exit {_FENCED_EXIT_CODE} but with {code}"
            )
        play.send()
        play.await_rest(first)


def kill_worker(play: Play) -> None:
    """When ClickHouse has done an INSERT, and the worker that sent it waits for the answer."""
    proxy = play.ground.proxy
    before = proxy.happened[DelayAnswer]

    def kill(process: subprocess.Popen[bytes]) -> None:
        play.wait_until(lambda: proxy.happened[DelayAnswer] > before, "an INSERT that waits for its answer")
        if not sum(_kill(pid) for pid in python_workers(process.pid)):
            raise NoFaultError("all Python workers had gone before they were killed")

    proxy.inject(DelayAnswer(seconds=_HELD_SECONDS))
    _disturb(play, kill)


def _kill(pid: int) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_broker(play: Play) -> None:
    """It is away until the stream has given up, so that reading surely begins anew."""
    stack = play.ground.stack

    def kill(_process: subprocess.Popen[bytes]) -> None:
        stack.kill("kafka")
        try:
            play.wait_until(lambda: "Starting again" in play.said(), "a stream that finds no broker")
        finally:
            stack.start("kafka")

    _disturb(play, kill)


def kill_clickhouse(play: Play) -> None:
    """It is away while events go on to come, so that inserts surely meet its absence."""
    stack = play.ground.stack
    play.send()
    with play.start("run") as process:
        play.await_work(process)
        stack.kill("clickhouse")
        try:
            play.send(2)
            play.wait_until(lambda: _has_failed_attempt(play), "an insert that finds no server")
        finally:
            stack.start("clickhouse")
        play.await_rest(process)


def _has_failed_attempt(play: Play) -> bool:
    return any(
        attempt.outcome not in (None, AttemptOutcome.INSERTED, AttemptOutcome.ALREADY_THERE)
        or batch.attempts > 1
        for batch in batches.list_batches(play.catalog)
        for attempt in batches.list_attempts(play.catalog, batch.batch_id)
    )


def delete_checkpoint(play: Play) -> None:
    def delete(_process: subprocess.Popen[bytes]) -> None:
        folder = Path(play.pipeline.ledger.files) / play.pipeline.pipeline / "checkpoints"
        found = list(folder.iterdir())
        if not found:
            raise NoFaultError(f"there is no checkpoint in {folder}")
        # Spark writes into it meanwhile, so that one try may leave something behind.
        play.wait_until(lambda: not any(_is_left(one) for one in found), "the checkpoint to be gone")

    _disturb(play, delete)


def _is_left(checkpoint: Path) -> bool:
    shutil.rmtree(checkpoint, ignore_errors=True)
    return checkpoint.exists()


def _disturb(play: Play, fault: Callable[[subprocess.Popen[bytes]], None]) -> None:
    """Let a fault happen to a pipeline at work, and send more."""
    play.send()
    with play.start("run") as process:
        play.await_work(process)
        play.send()
        fault(process)
        play.send()
        play.await_rest(process)


def terminate(play: Play) -> None:
    play.send(2)
    with play.start("run") as process:
        play.await_work(process)
        play.end_in_order(process)
    play.send()
    play.drain()


def _killed(point: str, what: str, defect: str) -> Scenario:
    name, _, _ = point.partition(":")
    return Scenario(
        name=f"driver killed, {name}", row=1, what=what, defect=defect, play=partial(die, point=point)
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
        play=partial(die_in_insert, fault=HoldBody()),
    ),
    Scenario(
        name="driver killed before the answer",
        row=1,
        what="kill -9 when ClickHouse has done an INSERT and its answer is on the way",
        defect="token left out",
        play=partial(die_in_insert, fault=DelayAnswer(seconds=_HELD_SECONDS)),
    ),
    Scenario(
        name="answer swallowed",
        row=2,
        what="ClickHouse does an INSERT and its answer never arrives",
        defect="token left out",
        play=partial(fail_inserts, fault=DropAnswer(), times=2),
    ),
    Scenario(
        name="connection cut",
        row=2,
        what="connections end in the middle of an INSERT",
        defect="failures believed",
        play=partial(fail_inserts, fault=CutBody(), times=2),
    ),
    Scenario(
        name="frozen driver wakes up",
        row=4,
        what="SIGSTOP, another driver takes over, SIGCONT: the first is fenced",
        defect="fencing ignored",
        play=freeze_driver,
    ),
    Scenario(
        name="two drivers",
        row=5,
        what="a second driver on the same pipeline leaves, the first goes on",
        defect="fencing ignored",
        play=run_two_drivers,
    ),
    Scenario(
        name="Python worker killed",
        row=6,
        what="kill -9 of Spark's Python workers while one waits for the answer to an INSERT",
        defect="token left out",
        play=kill_worker,
    ),
    Scenario(
        name="broker killed",
        row=7,
        what="kill -9 of Kafka, and its restart when the stream has given up",
        defect="offsets skipped",
        play=kill_broker,
    ),
    Scenario(
        name="ClickHouse answers 5xx",
        row=8,
        what="INSERTs are answered with 503",
        defect="failures believed",
        play=partial(fail_inserts, fault=AnswerError(), times=3),
    ),
    Scenario(
        name="ClickHouse is slow",
        row=8,
        what="answers come after clickhouse.insert_timeout, when nobody waits for them any more",
        defect="token left out",
        play=partial(fail_inserts, fault=DelayAnswer(seconds=_SLOW_SECONDS), times=2),
        clickhouse={"insert_timeout": _INSERT_TIMEOUT_SECONDS},
    ),
    Scenario(
        name="ClickHouse killed",
        row=8,
        what="kill -9 of ClickHouse, inserts that find no server, and its restart",
        defect="failures believed",
        play=kill_clickhouse,
    ),
    Scenario(
        name="checkpoint deleted",
        row=11,
        what="Spark's checkpoint is deleted under a running pipeline",
        defect="offsets skipped",
        play=delete_checkpoint,
    ),
    Scenario(
        name="SIGTERM",
        row=17,
        what="SIGTERM in the middle, and a new start",
        defect="offsets skipped",
        play=terminate,
    ),
)
