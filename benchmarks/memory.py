"""Memory of Spark's Python workers while something runs: the most that any of them had.

What a worker has mapped from files counts apart: the kernel takes those pages back whenever it needs them.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from oncehouse.devstack.subprocesses import python_workers

_SAMPLE_SECONDS = 0.2


def read_status(text: str) -> tuple[float, float]:
    """Own and mapped megabytes (MiB) of a process, out of its /proc/…/status."""
    kilobytes = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in text.splitlines())
        if name in {"RssAnon", "RssShmem", "RssFile"}
    }
    own = kilobytes.get("RssAnon", 0) + kilobytes.get("RssShmem", 0)
    return own / 1024, kilobytes.get("RssFile", 0) / 1024


class WorkerMemory:
    """Looks all the time, from entering to leaving, at the workers of the Spark session of this process."""

    def __init__(self) -> None:
        self.own_mib = self.mapped_mib = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            for pid in python_workers(os.getpid()):
                try:
                    own, mapped = read_status(Path(f"/proc/{pid}/status").read_text())
                except OSError:
                    continue  # ended meanwhile
                self.own_mib, self.mapped_mib = max(self.own_mib, own), max(self.mapped_mib, mapped)
