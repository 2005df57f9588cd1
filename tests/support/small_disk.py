"""A small disk of its own for a test, and something that fills it up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "somebody-else.bin"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, *, but: int = 0) -> None:
        """Take all that is free, but for some bytes."""
        with self._filler.open("ab", buffering=0) as filler, suppress(OSError):
            while self.free_bytes > but:
                filler.write(b"\0" * min(1 << 16, self.free_bytes - but))

    def release(self) -> None:
        self._filler.unlink()


@contextmanager
def mount(folder: Path, *, size_bytes: int) -> Iterator[SmallDisk]:
    """A file system in memory at this folder; only root may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(
            f"a small disk cannot be mounted here: {done.stderr.strip()}; run as root to try full disks"
        )
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: Spark may still be writing its last words there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
