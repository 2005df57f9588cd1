"""A process that takes the write lock of a SQLite file and is frozen with it, until it is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_by_frozen_process(
    path: Path, *, keep_readers_out: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """It has the lock, and is stopped, from the beginning of the block on."""
    mode = "EXCLUSIVE" if keep_readers_out else "NORMAL"
    process = subprocess.Popen([sys.executable, __file__, str(path), mode])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        yield process
    finally:
        process.kill()
        process.wait()


def lock_and_freeze(path: str, locking_mode: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute(f"PRAGMA locking_mode={locking_mode}")
    connection.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    lock_and_freeze(*sys.argv[1:])
