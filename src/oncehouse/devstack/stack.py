"""The stack of one folder: bring parts up, look at them, take them down.

`up` may be interrupted at any point and called again: what runs is kept, what is half done is done again.
`down` ends exactly the processes that the folder's pid files name, and keeps data and ports; `discard` keeps nothing.
Everything that changes the folder holds its lock.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from oncehouse.devstack.clickhouse import ClickHouseServer
from oncehouse.devstack.jars import connect_jars, debezium_jars, kafka_broker_jars, keep_quiet
from oncehouse.devstack.kafka import CLUSTER as BROKERS
from oncehouse.devstack.kafka import FirstBroker, KafkaServer, SecondBroker, ThirdBroker
from oncehouse.devstack.kafka_connect import Connect
from oncehouse.devstack.postgres import Postgres
from oncehouse.devstack.process import ServerProcess, end, is_alive, launch_detached, read_process
from oncehouse.devstack.redis import Redis
from oncehouse.devstack.s3 import S3
from oncehouse.devstack.server_base import ServerPart, ServerPlace
from oncehouse.devstack.spark import CLUSTER, FirstSparkWorker, SecondSparkWorker, SparkMaster, SparkWorker
from oncehouse.devstack.state import add_ports, exclusive, is_free, load_ports, save_ports, write_private
from oncehouse.devstack.zookeeper import ZooKeeper
from oncehouse.errors import ConfigurationError, PermanentError

DEFAULT_FOLDER = Path(".oncehouse/dev")
DEFAULT_PARTS = ("kafka", "clickhouse")
EXTRA_PARTS = ("postgres", "redis", "zookeeper", "connect", "s3", "spark", "brokers")

_Parts = (
    ZooKeeper | KafkaServer | ClickHouseServer | Postgres | Redis | Connect | S3 | SparkMaster | SparkWorker
)

# In the order in which they start: ClickHouse looks for ZooKeeper, Connect for Kafka, a worker for its master.
_PARTS: dict[str, type[_Parts]] = {
    part.name: part
    for part in (
        *(ZooKeeper, KafkaServer, ClickHouseServer, Postgres, Redis, Connect, S3),
        *(SparkMaster, FirstSparkWorker, SecondSparkWorker),
        *(FirstBroker, SecondBroker, ThirdBroker),
    )
}
_GROUPS = {"spark": CLUSTER, "brokers": BROKERS}
_STOP_PATIENCE_SECONDS = 20.0
_LOG_LINES_SHOWN = 15


@dataclass(frozen=True, kw_only=True)
class PartStatus:
    part: str
    running: bool
    ready: bool
    pid: int | None
    address: str
    log: Path


def up(
    folder: Path = DEFAULT_FOLDER,
    parts: Iterable[str] = DEFAULT_PARTS,
    say: Callable[[str], None] = keep_quiet,
) -> Stack:
    """Start the named parts that do not run yet, and return when all of them answer."""
    stack = Stack(folder=folder.expanduser().resolve())
    stack.up(parts, say)
    return stack


def down(folder: Path = DEFAULT_FOLDER) -> list[str]:
    """Stop every part that runs, and name them. Data and ports stay."""
    return Stack(folder=folder.expanduser().resolve()).down()


def status(folder: Path = DEFAULT_FOLDER) -> list[PartStatus]:
    return Stack(folder=folder.expanduser().resolve()).status()


def sort_by_start(names: Iterable[str]) -> list[str]:
    wanted = {part for name in names for part in _GROUPS.get(name, (name,))}
    unknown = sorted(wanted - set(_PARTS))
    if unknown:
        known = ", ".join(sorted({*_PARTS, *_GROUPS}))
        raise ConfigurationError(
            f"The dev stack has no part called {', '.join(unknown)}. Its parts: {known}."
        )
    return [name for name in _PARTS if name in wanted]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The parts of one folder. A handle only: making or dropping one neither starts nor stops anything."""

    folder: Path

    @property
    def kafka(self) -> KafkaServer:
        return KafkaServer(place=self._place("kafka"))

    @property
    def clickhouse(self) -> ClickHouseServer:
        return ClickHouseServer(place=self._place("clickhouse"))

    @property
    def postgres(self) -> Postgres:
        return Postgres(place=self._place("postgres"))

    @property
    def redis(self) -> Redis:
        return Redis(place=self._place("redis"))

    @property
    def zookeeper(self) -> ZooKeeper:
        return ZooKeeper(place=self._place("zookeeper"))

    @property
    def connect(self) -> Connect:
        return Connect(place=self._place("connect"))

    @property
    def s3(self) -> S3:
        return S3(place=self._place("s3"))

    @property
    def brokers(self) -> FirstBroker:
        """Any of the three, which names all of them to clients."""
        return FirstBroker(place=self._place(FirstBroker.name))

    @property
    def spark_master(self) -> SparkMaster:
        return SparkMaster(place=self._place("spark-master"))

    def up(self, parts: Iterable[str] = DEFAULT_PARTS, say: Callable[[str], None] = keep_quiet) -> None:
        wanted = sort_by_start(parts)
        with exclusive(self.folder) as lock:
            ports = load_ports(self.folder)
            for name in wanted:
                ports = add_ports(ports, part=name, names=_PARTS[name].port_names)
            save_ports(self.folder, ports)
            if {KafkaServer.name, *BROKERS} & set(wanted):
                kafka_broker_jars(say)  # takes a minute the first time, so it is printed
            if Connect.name in wanted:
                connect_jars(say)
                debezium_jars(say)
            for name in wanted:
                self._start(name, lock)
            for name in wanted:
                self._await_ready(name)

    def down(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        with exclusive(self.folder):
            running = [name for name in _PARTS if self.process(name) is not None]
            for name in reversed(running):
                self._stop(name, _PARTS[name].stop_signal)
        return running

    def discard(self) -> None:
        """End every part without waiting for anything, and remove the folder: for data that is not needed.

        In order ClickHouse would wait five seconds for clients that keep their connections open.
        """
        if not self.folder.is_dir():
            return
        with exclusive(self.folder):
            for name in reversed(_PARTS):
                # PostgreSQL is quick in order too, and killed it would leave its shared memory behind.
                in_order = _PARTS[name] is Postgres
                self._stop(name, Postgres.stop_signal if in_order else signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> list[PartStatus]:
        return [self._read_status(name) for name in sort_by_start(load_ports(self.folder))]

    def process(self, name: str) -> ServerProcess | None:
        """The live process of a part, if it has one."""
        process = read_process(self._pid_file(name))
        return process if is_alive(process) else None

    def start(self, name: str) -> None:
        """Start a part that was stopped or killed, on its old ports and data, and wait until it answers."""
        with exclusive(self.folder) as lock:
            self._start(name, lock)
            self._await_ready(name)

    def stop(self, name: str) -> None:
        """Stop a part in order."""
        with exclusive(self.folder):
            self._stop(name, self._part(name).stop_signal)

    def kill(self, name: str) -> None:
        """End a part as a crash would."""
        with exclusive(self.folder):
            self._stop(name, signal.SIGKILL)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _start(self, name: str, lock: IO[str]) -> None:
        part = self._part(name)
        part.place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.prepare()
        launch = part.launch()
        changed = [file for file, text in launch.files.items() if not _holds(file, text)]
        if self.process(name) is not None and not changed:
            return
        self._stop(name, part.stop_signal)
        for file in launch.left_by_dead:
            file.unlink(missing_ok=True)
        for file, text in launch.files.items():
            write_private(file, text)
        self._require_free_ports(part)
        for folder in (self.log(name).parent, self._pid_file(name).parent):
            folder.mkdir(exist_ok=True, mode=0o700)
        launch_detached(
            launch.command,
            pid_file=self._pid_file(name),
            log=self.log(name),
            folder=part.place.folder,
            environment=launch.environment,
            lock=lock,
        )

    def _await_ready(self, name: str) -> None:
        part = self._part(name)
        deadline = time.monotonic() + part.ready_within_seconds
        while not part.is_ready():
            process = read_process(self._pid_file(name))
            ended = process is not None and not is_alive(process)
            if ended or time.monotonic() > deadline:
                self._stop(name, signal.SIGKILL)
                what = "ended" if ended else f"did not answer within {part.ready_within_seconds:.0f} s"
                raise PermanentError(
                    f"{name} {what} after its start. "
                    f"The last lines of {self.log(name)}:\n{self._last_lines(name)}"
                )
            time.sleep(0.1)

    def _stop(self, name: str, how: signal.Signals) -> None:
        end(read_process(self._pid_file(name)), how=how, patience_seconds=_STOP_PATIENCE_SECONDS)
        self._pid_file(name).unlink(missing_ok=True)

    def _require_free_ports(self, part: ServerPart) -> None:
        for number in part.place.ports.values():
            if not is_free(number):
                raise ConfigurationError(
                    f"Port {number} of {part.name} in {self.folder} is taken by another program. Stop that "
                    f'program, or remove "{part.name}" from state.json there to get new ports.'
                )

    def _read_status(self, name: str) -> PartStatus:
        part, process = self._part(name), self.process(name)
        return PartStatus(
            part=name,
            running=process is not None,
            ready=process is not None and part.is_ready(),
            pid=process.pid if process else None,
            address=part.address,
            log=self.log(name),
        )

    def _part(self, name: str) -> ServerPart:
        sort_by_start([name])
        return _PARTS[name](place=self._place(name))

    def _place(self, name: str) -> ServerPlace:
        ports = load_ports(self.folder)
        if name not in ports:
            raise ConfigurationError(
                f"{name} is no part of the stack in {self.folder}. Add it: oncehouse dev up --with {name}"
            )
        return ServerPlace(folder=self.folder / name, ports=ports[name], neighbours=ports)

    def _pid_file(self, name: str) -> Path:
        return self.folder / "run" / f"{name}.pid"

    def _last_lines(self, name: str) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
        except FileNotFoundError:
            return "(no log)"


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text() == text
    except FileNotFoundError:
        return False
