"""Two PostgreSQL servers, one of which follows the other asynchronously, behind one address.

`cut_off` lets the standby miss what the primary confirms from then on; `fail_over` kills the primary as a machine that
dies does, promotes the standby, and lets the address lead to it. Clients keep their URL and see broken connections.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from oncehouse.devstack.postgres import find_program, without_root
from oncehouse.devstack.server_base import LOCALHOST
from oncehouse.devstack.subprocesses import signal_tree
from secure_servers import free_ports

_SETTINGS = {
    "listen_addresses": LOCALHOST,
    "unix_socket_directories": "",
    "wal_level": "replica",
    # What dies here is a process and not the machine, so the kernel keeps what was written.
    "fsync": "off",
    "shared_buffers": "16MB",
}
_PATIENCE_SECONDS = 120.0


class Forwarder:
    """Leads connections to a port, which may change; those that were made before then break."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((LOCALHOST, 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="forwarder", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def lead_to(self, port: int) -> None:
        with self._lock:
            self._target = port
            left, self._open = self._open, set()
        _close(*left)

    def close(self) -> None:
        _close(self._listener)
        self.lead_to(0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((LOCALHOST, self._target))
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    _close(source, target)


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


class Server:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{LOCALHOST}:{self.port}/postgres"

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        command = [*without_root(), str(find_program("postgres")), "-D", str(self.folder), *settings]
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(lambda: self.ask("SELECT 1") == 1, f"PostgreSQL on port {self.port}")

    def kill(self) -> None:
        if self._process is not None:
            signal_tree(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def ask(self, sql: str) -> Any:
        try:
            with psycopg.connect(self.dsn, autocommit=True, connect_timeout=2) as connection:
                cursor = connection.execute(sql)
                row = cursor.fetchone() if cursor.description else None
        except psycopg.OperationalError:
            return None
        return None if row is None else row[0]


class PostgresPair:
    """Use it as a context; servers and their data are gone at its end."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(2)
        self.primary = Server(folder / "primary", ports[0])
        self.standby = Server(folder / "standby", ports[1])
        self._forwarder = Forwarder(ports[0])

    @property
    def url(self) -> str:
        """Of whichever is the primary. Without TLS, which is of no use here and takes time."""
        return f"postgresql+psycopg://postgres@{LOCALHOST}:{self._forwarder.port}/postgres?sslmode=disable"

    def __enter__(self) -> Self:
        try:
            self._make_primary()
            self._make_standby()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._forwarder.close()
        for server in (self.primary, self.standby):
            server.kill()
            shutil.rmtree(server.folder, ignore_errors=True)

    def cut_off(self) -> None:
        """From now on the standby misses what the primary confirms; what was confirmed before it has."""
        reached = self.primary.ask("SELECT pg_current_wal_lsn()::text")
        wait_for(
            lambda: self.standby.ask(f"SELECT pg_last_wal_replay_lsn() >= '{reached}'"),
            "the standby to follow",
        )
        self.standby.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.ask("SELECT pg_reload_conf()")
        wait_for(
            lambda: self.standby.ask("SELECT count(*) FROM pg_stat_wal_receiver") == 0,
            "the standby to be cut off",
        )

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.ask("SELECT pg_promote()")
        wait_for(lambda: self.standby.ask("SELECT NOT pg_is_in_recovery()"), "the standby to be promoted")
        self._forwarder.lead_to(self.standby.port)

    def _make_primary(self) -> None:
        _make_folder(self.primary.folder)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        _run("initdb", "-D", str(self.primary.folder), *options)
        self.primary.start()

    def _make_standby(self) -> None:
        _make_folder(self.standby.folder)
        options = ["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--wal-method=stream"]
        _run("pg_basebackup", "-d", self.primary.dsn, "-D", str(self.standby.folder), *options)
        self.standby.start()
        wait_for(
            lambda: self.primary.ask("SELECT state FROM pg_stat_replication") == "streaming",
            "the standby to stream",
        )


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [*without_root(), str(find_program(program)), *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{program}: {done.stderr}"
