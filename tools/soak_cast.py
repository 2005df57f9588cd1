"""The processes of a soak as their users run them: servers, a Spark cluster, and one process a stage.

Each stage is `oncehouse run pipeline.yaml --only …` in a session of its own, started again by a supervisor whenever it
has ended; the Spark master and its workers are processes too, so that executors can be killed by themselves.
Everything is known by the pid that started it, and ends with `close`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from oncehouse.devstack.java import spark_jars_folder
from oncehouse.devstack.stack import Stack
from oncehouse.devstack.state import choose_free_port
from oncehouse.errors import OncehouseError

WORKERS = 2
STAGES = {"ingest": "driver", "load": "loader", "retention": "retention"}
"""Stages of a pipeline, and what the soak calls the process of each."""

_CORES_OF_A_WORKER = 3
_DAEMON_MEMORY = "256m"
_POLL_SECONDS = 0.2
# A stage that ended by itself, because a server was away at its start, say, is not started in a hot loop.
_PAUSE_SECONDS = 1.0
_END_SECONDS = 120.0
_SERVER_STARTS = 5


@dataclass(kw_only=True)
class Ended:
    """A process that ended though nobody here had killed it."""

    kind: str
    code: int
    last_line: str


@dataclass(kw_only=True)
class Supervised:
    """A command that runs; `life` counts its starts."""

    kind: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    life: int = 0
    started_at: float = 0.0
    killed_by_us: bool = False
    restarts: bool = True
    ended: list[Ended] = field(default_factory=list)
    left_alone: list[int] = field(default_factory=list)
    """Sessions whose Python process was killed by itself: their Java has to end without help."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        self.killed_by_us = False
        self.life += 1
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def restart_ended(self) -> None:
        """Reap what has ended, note why, and start it again."""
        if self.process is None or self.process.poll() is None or not self.restarts:
            return
        if self.killed_by_us:
            self.left_alone.append(self.process.pid)
        else:
            self.ended.append(Ended(kind=self.kind, code=self.process.returncode, last_line=self.last_line()))
            time.sleep(_PAUSE_SECONDS)
            self._end_group()
        self.start()

    def kill(self, part: str = "whole") -> bool:
        """The whole session at once, or its Python or its Java process; False if there was nobody to kill."""
        pid = self.pid
        if pid is None:
            return False
        java = [child.pid for child in _children(pid) if _word(child, 0).endswith("java")]
        if part == "java" and not java:
            return False
        self.killed_by_us = True
        if part == "whole":
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(java[0] if part == "java" else pid, signal.SIGKILL)
        return True

    def stop(self) -> int:
        """Ask it to end, as a supervisor does, and give back its exit code."""
        self.restarts = False
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.close()
            return -signal.SIGKILL

    def orphans(self) -> list[int]:
        """Sessions of former lives in which something is still alive."""
        return [group for group in self.left_alone if _is_alive(group)]

    def close(self) -> None:
        self.restarts = False
        self._end_group()
        for group in self.orphans():
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _end_group(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Cast:
    """All processes of one soak."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.stack = Stack(folder=folder / "stack")
        self.scratch = folder / "tmp"
        self.master_port = 0
        self.supervised: dict[str, Supervised] = {}
        self._say = say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._servers_away: set[str] = set()

    def __enter__(self) -> Self:
        self.scratch.mkdir()
        self._say("starting Kafka and ClickHouse")
        self.stack.up(say=self._say)
        self._say("starting a Spark cluster")
        self._start_cluster()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in reversed(list(self.supervised.values())):
            one.close()
        self.stack.down()

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.master_port}"

    def _start_cluster(self) -> None:
        self.master_port = choose_free_port([])
        home = spark_jars_folder().parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "PYSPARK_PYTHON": sys.executable,
            # An application whose executors are killed again and again is still a sound one.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=60 "
            "-Dspark.worker.cleanup.appDataTtl=120",
        }
        spark_class = str(home / "bin" / "spark-class")
        package = "org.apache.spark.deploy"
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = [spark_class, f"{package}.master.Master", *place, "--port", str(self.master_port)]
        self._run("spark master", "spark master", master, environment)
        for number in range(WORKERS):
            size = ["--cores", str(_CORES_OF_A_WORKER), "--memory", "4g"]
            work = ["--work-dir", str(self.folder / f"work-{number}")]
            worker = [spark_class, f"{package}.worker.Worker", self.master, *place, *size, *work]
            self._run(f"spark worker {number}", "spark worker", worker, environment)

    def start_stages(self, files: Mapping[str, Path]) -> None:
        for stage, kind in STAGES.items():
            self._run(kind, kind, [*oncehouse("run", "--only", stage), str(files[stage])], self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """Of a command of oncehouse: what a killed process leaves behind goes with the folder."""
        return {"TMPDIR": str(self.scratch), "SPARK_LOCAL_IP": "127.0.0.1"}

    def run_to_end(self, *command: str) -> tuple[int, str]:
        """A command of oncehouse: exit code, and what it said."""
        done = subprocess.run(
            oncehouse(*command),
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def server_pid(self, part: str) -> int | None:
        if part in self._servers_away:
            return None
        process = self.stack.process(part)
        return process.pid if process else None

    def kill_server(self, part: str, down_seconds: float) -> int | None:
        """Kill it, say who it was, and let it come back after a while; returns at once."""
        process = self.stack.process(part)
        if process is None:
            return None
        self._servers_away.add(part)
        # By its pid: the stack's own way would wait for another server that is being started.
        os.kill(process.pid, signal.SIGKILL)

        def bring_back() -> None:
            time.sleep(down_seconds)
            for _ in range(_SERVER_STARTS):
                try:
                    self.stack.start(part)
                except OncehouseError as error:
                    self._say(f"{part} does not start: {error}")
                    continue
                self._servers_away.discard(part)
                return

        threading.Thread(target=bring_back, name=f"back-{part}", daemon=True).start()
        return process.pid

    @property
    def is_whole(self) -> bool:
        return not self._servers_away and all(one.pid is not None for one in self.supervised.values())

    def _run(self, name: str, kind: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        one = Supervised(kind=kind, command=command, environment=environment, log=log)
        one.start()
        self.supervised[name] = one

    def _supervise(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            for one in list(self.supervised.values()):
                one.restart_ended()


def oncehouse(*words: str) -> list[str]:
    """A command of oncehouse under this very Python."""
    return [sys.executable, "-c", "from oncehouse.cli.app import main; main()", *words]


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _word(process: psutil.Process, number: int) -> str:
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
    return words[number] if len(words) > number else ""
