"""Runs the calls of a failure policy, one after the other for each partition.

A failure policy is guaranteed one call at a time for a partition, and none of its calls may block the poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from oncehouse.messaging.failure_policy import Partition


class Executor(Protocol):
    def submit(self, task: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class PartitionTasks:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = Lock()
        self._waiting: dict[Partition, deque[Callable[[], None]]] = {}

    def submit(self, partition: Partition, task: Callable[[], None]) -> None:
        with self._lock:
            if partition in self._waiting:
                self._waiting[partition].append(task)
                return
            self._waiting[partition] = deque([task])
        self._executor.submit(lambda: self._run(partition))

    def _run(self, partition: Partition) -> None:
        while True:
            with self._lock:
                if not self._waiting[partition]:
                    del self._waiting[partition]
                    return
                task = self._waiting[partition].popleft()
            task()


class InlineExecutor:
    """Tasks wait until `run_one` is called: for tests without threads."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], None]] = deque()

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.append(task)

    def run_one(self) -> bool:
        if not self._tasks:
            return False
        self._tasks.popleft()()
        return True

    def close(self) -> None:
        self._tasks.clear()
