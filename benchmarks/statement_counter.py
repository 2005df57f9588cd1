"""A proxy before PostgreSQL that counts the statements clients send: every simple query and every Execute.

Forwards bytes as they come. For measurements and tests of what an idle program costs the server.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from oncehouse.devstack.server_base import LOCALHOST

_CHUNK_BYTES = 1 << 18
_COUNTED = b"QE"


class StatementCounter:
    """Listens on a free port of this machine from `with` on."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((LOCALHOST, 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.statements = 0

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="oncehouse-counter", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for one in (self._listener, *self._open):
                _close(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOCALHOST, self._server_port))
                with self._lock:
                    self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        messages = _Messages()
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if count:
                    found = messages.count(chunk)
                    with self._lock:
                        self.statements += found
                target.sendall(chunk)
        _close(source)
        _close(target)


class _Messages:
    """Finds where a client's messages begin. The first of a connection has no type, only a length."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False

    def count(self, chunk: bytes) -> int:
        self._rest += chunk
        found = 0
        while len(self._rest) >= 5:
            at = 1 if self._started else 0
            (length,) = struct.unpack_from("!i", self._rest, at)
            if len(self._rest) < at + length:
                break
            found += self._started and self._rest[0] in _COUNTED
            # A request for encryption has the length 8 and is answered before the connection really starts.
            self._started = self._started or length != 8
            self._rest = self._rest[at + length :]
        return found


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        one.close()
