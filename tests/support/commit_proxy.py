"""A proxy before PostgreSQL that cuts connections at a COMMIT, before the server has it or before the client hears.

To the client both look the same, which is the point: it cannot know. Only transactions count in which one of the given
texts was sent (a statement's text travels until the driver prepares it, after a few uses); all others pass untouched.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from typing import Self

_CHUNK_BYTES = 1 << 16
_COMMIT = b"COMMIT\x00"


class Cut(StrEnum):
    BEFORE = "the server never gets it"
    AFTER = "the client never hears of it"
    NOT = "it passes"


class CommitProxy:
    """Listens on a free port from `with` on; `plan` says what befalls the next commits, one after another."""

    def __init__(self, *, server_port: int, texts: Iterable[bytes]) -> None:
        self._server_port = server_port
        self._texts = tuple(texts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._planned: list[Cut] = []
        self._connections: set[socket.socket] = set()
        self.happened: Counter[Cut] = Counter()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def plan(self, *cuts: Cut) -> None:
        with self._lock:
            self._planned = list(cuts)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            left = [self._listener, *self._connections]
        _close(*left)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                with self._lock:
                    self._connections |= {client, server}
                swallowing = threading.Event()
                for pump in (self._pump_requests, self._pump_answers):
                    threading.Thread(target=pump, args=(client, server, swallowing), daemon=True).start()

    def _pump_requests(
        self, client: socket.socket, server: socket.socket, swallowing: threading.Event
    ) -> None:
        counts = False
        with suppress(OSError):
            while chunk := client.recv(_CHUNK_BYTES):
                counts = counts or any(text in chunk for text in self._texts)
                if _COMMIT in chunk:
                    cut = self._next() if counts else Cut.NOT
                    counts = False
                    if cut is Cut.BEFORE:
                        break
                    if cut is Cut.AFTER:
                        swallowing.set()
                server.sendall(chunk)
        _close(client, server)

    def _pump_answers(
        self, client: socket.socket, server: socket.socket, swallowing: threading.Event
    ) -> None:
        with suppress(OSError):
            # The answer to a COMMIT comes when it is done, so whoever swallows it knows that much.
            while (chunk := server.recv(_CHUNK_BYTES)) and not swallowing.is_set():
                client.sendall(chunk)
        _close(client, server)

    def _next(self) -> Cut:
        with self._lock:
            cut = self._planned.pop(0) if self._planned else Cut.NOT
            self.happened[cut] += 1
            return cut


def _close(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
