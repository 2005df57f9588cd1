"""Copies, on this machine's disk, of files in a bucket: no more than a bound, and the least recently used go.

The folder is shared by all processes of a user, on an executor by all its Python workers. A copy is named by its
checksum and complete under its name. Room is reserved before a copy is fetched, so that several processes that fetch at
once keep the bound together. A thread holds a lock on the copy it was handed last, so that none is taken away before it
was opened; locks end with their process, and half copies with the next one fetched. Only what is held may exceed the
bound.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from oncehouse.common.file_permissions import own_temporary_folder
from oncehouse.config.field_types import parse_size
from oncehouse.errors import ConfigurationError

BYTES_VARIABLE = "ONCEHOUSE_CACHE_BYTES"
"""The environment variable that sets a machine's bound."""
DEFAULT_BYTES = 10 << 30

_LOCK = ".lock"
_HALF = ".half-"
# Callers open a copy as soon as they have its path, before they ask for the next one.
_last_handed = threading.local()


class _Copy(NamedTuple):
    used_at: int
    path: str
    size_bytes: int


class FileCache:
    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def find(self, checksum: str, size_bytes: int) -> Path | None:
        """A copy that was kept, now the most recently used; one that was cut since is thrown away."""
        path = self.folder / checksum
        try:
            copy = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(copy, fcntl.LOCK_SH)
        found = os.fstat(copy)
        if found.st_nlink and found.st_size == size_bytes:
            os.utime(copy)
            _last_handed.copy = _Held(copy)
            return path
        os.close(copy)
        if found.st_nlink:
            self.drop(checksum)
        return None

    def add(self, checksum: str, size_bytes: int, fetch: Callable[[BinaryIO], None]) -> Path:
        """Let `fetch` fill a copy and keep it under its name; whatever it raises, no half copy stays."""
        _last_handed.copy = None
        half = self._reserve(size_bytes)
        try:
            with os.fdopen(os.dup(half.handle), "wb") as target:
                fetch(target)
            return self._name(half, checksum, size_bytes)
        finally:
            Path(half.path).unlink(missing_ok=True)
            os.close(half.handle)

    def _name(self, half: _Half, checksum: str, size_bytes: int) -> Path:
        path = self.folder / checksum
        while True:
            try:
                path.hardlink_to(half.path)
            except FileExistsError:
                # Another process was quicker, and no thread here holds its copy yet.
                if found := self.find(checksum, size_bytes):
                    return found
            else:
                _last_handed.copy = _Held(os.dup(half.handle))
                return path

    def drop(self, checksum: str) -> None:
        (self.folder / checksum).unlink(missing_ok=True)

    def _reserve(self, size_bytes: int) -> _Half:
        """An empty copy that counts with its full size from now on."""
        with (self.folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._free_space(size_bytes)
            handle, path = tempfile.mkstemp(prefix=_HALF, dir=self.folder)
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.truncate(handle, size_bytes)
        return _Half(handle, path)

    def _free_space(self, size_bytes: int) -> None:
        copies = self._list_copies()
        excess = sum(copy.size_bytes for copy in copies) + size_bytes - self._max_bytes
        for copy in sorted(copies):
            # Half copies that no process fills any more go whether or not there is room.
            half = Path(copy.path).name.startswith(_HALF)
            if (excess > 0 or half) and _remove_unused(copy.path):
                excess -= copy.size_bytes

    def _list_copies(self) -> list[_Copy]:
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name == _LOCK:
                    continue
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    copies.append(_Copy(found.st_mtime_ns, entry.path, found.st_size))
        return copies


class _Half(NamedTuple):
    handle: int
    path: str


class _Held:
    """An open copy with a lock on it, until the thread is handed another or ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __del__(self) -> None:
        os.close(self._handle)


def machine_cache() -> FileCache:
    """The cache of this user on this machine."""
    return FileCache(own_temporary_folder(f"oncehouse-cache-{os.getuid()}"), _read_max_bytes())


def _read_max_bytes() -> int:
    setting = os.environ.get(BYTES_VARIABLE, "")
    try:
        size = parse_size(setting) if setting and not setting.isdecimal() else int(setting or DEFAULT_BYTES)
    except ValueError as error:
        raise ConfigurationError(f"{BYTES_VARIABLE}: {error}") from error
    assert isinstance(size, int)  # noqa: S101 - `parse_size` gives back what is no text as it is
    return size


def _remove_unused(path: str) -> bool:
    """Whether the copy is gone: one that a reader was just given, or fills, stays."""
    try:
        copy = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        Path(path).unlink(missing_ok=True)
        return True
    finally:
        os.close(copy)
