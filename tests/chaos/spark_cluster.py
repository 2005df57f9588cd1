"""A Spark cluster on this machine: a master and two workers, each on a loopback address of its own.

Spark runs the second copy of a slow task on another host only, so the workers have to differ by their address. Every
process is started and ended here, with what it started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import psutil
import pyspark

from oncehouse.devstack.java import find_java

_JARS = Path(pyspark.__file__).with_name("jars")
_SCALA = next(_JARS.glob("spark-core_*.jar")).name.split("_")[1].split("-")[0]
_HOSTS = ("127.0.0.1", "127.0.0.2")
_PATIENCE_SECONDS = 120.0


class SparkCluster:
    """Two workers of two cores: a task and its copy may run while another task and its copy do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._web_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            ports = ("--port", str(self._port), "--webui-port", str(self._web_port))
            self._start("master.Master", "--host", "127.0.0.1", *ports)
            self._wait_for_workers(0)
            for host in _HOSTS:
                place = ("--host", host, "--webui-port", "0", "--work-dir", str(self._folder / host))
                self._start("worker.Worker", *place, "--cores", "2", "--memory", "1g", self.url)
            self._wait_for_workers(len(_HOSTS))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self, what: str, *arguments: str) -> None:
        command = [
            find_java(),
            "-Xmx256m",
            "-cp",
            f"{_JARS}/*",
            f"org.apache.spark.deploy.{what}",
            *arguments,
        ]
        with (self._folder / "cluster.log").open("ab") as log:
            # What Spark's own scripts would set, for the executors that a worker starts.
            home = {"SPARK_HOME": str(_JARS.parent), "SPARK_SCALA_VERSION": _SCALA}
            self._processes.append(
                subprocess.Popen(
                    command, env=os.environ | home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def _wait_for_workers(self, workers: int) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while self._workers() < workers:
            assert time.monotonic() < end, (self._folder / "cluster.log").read_text()[-2000:]
            time.sleep(0.1)

    def _workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError):
            return -1

    def _end(self) -> None:
        for process in reversed(self._processes):
            family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGKILL)
            process.wait()
            for child in family:
                if child.is_running():
                    child.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
