"""What befalls a task of Spark: each function takes a task's work and gives it back with a fault or a defect in it.

They are functions inside of functions, which travel to Spark's workers by value; what they need they import there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[..., Any]


def lose_first_worker(work: Work) -> Work:
    """The worker of the first attempt dies when all is done and nobody has heard of it."""

    def work_and_die(*given):
        import os
        import signal

        from pyspark import TaskContext

        done = work(*given)
        if TaskContext.get().attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return work_and_die


def lose_executor(work: Work, mark: Path) -> Work:
    """So does the whole executor with its Python workers, once; the file says that it did."""
    return _lose(work, mark, b"CoarseGrainedExecutorBackend")


def lose_machine(work: Work, mark: Path) -> Work:
    """So does the machine: Spark's worker process on it, its executors and all their Python workers."""
    return _lose(work, mark, b"deploy.worker.Worker")


def _lose(work: Work, mark: Path, program: bytes) -> Work:
    def work_and_kill(*given):
        import os
        import signal
        from pathlib import Path

        from oncehouse.devstack.subprocesses import signal_tree

        done = work(*given)
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return done
        above = os.getppid()
        while program not in Path(f"/proc/{above}/cmdline").read_bytes():
            above = int(Path(f"/proc/{above}/stat").read_text().rsplit(")", 1)[1].split()[1])
        signal_tree(above, signal.SIGKILL)
        return os.kill(os.getpid(), signal.SIGKILL)

    return work_and_kill


def be_overtaken(work: Work, mark: Path) -> Work:
    """The first task is so slow that Spark runs a copy of it; both do all the work, the copy first.

    Neither ends before both are done: whichever Spark believes, the other has left its traces.
    """

    def work_slowly(*given):
        import time

        from pyspark import TaskContext

        def wait_for(sign):
            end = time.monotonic() + 120
            while not sign.exists():
                assert time.monotonic() < end, f"waited in vain for {sign}"
                time.sleep(0.02)

        begun, copied, late = (mark.with_suffix(f".{name}") for name in ("begun", "copied", "late"))
        if TaskContext.get().attemptNumber() > 0:
            done = work(*given)
            copied.touch()
            wait_for(late)
            return done
        try:
            begun.touch(exist_ok=False)
        except FileExistsError:
            return work(*given)
        wait_for(copied)
        done = work(*given)
        late.touch()
        return done

    return work_slowly


def stop_before_sending(work: Work, folder: Path) -> Work:
    """The worker of the first load task stands still after encoding its rows, until somebody lets it go on.

    Files say which process that is, and what came of it.
    """

    def work_and_stop(plan):
        import os
        import signal

        from oncehouse.clickhouse.insert import insert_batch

        stopped, outcome = folder / "stopped", folder / "outcome"
        try:
            mark = stopped.open("x", encoding="utf-8")
        except FileExistsError:
            return work(plan)
        right = insert_batch.encode

        def encode_and_stop(*given):
            stream = right(*given)
            with mark:
                mark.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            return stream

        insert_batch.encode = encode_and_stop
        try:
            done = work(plan)
        finally:
            insert_batch.encode = right
        outcome.with_suffix(".new").write_text(repr(done), encoding="utf-8")
        outcome.with_suffix(".new").rename(outcome)
        return done

    return work_and_stop
