"""`GET /metrics` for a process that has no web server of its own: `oncehouse metrics --listen` and `oncehouse run`.

A thread a scrape, so that a slow one holds up nobody; what is served is read anew each time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from oncehouse.common.http_auth import Door
from oncehouse.errors import ConfigurationError
from oncehouse.metrics.exposition import write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

_PLAIN = "text/plain; charset=utf-8"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the library gives it
        """A scrape every few seconds is no news."""


class MetricsServer:
    """Listens from its making until `close`."""

    def __init__(self, door: Door, registry: CollectorRegistry) -> None:
        kind = _Server6 if ":" in door.host else _Server
        try:
            self._server = make_server(door.host, door.port, make_app(door, registry), kind, _QuietHandler)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {door.host}:{door.port} ({error.strerror or error}); name another "
                "address"
            ) from error
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="oncehouse-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def make_app(door: Door, registry: CollectorRegistry) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        # Whoever knows the token may call it by any name; a page in somebody's browser does not know it.
        if door.token is None and not door.knows(environ.get("HTTP_HOST", "")):
            return _refuse(start, "421 Misdirected Request", "this machine is known by its own names alone")
        if not door.opens_for_header(environ.get("HTTP_AUTHORIZATION", "")):
            return _refuse(start, "401 Unauthorized", "a bearer token is needed")
        if environ.get("PATH_INFO") != "/metrics" or environ.get("REQUEST_METHOD") != "GET":
            return _refuse(start, "404 Not Found", "there is GET /metrics and nothing else")
        try:
            body, content_type = write_text(registry, environ.get("HTTP_ACCEPT", ""))
        except Exception as error:  # noqa: BLE001 - a request's edge: the next scrape may do better
            return _refuse(start, "500 Internal Server Error", f"unexpected {type(error).__name__}")
        start("200 OK", [("Content-Type", content_type), ("Cache-Control", "no-store")])
        return [body]

    return answer


def _refuse(start: Callable[..., Any], status: str, why: str) -> Iterable[bytes]:
    start(status, [("Content-Type", _PLAIN)])
    return [f"{why}\n".encode()]
