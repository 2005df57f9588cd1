"""Kafka Connect's REST interface as far as `oncehouse cdc` uses it, in memory: connectors, their states, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class FakeConnect:
    def __init__(self) -> None:
        self.connectors: dict[str, dict[str, str]] = {}
        self.states: dict[str, dict[str, Any]] = {}
        self.puts = 0
        self.answers: list[tuple[int, Any]] = []
        """Said in place of the right answer, first one first."""
        self.authorization: str | None = None
        """The header that every request must have, if any."""
        self.url = ""

    def fail(self, name: str, trace: str) -> None:
        self.states[name] = {
            "connector": {"state": "RUNNING"},
            "tasks": [{"id": 0, "state": "FAILED", "trace": trace}],
        }

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        if self.authorization not in {None, authorization}:
            return 401, {"message": "who are you"}
        return self.answers.pop(0) if self.answers else self._find(method, path, body)

    def _find(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        match method, path.strip("/").split("/"):
            case "GET", ["connectors"]:
                return 200, list(self.connectors)
            case "PUT", ["connectors", name, "config"]:
                self.puts += 1
                self.connectors[unquote(name)] = body
                running = {"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "RUNNING"}]}
                self.states.setdefault(unquote(name), running)
                return 201, {"name": unquote(name), "config": body}
            case "GET", ["connectors", name, "config"] if unquote(name) in self.connectors:
                return 200, self.connectors[unquote(name)]
            case "GET", ["connectors", name, "status"] if unquote(name) in self.states:
                return 200, {"name": unquote(name)} | self.states[unquote(name)]
        return 404, {"error_code": 404, "message": "not found"}


@contextmanager
def serve_connect() -> Iterator[FakeConnect]:
    fake = FakeConnect()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, value = fake.answer(self.command, self.path, body, self.headers.get("Authorization"))
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = _reply  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
