"""Drivers that are processes of their own: frozen as a whole, and gone when a test ends."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from live_pipeline import wait_until
from oncehouse.common.sqlite_lock import find_holder
from oncehouse.devstack.chaos.scenario_run import freeze
from oncehouse.devstack.subprocesses import descendants, signal_tree


@contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                # One that is frozen would leave a frozen JVM behind.
                signal_tree(process.pid, signal.SIGKILL)
            process.wait()


def state_of(pid: int) -> str:
    """As the kernel calls it: T for a process that was stopped, Z for one that ended."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]


def freeze_whole(driver: subprocess.Popen[str]) -> None:
    """With its JVM and its workers; returns when all of them stand still."""
    freeze(driver)
    wait_until(
        lambda: {state_of(pid) for pid in (driver.pid, *descendants(driver.pid))} <= {"T", "Z"},
        "the driver, its JVM and its workers to stand still",
    )


def freeze_without_lock(process: subprocess.Popen[str], database: Path) -> None:
    """It stands still and keeps nobody from writing to the SQLite file; what it has started goes on."""

    def stands_aside() -> bool:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T", "the process to stand still")
        holder = find_holder(database)
        if holder is None or holder.pid != process.pid:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    wait_until(stands_aside, "the process to stand still without the write lock")
