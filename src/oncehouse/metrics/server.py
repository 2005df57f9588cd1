"""`GET /metrics` for a process that has no web server of its own: `oncehouse metrics --listen` and `oncehouse run`.

One thread per scrape, so that a slow scrape delays no other; each scrape reads the current values.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from oncehouse.common.http_auth import HttpAuth
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
        """Scrapes are not logged."""


class MetricsServer:
    """Listens from its creation until `close`."""

    def __init__(self, auth: HttpAuth, registry: CollectorRegistry) -> None:
        kind = _Server6 if ":" in auth.host else _Server
        try:
            self._server = make_server(auth.host, auth.port, make_app(auth, registry), kind, _QuietHandler)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {auth.host}:{auth.port} ({error.strerror or error}); name another "
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


def make_app(auth: HttpAuth, registry: CollectorRegistry) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        # A client with the token may use any host name: a page in a browser does not know the token.
        if auth.token is None and not auth.knows(environ.get("HTTP_HOST", "")):
            return _refuse(start, "421 Misdirected Request", "unknown host name")
        if not auth.authorizes_header(environ.get("HTTP_AUTHORIZATION", "")):
            return _refuse(start, "401 Unauthorized", "a bearer token is needed")
        if environ.get("PATH_INFO") != "/metrics" or environ.get("REQUEST_METHOD") != "GET":
            return _refuse(start, "404 Not Found", "only GET /metrics is served")
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
