"""The HTTP side of the stand-in for a replicated table: requests and answers as values, and who reads them."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.devstack.server_base import LOCALHOST

TIMEOUT_SECONDS = 330
_OF_ONE_SERVER = {"query_id", "session_id", "session_check", "session_timeout", "close_session"}
_NOT_PASSED_ON = {"transfer-encoding", "content-length", "connection", "x-clickhouse-server-display-name"}


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    @property
    def sql(self) -> str:
        """An INSERT's rows may follow it."""
        return self.parameters.get("query") or self.body[:65536].decode("utf-8", errors="replace")

    def rewritten(self, sql: str) -> HttpRequest:
        """With another text; what else the request carries stays."""
        parameters = self.parameters
        if "query" in parameters:
            return self._with(urlencode({**parameters, "query": sql}), self.body)
        return self._with(urlsplit(self.path).query, sql.encode())

    def with_rows(self, sql: str, body: bytes) -> HttpRequest:
        return self._with(urlencode({**self.parameters, "query": sql}), body)

    def unnamed(self) -> HttpRequest:
        """Without its query id and its session, which belong to the server that was asked first."""
        parameters = {name: value for name, value in self.parameters.items() if name not in _OF_ONE_SERVER}
        path = f"{urlsplit(self.path).path}?{urlencode(parameters)}"
        return HttpRequest(method=self.method, path=path, headers=self.headers, body=self.body)

    def _with(self, query: str, body: bytes) -> HttpRequest:
        path = f"{urlsplit(self.path).path}?{query}"
        return HttpRequest(method="POST", path=path, headers=self.headers, body=body)


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def is_success(self) -> bool:
        return self.status == http.HTTPStatus.OK


def ask(request: HttpRequest, port: int) -> HttpAnswer:
    """What a server of this machine says."""
    connection = http.client.HTTPConnection(LOCALHOST, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(request.method, request.path, body=request.body, headers=request.headers)
        response = connection.getresponse()
        body = response.read()
        return HttpAnswer(status=response.status, headers=tuple(response.getheaders()), body=body)
    except (OSError, http.client.HTTPException) as error:
        return refuse(ErrorCode.NETWORK_ERROR, f"the server behind the stand-in is away: {error}")
    finally:
        connection.close()


class ReplicaServer(ThreadingHTTPServer):
    daemon_threads = True
    answer: Callable[[HttpRequest], tuple[HttpAnswer, str]]
    """The answer, and the name of the server that gave it; empty: no header says so."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ReplicaServer

    def do_POST(self) -> None:
        dropped = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
        request = HttpRequest(
            method=self.command,
            path=self.path,
            headers={name: value for name, value in self.headers.items() if name.lower() not in dropped},
            body=self._read_body(),
        )
        answer, server = self.server.answer(request)
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        if server:
            self.send_header("X-ClickHouse-Server-Display-Name", server)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST  # noqa: N815 - the base class's name

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: what was asked is counted."""

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while re.match(rb"\S", self.rfile.readline()):
            pass  # trailers, up to an empty line
        return bytes(body)


def refuse(code: int, message: str) -> HttpAnswer:
    body = f"Code: {code}. DB::Exception: {message}. (STAND_IN)\n".encode()
    headers = (("X-ClickHouse-Exception-Code", str(code)),)
    return HttpAnswer(status=http.HTTPStatus.INTERNAL_SERVER_ERROR, headers=headers, body=body)
