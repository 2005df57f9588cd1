"""A proxy before ClickHouse's HTTP port that can swallow the answer to an INSERT.

It forwards bytes as they come and reads only what it must: HTTP without pipelining takes turns, so the first
bytes from the client after an answer begin a request, and its first line tells an INSERT. When told to, it
lets one INSERT run to its end on the server, keeps the answer to itself and closes the connection, which is
what a client sees when a network fails at the worst moment.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import unquote_plus

from oncehouse.devstack.part import LOCALHOST

_CHUNK_BYTES = 1 << 18
_HEAD_END = b"\r\n\r\n"


class AnswerSwallower:
    """Listens on a free port of this machine from `with` on; counts what it sees."""

    def __init__(self, *, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((LOCALHOST, 0))
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._to_swallow = 0
        self.inserts = 0
        self.swallowed = 0

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self._listener.getsockname()[1]}"

    def swallow_next(self) -> None:
        """Keep back the answer to the next INSERT that succeeds."""
        with self._lock:
            self._to_swallow = 1

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="oncehouse-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self._listener)
        with self._lock:
            open_now = tuple(self._connections)
        for connection in open_now:
            _close(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the proxy ends
            try:
                server = socket.create_connection((LOCALHOST, self._server_port))
            except OSError:
                _close(client)  # the client sees a server that is away, as it would without the proxy
                continue
            with self._lock:
                self._connections |= {client, server}
            exchange = _Exchange(self, client, server)
            for pump in (exchange.pump_requests, exchange.pump_answers):
                threading.Thread(target=pump, name="oncehouse-proxy", daemon=True).start()

    def note_insert(self) -> None:
        with self._lock:
            self.inserts += 1

    def claim_swallow(self) -> bool:
        """Whether this INSERT's answer is the one to keep back; true for one of them only."""
        with self._lock:
            claimed, self._to_swallow = self._to_swallow > 0, 0
            return claimed

    def settle_swallow(self, *, kept_back: bool) -> None:
        """The INSERT has ended: count it, or wait for another one if it did not succeed."""
        with self._lock:
            self.swallowed += kept_back
            self._to_swallow = 0 if kept_back else 1

    def forget(self, *connections: socket.socket) -> None:
        for connection in connections:
            _close(connection)
        with self._lock:
            self._connections -= set(connections)


class _Exchange:
    """One client's connection and the one behind it."""

    def __init__(self, proxy: AnswerSwallower, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answered = True
        self._keep_back = False

    def pump_requests(self) -> None:
        with suppress(OSError):
            while chunk := self._client.recv(_CHUNK_BYTES):
                if self._answered:
                    self._answered = False
                    if is_insert(chunk):
                        self._proxy.note_insert()
                        self._keep_back = self._proxy.claim_swallow()
                self._server.sendall(chunk)
        self._end()

    def pump_answers(self) -> None:
        with suppress(OSError):
            while chunk := self._server.recv(_CHUNK_BYTES):
                if self._keep_back:
                    chunk = self._read_whole_answer(chunk)
                    kept_back = is_success(chunk)
                    self._keep_back = False
                    self._proxy.settle_swallow(kept_back=kept_back)
                    if kept_back:
                        break
                self._answered = True
                self._client.sendall(chunk)
        self._end()

    def _read_whole_answer(self, answer: bytes) -> bytes:
        while not is_whole(answer) and (chunk := self._server.recv(_CHUNK_BYTES)):
            answer += chunk
        return answer

    def _end(self) -> None:
        self._proxy.forget(self._client, self._server)


def is_insert(request: bytes) -> bool:
    """Whether a request's first line, as it came, carries an INSERT."""
    method, _, rest = request.partition(b" ")
    line = unquote_plus(rest.split(b"\r\n", 1)[0].decode("latin-1"))
    return method == b"POST" and "query=INSERT INTO" in line


def is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(_HEAD_END)
    if not found:
        return False
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    ]
    return not lengths or len(body) >= int(lengths[0])


def is_success(answer: bytes) -> bool:
    """ClickHouse names its exception in a header, and its HTTP status says so too unless it came late."""
    head = answer.partition(_HEAD_END)[0].lower()
    return head.split(b" ", 2)[1:2] == [b"200"] and b"\r\nx-clickhouse-exception-code:" not in head


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
