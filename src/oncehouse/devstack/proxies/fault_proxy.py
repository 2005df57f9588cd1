"""A proxy before ClickHouse's HTTP port that lets INSERTs fail as networks and servers do.

It forwards bytes as they come and reads only what it must: HTTP without pipelining takes turns, so the first
bytes from the client after an answer begin a request, and its first line shows an INSERT. A fault befalls
INSERTs alone, as many as it was asked for, and is counted when it has happened. `_ProxiedConnection` does to the
bytes what a fault says; `FaultProxy` owns the connections and knows whose turn it is. `bodies` keeps hashes of what
INSERTs carried, so that a repeat can be compared with what was sent before.
"""

from __future__ import annotations

import math
import re
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Self, assert_never
from urllib.parse import unquote_plus

from oncehouse.devstack.proxies.faults import (
    AnswerError,
    Close,
    CutBody,
    DelayAnswer,
    DelayRequest,
    DropAnswer,
    Fault,
    HoldBody,
    HoldRequest,
)
from oncehouse.devstack.proxies.insert_bodies import InsertBodies, InsertBody
from oncehouse.devstack.server_base import LOCALHOST

_CHUNK_BYTES = 1 << 18
_HEAD_END = b"\r\n\r\n"
_CODE = re.compile(rb"\r\nx-clickhouse-exception-code: *(\d+)", re.IGNORECASE)
_ANSWER_SECONDS = 60.0

UNTIL_TAKEN_BACK = math.inf


class FaultProxy:
    """Listens on a free port of this machine from `with` on; counts what it sees and what it did.

    >>> with FaultProxy(server_port=8123) as proxy:
    ...     proxy.inject(AnswerError(code=241), times=2)
    """

    def __init__(self, *, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((LOCALHOST, 0))
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._ended = threading.Event()
        self._released = threading.Event()
        self._fault: Fault | None = None
        self._left = 0.0
        self._table = ""
        self.inserts = 0
        self.happened: Counter[type[Fault]] = Counter()
        self.late_answers: list[int] = []
        """What the server said to INSERTs that it got late: ClickHouse's code, 0 for those it took."""
        self.bodies = InsertBodies()

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self._listener.getsockname()[1]}"

    def inject(self, fault: Fault, *, times: float = 1, table: str = "") -> None:
        """Let the next INSERTs fail, `UNTIL_TAKEN_BACK` all of them; takes the place of what was asked before.

        `table` is a piece of the INSERT's text, so that other tables are left alone.
        """
        with self._lock:
            self._fault, self._left, self._table = fault, times, table

    def take_back(self) -> None:
        """Let the next INSERTs pass; what has befallen one already goes on."""
        with self._lock:
            self._left = 0

    def release(self) -> None:
        """Let the server have what was held."""
        self._released.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="oncehouse-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._released.set()
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
            exchange = _ProxiedConnection(self, client, server)
            for pump in (exchange.pump_requests, exchange.pump_answers):
                threading.Thread(target=pump, name="oncehouse-proxy", daemon=True).start()

    # What exchanges ask and report

    def admit(self, request: bytes) -> Fault | None:
        """The fault that befalls a request which begins with these bytes."""
        if not is_insert(request):
            return None
        with self._lock:
            self.inserts += 1
            if self._left < 1 or self._table not in _first_line(request):
                return None
            self._left -= 1
            return self._fault

    def count(self, fault: Fault) -> None:
        with self._lock:
            self.happened[type(fault)] += 1

    def give_back(self, fault: Fault) -> None:
        """The fault could not happen: let it befall another INSERT, unless a new one was asked for meanwhile."""
        with self._lock:
            if self._fault is fault:
                self._left += 1

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def send_when_released(self, request: bytes) -> None:
        """Over a connection of its own: the server has ended the one on which nothing came for so long."""
        self._released.wait()
        if self._ended.is_set():
            return
        with socket.create_connection((LOCALHOST, self._server_port)) as server:
            server.sendall(request)
            self.record_late_answer(_read_whole(server, b""))

    def record_late_answer(self, answer: bytes) -> None:
        found = _CODE.search(answer.partition(_HEAD_END)[0])
        self.late_answers.append(int(found[1]) if found else 0)

    def forget(self, *connections: socket.socket) -> None:
        for connection in connections:
            _close(connection)
        with self._lock:
            self._connections -= set(connections)


class _ProxiedConnection:
    """One client's connection and the one behind it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answered = True
        self._awaits_answer: DropAnswer | DelayAnswer | None = None
        self._late: threading.Event | None = None
        self._body: InsertBody | None = None

    def pump_requests(self) -> None:
        with suppress(OSError):
            while chunk := self._client.recv(_CHUNK_BYTES):
                fault = self._proxy.admit(chunk) if self._answered else None
                if self._answered:
                    self._body = InsertBody() if is_insert(chunk) else None
                self._answered = False
                self._note(chunk)
                if fault is None:
                    self._server.sendall(chunk)
                elif not self._befall_request(fault, chunk):
                    break
        self._end()

    def _note(self, chunk: bytes) -> None:
        """Keep in mind what the INSERT carries."""
        if self._body is not None:
            self._body.add(chunk)
            if self._body.is_whole:
                self._proxy.bodies.add(self._body)
                self._body = None

    def _read_rest(self, begun: bytes) -> bytes:
        whole = _read_whole(self._client, begun)
        self._note(whole[len(begun) :])
        return whole

    def _befall_request(self, fault: Fault, begun: bytes) -> bool:
        """Let the fault happen to the INSERT that has begun; says whether the connection goes on."""
        match fault:
            case DropAnswer() | DelayAnswer():
                self._awaits_answer = fault
                self._server.sendall(begun)
                return True
            case HoldRequest():
                whole = self._read_rest(begun)
                self._proxy.count(fault)
                self._proxy.send_when_released(whole)
            case DelayRequest():
                whole = self._read_rest(begun)
                self._proxy.count(fault)
                self._proxy.pause(fault.seconds)
                self._late = late = threading.Event()
                self._server.sendall(whole)
                # A client that has gone would end the connection before the server has answered.
                late.wait(_ANSWER_SECONDS)
                return True
            case CutBody() | HoldBody():
                self._server.sendall(_half(self._read_rest(begun)))
                self._proxy.count(fault)
                while isinstance(fault, HoldBody) and self._client.recv(_CHUNK_BYTES):
                    pass  # a client that waits for its answer sends nothing; that it went ends the wait
            case AnswerError():
                self._read_rest(begun)
                self._proxy.count(fault)
                self._client.sendall(make_error(fault))
            case Close():
                self._proxy.count(fault)
            case _:
                assert_never(fault)
        return False

    def pump_answers(self) -> None:
        with suppress(OSError):
            while chunk := self._server.recv(_CHUNK_BYTES):
                if self._late is not None:
                    self._proxy.record_late_answer(chunk)
                    self._late.set()
                    self._late = None
                if self._awaits_answer is not None:
                    chunk = _read_whole(self._server, chunk)
                    if not self._befall_answer(self._awaits_answer, chunk):
                        break
                    self._awaits_answer = None
                self._answered = True
                self._client.sendall(chunk)
        self._end()

    def _befall_answer(self, fault: DropAnswer | DelayAnswer, answer: bytes) -> bool:
        match fault:
            case DelayAnswer():
                self._proxy.count(fault)
                self._proxy.pause(fault.seconds)
            case DropAnswer() if is_success(answer):
                self._proxy.count(fault)
                if fault.reset:  # to close without lingering is to reset
                    self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case DropAnswer():
                self._proxy.give_back(fault)
        return True

    def _end(self) -> None:
        self._proxy.forget(self._client, self._server)


def is_insert(request: bytes) -> bool:
    """Whether a request's first line, as it came, carries an INSERT."""
    return request.startswith(b"POST ") and "query=INSERT INTO" in _first_line(request)


def is_whole(message: bytes | bytearray) -> bool:
    """Whether a request or an answer has come to its end."""
    head_end = message.find(_HEAD_END)
    if head_end < 0:
        return False
    head, body_start = bytes(message[:head_end]).lower(), head_end + len(_HEAD_END)
    if b"\r\ntransfer-encoding: chunked" in head:
        return message.endswith(b"0\r\n\r\n", body_start)
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return not lengths or len(message) - body_start >= int(lengths[0])


def is_success(answer: bytes) -> bool:
    """ClickHouse names its exception in a header, and its HTTP status says so too unless it came late."""
    head = answer.partition(_HEAD_END)[0].lower()
    return head.split(b" ", 2)[1:2] == [b"200"] and b"\r\nx-clickhouse-exception-code:" not in head


def make_error(fault: AnswerError) -> bytes:
    """An answer as a gateway gives it, or as ClickHouse does when the fault has one of its codes."""
    body, header = "The proxy was set to fail\n", ""
    if fault.code is not None:
        body = f"Code: {fault.code}. DB::Exception: the proxy was set to fail\n"
        header = f"X-ClickHouse-Exception-Code: {fault.code}\r\n"
    status = f"{fault.status.value} {fault.status.phrase}"
    head = f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


def _first_line(request: bytes) -> str:
    return unquote_plus(request.split(b"\r\n", 1)[0].decode("latin-1"))


def _half(request: bytes) -> bytes:
    body_start = request.find(_HEAD_END) + len(_HEAD_END)
    return request[: (body_start + len(request)) // 2]


def _read_whole(connection: socket.socket, begun: bytes) -> bytes:
    message = bytearray(begun)
    while not is_whole(message) and (chunk := connection.recv(_CHUNK_BYTES)):
        message += chunk
    return bytes(message)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)  # wakes a reader; the end itself is for `close` to send
    with suppress(OSError):
        connection.close()
