"""The ledger's files: written once, never changed, named by the catalog together with size and checksum (marks apart).

A folder on this machine or a bucket behind an S3 API. Names carry fencing token and attempt, so two writers
never meet; what the catalog does not name may be swept. Reading hands out a local path: in a folder the file
itself, for a bucket a copy (`file_cache.py`) known by its checksum, never stale because files never change.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

from oncehouse.common.file_permissions import describe_denied, make_private_file, make_private_folder
from oncehouse.common.process_folder import process_folder
from oncehouse.common.redaction import hide_credentials
from oncehouse.errors import (
    ConfigurationError,
    CorruptFileError,
    FullDiskError,
    OncehouseError,
    TransientError,
)
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.checksums import (
    BLOCK_BYTES,
    checksum,
    checksum_like,
    digest_like,
    read_blocks,
)
from oncehouse.ledger.storage.file_cache import machine_cache

REPAIR_ADVICE = "`oncehouse repair --plan` lists all damaged files and from what each can be made again."

# A disk that is full, and a user whose share of it is.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

# Files that this process has read whole; files never change, so once is enough.
_checked: set[tuple[Path, str]] = set()


class FileStore:
    """Picklable: only the root travels to Spark's workers."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._shown = hide_credentials(root)
        self._remote = "://" in root and not root.startswith("file://")
        if not self._remote:
            self._folder = Path(root.removeprefix("file://"))

    def put(self, path: str, write: Callable[[str], object]) -> FileRef:
        """Let `write` fill a local file, make it durable, and return what the catalog has to remember."""
        if self._remote:
            return self._upload(path, write)
        target = self._folder / path
        try:
            make_private_folder(target.parent)
            make_private_file(target)
            write(str(target))
            ref = FileRef(path=path, size_bytes=target.stat().st_size, checksum=checksum(target))
            _sync(target)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise self._wrapped(error, path) from error
        return ref

    def compared(self, ref: FileRef) -> Path:
        """Like `local`, but every byte is compared with the checksum."""
        path = self.local(ref)
        if (found := checksum_like(ref.checksum, path)) == ref.checksum:
            return path
        if not self._remote:
            raise _mismatch(ref, found)
        # The bytes changed on this machine: the file itself, if it is sound, is fetched again and compared.
        machine_cache().drop(ref.checksum)
        return self.local(ref)

    def checked(self, ref: FileRef) -> Path:
        """Like `compared`, once a process and file."""
        path = self.local(ref)
        if (path, ref.checksum) not in _checked:
            path = self.compared(ref)
            _checked.add((path, ref.checksum))
        return path

    def local(self, ref: FileRef) -> Path:
        """A readable local path of a registered file, to be opened before the next is asked for.

        Its size is checked, its bytes by `verify`.
        """
        path = self._cached(ref) if self._remote else self._folder / ref.path
        _require_size(ref, self._shown, self._readable_size(path))
        return path

    def _readable_size(self, path: Path) -> int | None:
        """Opened for it, because libraries that read it later have words of their own for a file that they may not."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(error, str(path)) from error
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def open(self, ref: FileRef) -> pa.NativeFile:
        """For reading a little of a large file: of a remote one no copy is made."""
        if not self._remote:
            return pa.memory_map(str(self.local(ref)))
        filesystem, prefix = self._filesystem()
        return filesystem.open_input_file(f"{prefix}/{ref.path}")

    def read_bytes(self, path: str) -> bytes:
        """All of a small file that the catalog does not name."""
        try:
            if not self._remote:
                return (self._folder / path).read_bytes()
            filesystem, prefix = self._filesystem()
            with filesystem.open_input_stream(f"{prefix}/{path}") as source:
                return bytes(source.readall())
        except OSError as error:
            raise _unreachable(error, f"{self._shown}/{path}") from error

    def modified_at(self, path: str) -> float | None:
        """When a file was last written, on the clock of where it lies; None where it is gone or that is not known."""
        try:
            if not self._remote:
                return (self._folder / path).stat().st_mtime
            filesystem, prefix = self._filesystem()
            modified = filesystem.get_file_info(f"{prefix}/{path}").mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(error, f"{self._shown}/{path}") from error
        return None if modified is None else modified / 1e9

    def inspect(self, ref: FileRef) -> None:
        """Whether the file is there in its full size; nothing is read. Raises CorruptFileError."""
        if not self._remote:
            self.local(ref)
            return
        filesystem, prefix = self._filesystem()
        info = filesystem.get_file_info(f"{prefix}/{ref.path}")
        _require_size(ref, self._shown, info.size if info.is_file else None)

    def verify(self, ref: FileRef) -> None:
        """Compare every byte with the checksum, where the file lies and not in a cache; raises CorruptFileError."""
        self.inspect(ref)
        if self._remote:
            digest = digest_like(ref.checksum)
            with self.open(ref) as source:
                for block in read_blocks(source):
                    digest.update(block)
            found = digest.hexdigest()
        else:
            found = checksum_like(ref.checksum, self.local(ref))
        if found != ref.checksum:
            raise _mismatch(ref, found)

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file that the catalog does not name, whole or not at all, over the one before it."""
        try:
            if self._remote:
                filesystem, prefix = self._filesystem()
                with filesystem.open_output_stream(f"{prefix}/{path}") as stream:
                    stream.write(content)
                return
            target = self._folder / path
            # Its age, for the sweep that finds it if this process is killed here.
            new = target.with_name(f".{target.name}-{int(time.time())}-{uuid.uuid4().hex}")
            make_private_folder(target.parent)
            make_private_file(new)
            try:
                new.write_bytes(content)
                _fsync(new)
                new.replace(target)
            except OSError:
                new.unlink(missing_ok=True)
                raise
            _fsync(target.parent)
        except OSError as error:
            raise self._wrapped(error, path) from error

    def delete(self, path: str) -> None:
        try:
            if self._remote:
                filesystem, prefix = self._filesystem()
                filesystem.delete_file(f"{prefix}/{path}")
            else:
                (self._folder / path).unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unreachable(error, f"{self._shown}/{path}") from error

    def walk(self, prefix: str) -> Iterable[str]:
        """Paths of all files below a prefix, registered or not."""
        if not self._remote:
            # Folders may vanish while they are walked; os.walk passes over those.
            return sorted(
                os.path.relpath(Path(folder) / name, self._folder)
                for folder, _, names in os.walk(self._folder / prefix, onerror=_refuse_denied)
                for name in names
            )
        filesystem, root = self._filesystem()
        selector = fs.FileSelector(f"{root}/{prefix}", recursive=True, allow_not_found=True)
        try:
            found = filesystem.get_file_info(selector)
        except OSError as error:
            raise _unreachable(error, f"{self._shown}/{prefix}") from error
        return sorted(info.path.removeprefix(f"{root}/") for info in found if info.is_file)

    def check(self) -> None:
        """Raise ConfigurationError unless files can be written here."""
        try:
            name = f".writable-{uuid.uuid4().hex}"
            self.delete(self.put(name, lambda path: Path(path).write_bytes(b"")).path)
        except FullDiskError:
            raise
        except (OSError, TransientError) as error:
            raise ConfigurationError(
                f"ledger.files: nothing can be written under {self._shown}: {error}"
            ) from error

    def _filesystem(self) -> tuple[fs.FileSystem, str]:
        try:
            filesystem, prefix = fs.FileSystem.from_uri(self.root)
        except (ValueError, OSError) as error:
            raise ConfigurationError(f"ledger.files: {self._shown!r} cannot be opened: {error}") from error
        return filesystem, prefix.rstrip("/")

    def _upload(self, path: str, write: Callable[[str], object]) -> FileRef:
        filesystem, prefix = self._filesystem()
        with tempfile.TemporaryDirectory(prefix="upload-", dir=process_folder()) as folder:
            local = Path(folder) / "file"
            try:
                write(str(local))
                ref = FileRef(path=path, size_bytes=local.stat().st_size, checksum=checksum(local))
                with local.open("rb") as source, filesystem.open_output_stream(f"{prefix}/{path}") as target:
                    shutil.copyfileobj(source, target, BLOCK_BYTES)
            except OSError as error:
                raise self._wrapped(error, path, near=folder) from error
        return ref

    def _cached(self, ref: FileRef) -> Path:
        cache = machine_cache()
        if kept := cache.find(ref.checksum, ref.size_bytes):
            return kept
        try:
            return cache.add(ref.checksum, ref.size_bytes, lambda target: self._download(ref, target))
        except OSError as error:
            raise self._wrapped(error, ref.path, near=str(cache.folder)) from error

    def _download(self, ref: FileRef, target: BinaryIO) -> None:
        filesystem, prefix = self._filesystem()
        digest = digest_like(ref.checksum)
        try:
            source = filesystem.open_input_stream(f"{prefix}/{ref.path}")
        except FileNotFoundError as error:
            raise _missing(ref, self._shown) from error
        with source:
            for block in read_blocks(source):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != ref.checksum:
            raise _mismatch(ref, digest.hexdigest())

    def _wrapped(self, error: OSError, path: str, *, near: str | None = None) -> TransientError:
        """`near`: the folder of this machine in which a copy stands on its way to or from a bucket."""
        if error.errno in NO_SPACE:
            # The folder and not the file, whose name differs with each try: each text is reported once.
            return FullDiskError(
                f"No space is left for the ledger's files under {self._shown if near is None else Path(near).parent}. "
                "Nothing is lost: free some space there, and the pipeline goes on from where the ledger ends."
            )
        return TransientError(f"The ledger's file {self._shown}/{path} cannot be written: {error}")


def _require_size(ref: FileRef, root: str, size: int | None) -> None:
    if size is None:
        raise _missing(ref, root)
    if size != ref.size_bytes:
        raise CorruptFileError(
            f"The ledger's file {ref.path} has {size} bytes, the catalog knows {ref.size_bytes}: it was cut "
            f"or overwritten. {REPAIR_ADVICE}"
        )


def _missing(ref: FileRef, root: str) -> CorruptFileError:
    return CorruptFileError(f"The ledger's file {ref.path} is missing under {root}. {REPAIR_ADVICE}")


def _sync(path: Path) -> None:
    # The catalog may name a file only once its bytes would survive a power cut, and so would its name.
    _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mismatch(ref: FileRef, found: str) -> CorruptFileError:
    return CorruptFileError(
        f"The ledger's file {ref.path} does not match its checksum (catalog {ref.checksum}, file {found}): some "
        f"bytes have changed. {REPAIR_ADVICE}"
    )


def _refuse_denied(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise _unreachable(error, str(error.filename)) from error


def _unreachable(error: OSError, where: str) -> OncehouseError:
    if isinstance(error, PermissionError):
        return ConfigurationError(f"ledger.files: {describe_denied(where, error)}")
    return TransientError(f"The ledger's files under {where} cannot be reached: {error}")
