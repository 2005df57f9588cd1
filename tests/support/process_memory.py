"""Memory of a run's processes while it lasts: the most that each kind ever had, by the kernel's own book."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from oncehouse.devstack.subprocesses import descendants, python_workers

_SAMPLE_SECONDS = 0.1


def peak_bytes(pid: int | str) -> int:
    """The most that a process ever had in memory, what it maps from files included; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


class Peaks:
    """Of a driver's Python, its Java and its Python workers, in bytes; looks all the time, from entering to leaving."""

    def __init__(self, driver: int) -> None:
        self.driver = self.java = self.worker = 0
        self._pid = driver
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
            self.driver = max(self.driver, peak_bytes(self._pid))
            self.java = max(
                [self.java, *(peak_bytes(pid) for pid in descendants(self._pid) if _is_java(pid))]
            )
            self.worker = max([self.worker, *map(peak_bytes, python_workers(self._pid))])


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java"
    except OSError:
        return False
