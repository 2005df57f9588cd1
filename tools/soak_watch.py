"""What every process of a soak takes: memory and open files, by kind, from /proc.

A process belongs to the root that the soak has started and is told apart below it by its command line. Java and
Python of one stage are kinds of their own, because they are bounded by different things.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import psutil

from soak_bounds import Bound, Sample
from soak_cast import STAGES, Cast

DRIVER_HEAP_MB = 768
EXECUTOR_HEAP_MB = 640
_DAEMON_HEAP_MB = 256
_BROKER_HEAP_MB = 512

BOUNDS = {
    **{kind: Bound(megabytes=600, files=200) for kind in STAGES.values()},
    **{
        f"{kind} java": Bound(megabytes=DRIVER_HEAP_MB + 450, files=600, heap_megabytes=DRIVER_HEAP_MB)
        for kind in STAGES.values()
    },
    "executor": Bound(megabytes=EXECUTOR_HEAP_MB + 450, files=500, heap_megabytes=EXECUTOR_HEAP_MB),
    "python worker": Bound(megabytes=1200, files=150),
    "spark master": Bound(megabytes=_DAEMON_HEAP_MB + 250, files=500, heap_megabytes=_DAEMON_HEAP_MB),
    "spark worker": Bound(megabytes=_DAEMON_HEAP_MB + 250, files=500, heap_megabytes=_DAEMON_HEAP_MB),
    "broker": Bound(megabytes=_BROKER_HEAP_MB + 700, files=1000, heap_megabytes=_BROKER_HEAP_MB, growth=1.5),
    "clickhouse": Bound(megabytes=6000, files=4000, growth=1.5),
}
"""Stated beforehand: for Java the heap that it is given and what it needs beside it. Servers that are not ours may
take more as their data grows, within their ceiling."""

_SERVERS = {"kafka": "broker", "clickhouse": "clickhouse"}
# As a program: Java processes carry the same name among their settings.
_WORKER_PROGRAM = ("-m", "oncehouse.pipeline.spark.worker_daemon")


class Watch:
    """Samples of all processes, gathered as the run goes on."""

    def __init__(self, cast: Cast, started: float) -> None:
        self._cast = cast
        self._started = started
        self._kinds: dict[tuple[int, float], str] = {}
        self.samples: list[Sample] = []
        self.latest: dict[str, list[Sample]] = {}

    def sample(self) -> None:
        latest: dict[str, list[Sample]] = {}
        now = time.time()
        seconds = time.monotonic() - self._started
        for process, kind in self._processes():
            try:
                with process.oneshot():
                    megabytes = process.memory_info().rss / 1e6
                    age = now - process.create_time()
                files = process.num_fds()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            sample = Sample(
                seconds=seconds, kind=kind, pid=process.pid, age_seconds=age, megabytes=megabytes, files=files
            )
            if megabytes:  # a process that is ending has none left
                latest.setdefault(kind, []).append(sample)
        self.latest = latest
        self.samples += [sample for found in latest.values() for sample in found]

    def pids(self, kind: str) -> list[int]:
        """Those alive right now."""
        return [process.pid for process, found in self._processes() if found == kind]

    def workers(self) -> list[int]:
        """Python workers that a daemon has forked: a daemon's own parent is an executor."""
        daemons = set()
        found = []
        for process, kind in self._processes():
            if kind == "python worker":
                daemons.add(process.pid)
                found.append(process)
        return [process.pid for process in found if _parent(process) in daemons]

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        roots = {one.pid: one.kind for one in self._cast.supervised.values()}
        roots |= {self._cast.server_pid(part): kind for part, kind in _SERVERS.items()}
        for pid, kind in roots.items():
            if pid is None:
                continue
            try:
                root = psutil.Process(pid)
                below = root.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            yield root, kind
            for child in below:
                if (found := self._kind_below(child, kind)) is not None:
                    yield child, found

    def _kind_below(self, process: psutil.Process, root: str) -> str | None:
        try:
            key = (process.pid, process.create_time())
            if key not in self._kinds:
                words = process.cmdline()
                # Between its fork and its exec a process still has its parent's name.
                if (found := classify(words, root)) is not None:
                    self._kinds[key] = found
                return found
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        return self._kinds[key]


def classify(words: list[str], root: str) -> str | None:
    """The kind of a process below a root; None for what only passes by, such as a shell."""
    if not words:
        return None
    if words[0].endswith("java"):
        classes = [word.rpartition(".")[2] for word in words]
        if "CoarseGrainedExecutorBackend" in classes:
            return "executor"
        # Spark's launcher is named after what it launches, and gone at once.
        is_driver = "SparkSubmit" in classes and "org.apache.spark.launcher.Main" not in words
        return f"{root} java" if is_driver and root in STAGES.values() else None
    return "python worker" if _WORKER_PROGRAM in pairwise(words) else None


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0
