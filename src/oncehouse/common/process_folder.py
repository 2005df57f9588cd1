"""A folder for the temporary files of one process, which outlives the process only until the next one starts.

A process that is killed removes nothing. So each one has a folder of its own below one folder of its user, and holds a
lock on it for life; a process that makes its folder first removes those whose lock is free. A program that it has
started, Spark's Java above all, may outlive it for a moment and is named the folder on its command line or in its
environment: while such a process lives, the folder stays too. Folders of other machines, where they share the folder of
the user, are left alone: locks and processes are those of one machine.
"""

from __future__ import annotations

import atexit
import fcntl
import glob
import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oncehouse.common.file_permissions import own_temporary_folder
from oncehouse.errors import ConfigurationError

_guard = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    pid: int
    path: Path
    lock: int

    def is_ours(self) -> bool:
        """Not of the process that has forked this one, nor removed by a program that cleans temporary files."""
        return self.pid == os.getpid() and self.path.is_dir()

    def remove(self) -> None:
        if self.pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)


_claim: _Claim | None = None


def process_folder() -> Path:
    """The folder of this process, made when it is first asked for and removed when the process ends."""
    global _claim  # noqa: PLW0603 - there is one of them in a process
    with _guard:
        if _claim is None or not _claim.is_ours():
            root = own_temporary_folder(f"oncehouse-scratch-{os.getuid()}")
            _sweep(root)
            _claim = _make_folder(root)
            atexit.register(_claim.remove)
        return _claim.path


def _make_folder(root: Path) -> _Claim:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_machine()}{os.getpid()}-", dir=root))
        # Another process may take it for a remainder before it is locked, and remove it.
        with suppress(FileNotFoundError):
            lock = _open_folder(path)
            _lock(lock, root)
            if os.fstat(lock).st_nlink:
                return _Claim(pid=os.getpid(), path=path, lock=lock)
            os.close(lock)


def _machine() -> str:
    """How the names of this machine's folders begin."""
    return f"{socket.gethostname() or 'localhost'}-".replace("/", "_")


def _lock(folder: int, root: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError as error:
        raise ConfigurationError(
            f"{root} is on a file system without locks ({error.strerror}); let TMPDIR name a folder on a disk of this "
            "machine"
        ) from None


def _sweep(root: Path) -> None:
    """Remove the folders of processes that have ended, if no program that they have started still lives."""
    for path in root.glob(f"{glob.escape(_machine())}*"):
        with suppress(OSError):
            lock = _open_folder(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_named(path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_named(folder: Path) -> bool:
    name = os.fsencode(folder)
    return any(name in _read_start(process) for process in Path("/proc").glob("[0-9]*"))


def _read_start(process: Path) -> bytes:
    """How a process was started: its command line, and its environment where this user may read it."""
    found = b""
    for part in ("cmdline", "environ"):
        with suppress(OSError):
            found += (process / part).read_bytes()
    return found
