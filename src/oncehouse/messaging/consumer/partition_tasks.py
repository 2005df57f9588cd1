"""What is done for a partition beside its handler: asking the Aside, putting aside, settling. One after the other.

An Aside is promised one call at a time for a partition, and none of its calls may hold up the poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from oncehouse.messaging.failure_policy import Partition


class Submitter(Protocol):
    def submit(self, errand: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class Lanes:
    def __init__(self, crew: Submitter) -> None:
        self._crew = crew
        self._lock = Lock()
        self._waiting: dict[Partition, deque[Callable[[], None]]] = {}

    def submit(self, partition: Partition, errand: Callable[[], None]) -> None:
        with self._lock:
            if partition in self._waiting:
                self._waiting[partition].append(errand)
                return
            self._waiting[partition] = deque([errand])
        self._crew.submit(lambda: self._run(partition))

    def _run(self, partition: Partition) -> None:
        while True:
            with self._lock:
                if not self._waiting[partition]:
                    del self._waiting[partition]
                    return
                errand = self._waiting[partition].popleft()
            errand()


class InlineCrew:
    """Errands wait until somebody runs them: tests without threads, each step in its place."""

    def __init__(self) -> None:
        self._errands: deque[Callable[[], None]] = deque()

    def submit(self, errand: Callable[[], None]) -> None:
        self._errands.append(errand)

    def run_one(self) -> bool:
        if not self._errands:
            return False
        self._errands.popleft()()
        return True

    def close(self) -> None:
        self._errands.clear()
