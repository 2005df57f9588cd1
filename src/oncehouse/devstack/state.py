"""What a stack's folder remembers: state.json with the ports of its parts, and one lock for who changes it.

Ports are chosen once and kept, so that URLs survive a restart. They are taken from below the range that the
kernel hands out to clients, where no client takes them by accident while a server is down. Who runs is not
written here: the pid files, which the servers write themselves, say that.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from oncehouse.devstack.server_base import LOCALHOST
from oncehouse.errors import ConfigurationError, TransientError

_PORTS = range(20_000, 32_000)

Ports = dict[str, dict[str, int]]
"""Part -> name of the port -> number."""


@contextmanager
def exclusive(folder: Path) -> Iterator[IO[str]]:
    """Hold the folder while changing it. The lock ends with the last who has it open, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def load_ports(folder: Path) -> Ports:
    file = folder / "state.json"
    try:
        state = json.loads(file.read_text())
        return {
            part: {name: int(port) for name, port in ports.items()} for part, ports in state["ports"].items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is not the state of a dev stack ({error}). Move {folder} away to start afresh."
        ) from error


def save_ports(folder: Path, ports: Mapping[str, Mapping[str, int]]) -> None:
    new = folder / "state.json.new"
    new.write_text(json.dumps({"version": 1, "ports": ports}, indent=2) + "\n")
    new.chmod(0o600)
    new.replace(folder / "state.json")


def add_ports(ports: Ports, *, part: str, names: Iterable[str]) -> Ports:
    """The same ports, with free ones added for what this part still lacks."""
    known = {port for numbers in ports.values() for port in numbers.values()}
    own = dict(ports.get(part, {}))
    for name in names:
        if name not in own:
            own[name] = choose_free_port(known)
            known.add(own[name])
    return {**ports, part: own}


def choose_free_port(taken: Collection[int]) -> int:
    # Seeded by the system, not by the caller: tests that fix the seed would all choose the same ports.
    for port in random.SystemRandom().sample(_PORTS, 200):
        if port not in taken and is_free(port):
            return port
    raise TransientError(
        f"No free port between {_PORTS.start} and {_PORTS.stop} on {LOCALHOST}. Try again later."
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner reads, in a folder that only its owner enters."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
