"""The write lock of a SQLite file: waited for aloud, because a process that is frozen keeps it for ever.

SQLite waits in silence and does not say for whom. Linux knows (/proc/locks): the lock is one byte of the file's shared
memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from oncehouse.errors import TransientError

REPORT_SECONDS = 5.0
WAIT_SECONDS = 60.0
"""How long one transaction waits for another one's end."""
# Of the file's shared memory, since SQLite has write-ahead logs: part of its file format.
_WRITE_LOCK_BYTE = 120
_STOPPED = {"T", "t"}


class LockedError(TransientError):
    """Waiting has taken its time already: it is not to be repeated at once."""


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    pid: int
    name: str
    stopped: bool
    """By SIGSTOP or a debugger: it does nothing until it is let go on."""


class LockWait:
    """The waits of one process for the write lock of one file; safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        *,
        wait_seconds: float = WAIT_SECONDS,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """`report` is called once with the lock's holder, and once when it is free; without it the error names it."""
        self._path = path
        self._wait_seconds = wait_seconds
        self._report = report
        self._lock = threading.Lock()
        self._reported_at: float | None = None

    def acquire(self, try_for: Callable[[float], bool]) -> None:
        """`try_for` waits so many seconds for the lock; raises LockedError after `wait_seconds`."""
        began = time.monotonic()
        while not try_for(min(REPORT_SECONDS, self._wait_seconds)):
            waited = time.monotonic() - began
            holder = find_holder(self._path)
            if waited >= self._wait_seconds:
                raise LockedError(
                    f"{_describe(self._path, holder)} for {waited:.0f} s. Nothing was written. {_advise(holder)}"
                )
            if holder is None or holder.pid != os.getpid():
                self._report_locked(began, holder)
        self._report_free()

    def _report_locked(self, began: float, holder: LockHolder | None) -> None:
        with self._lock:
            if self._report is not None and self._reported_at is None:
                self._reported_at = began
                self._report(
                    f"{_describe(self._path, holder)}: nothing can be written, and no process can take over, before it "
                    f"is free. {_advise(holder)} Waiting."
                )

    def _report_free(self) -> None:
        if self._reported_at is None:
            return
        with self._lock:
            if self._report is not None and self._reported_at is not None:
                seconds, self._reported_at = time.monotonic() - self._reported_at, None
                self._report(f"The database {self._path} is not locked any more, after {seconds:.0f} s.")


def find_holder(path: Path, *, locks: Path = Path("/proc/locks")) -> LockHolder | None:
    """Who has the write lock; None where this machine does not say."""
    try:
        inode = path.with_name(f"{path.name}-shm").stat().st_ino
        pid = find_pid(locks.read_text(encoding="ascii").splitlines(), inode)
        if pid is None:
            return None
        name, _, rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        )
    except (OSError, UnicodeDecodeError):
        return None
    return LockHolder(pid=pid, name=name, stopped=rest.split()[0] in _STOPPED)


def find_pid(lines: Iterable[str], inode: int) -> int | None:
    """Of lines such as `8: POSIX  ADVISORY  WRITE 21816 fe:00:9977895 120 120`; those that wait have an arrow."""
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, place, first, last] if place.rpartition(":")[2] == str(inode):
                covers = int(first) <= _WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= _WRITE_LOCK_BYTE)
                # A process of another namespace has no number here.
                if covers and int(pid) > 0:
                    return int(pid)
    return None


def _describe(path: Path, holder: LockHolder | None) -> str:
    if holder is None:
        return f"The database {path} is locked by another process"
    state = ", which is stopped" if holder.stopped else ""
    return f"The database {path} is locked by process {holder.pid} ({holder.name}){state}"


def _advise(holder: LockHolder | None) -> str:
    undone = "what it has not committed is undone"
    if holder is None:
        return f"Find out which one uses it, and wait for it or end it: {undone}."
    if holder.stopped:
        return f"`kill -CONT {holder.pid}` lets it go on, `kill -KILL {holder.pid}` ends it: {undone}."
    return f"Wait for it, or end it: {undone}."
