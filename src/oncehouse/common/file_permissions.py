"""Files and folders for their owner alone, whatever the umask: other users must not read events, ids and catalogs.

Rights are set when a name is made, so that there is no moment in which others could open it. What stands there
already keeps the rights that it has, except in the folder for temporary files: there another user may have
made a folder of our name, and only one that is ours is used.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oncehouse.errors import ConfigurationError

_FOLDER_RIGHTS = 0o700
_FILE_RIGHTS = 0o600
_RIGHTS_OF_OTHERS = 0o077
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it; `parents=True` would leave those above open to others."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=_FOLDER_RIGHTS, exist_ok=True)
        _sync_folder(folder.parent)


def make_private_file(path: Path) -> None:
    """An empty file that a library may then open by name; one that is there already is left as it is.

    It is not even opened: to close a file gives up all POSIX locks that this process has on it, also those that SQLite
    took for another connection. The next process to close the database would then delete the log that is in use.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_RIGHTS))


def open_private(path: Path, *, new: bool) -> int:
    """A descriptor to write with: into a file that must not exist yet, or over an older one of ours."""
    handle = os.open(
        path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | (os.O_EXCL if new else os.O_TRUNC), _FILE_RIGHTS
    )
    os.fchmod(handle, _FILE_RIGHTS)
    return handle


def describe_denied(path: object, error: OSError) -> str:
    """What to do about a file or folder that this user may not use."""
    return (
        f"{path} cannot be used by the user {_user_name()} ({error.strerror or error}). Run as the user that made it, "
        "or give this one the right to read and write it and the folders above it."
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def own_temporary_folder(name: str) -> Path:
    """A folder of this user below the one for temporary files; refused where another user has made it."""
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=_FOLDER_RIGHTS, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigurationError(
            f"{folder} is not a folder of this user alone, so what stands in it cannot be trusted. Remove it, or set "
            "TMPDIR to a folder of your own."
        )
    return folder


@contextmanager
def private_by_default() -> Iterator[None]:
    """For programs that are started inside: what they write by themselves is for its owner too."""
    before = os.umask(_RIGHTS_OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def _sync_folder(folder: Path) -> None:
    # A file's name survives a power cut only if the names of the folders above it do.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
