"""A small schema registry for the tests: the part of Confluent's REST interface that readers and writers use.

No real registry comes from the package indexes that the tests use, so this is a stand-in: it numbers schemas,
answers by number and by subject, asks for a password when told to, and can be away or answer nonsense.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Registry:
    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.credentials: str | None = None
        self.answers: list[tuple[int, bytes]] = []
        """Said instead of the truth, first one first."""
        self.asked: list[str] = []
        self.delay_seconds = 0.0
        self.url = ""

    def register(
        self, subject: str, schema: Any, *, kind: str = "AVRO", references: Any = (), number: int = 0
    ) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        number = number or max(self.schemas, default=0) + 1
        entry: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            entry["schemaType"] = kind
        if references:
            entry["references"] = [
                {"name": name, "subject": of, "version": version} for name, of, version in references
            ]
        self.schemas[number] = entry
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.answers:
            return self.answers.pop(0)
        if self.credentials is not None:
            expected = "Basic " + base64.b64encode(self.credentials.encode()).decode()
            if authorization != expected:
                return 401, b'{"error_code":401,"message":"Unauthorized"}'
        match [unquote(step) for step in path.strip("/").split("/")]:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, json.dumps(self.schemas[int(number)]).encode()
            case ["subjects", subject, "versions", version] if self._has(subject, version):
                number = self.subjects[subject][int(version) - 1]
                found = {"subject": subject, "version": int(version), "id": number, **self.schemas[number]}
                return 200, json.dumps(found).encode()
        return 404, b'{"error_code":40403,"message":"Schema not found"}'

    def _has(self, subject: str, version: str) -> bool:
        return version.isdigit() and 0 < int(version) <= len(self.subjects.get(subject, ()))


@contextmanager
def running_registry(*, tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(registry.delay_seconds)
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The tests look at `asked` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients may refuse the certificate
    registry.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
