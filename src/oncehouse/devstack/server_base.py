"""What every part of the stack is: a server with named ports, a folder, a command and a readiness check."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Where a part lives: its own folder, its ports, and the ports of the other parts of the stack."""

    folder: Path
    ports: Mapping[str, int]
    neighbours: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a part starts: what a dead predecessor left is removed, files are written, the command runs."""

    command: tuple[str, ...]
    files: Mapping[Path, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    left_by_dead: tuple[Path, ...] = ()


class ServerPart(Protocol):
    name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals]
    ready_within_seconds: ClassVar[float]

    @property
    def place(self) -> ServerPlace: ...

    @property
    def address(self) -> str:
        """What a client is configured with."""
        ...

    def prepare(self) -> None:
        """Fetch programs and lay out data, once. Leaves nothing half done under its final name."""
        ...

    def launch(self) -> Launch: ...

    def is_ready(self) -> bool:
        """One quick look, without waiting. Never raises because the server is not there yet."""
        ...


def answers(port: int, *, say: bytes = b"", expect: bytes = b"") -> bool:
    """True when the port takes a connection and, if asked something, answers as expected."""
    try:
        with socket.create_connection((LOCALHOST, port), timeout=1) as connection:
            if say:
                connection.sendall(say)
            return not expect or connection.recv(64).startswith(expect)
    except OSError:
        return False
