"""Whether ClickHouse answers a ping: what a proxy says in its place is no answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import urllib3

from oncehouse.clickhouse import client as client_module
from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import TransientError


class FakeServer(ThreadingHTTPServer):
    status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def client(server, monkeypatch):
    """One that was connected before the server behind the proxy went away."""
    opened = SimpleNamespace(http=urllib3.PoolManager(), url=server.url)
    monkeypatch.setattr(client_module, "_open", lambda *_: opened)
    return connect(ClickHouse(url=server.url))


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_answers_for_a_server_that_is_away_is_told_by_its_status(status, server, client):
    server.status = status
    assert client.find_trouble() == f"HTTP {status} to a ping"
    server.status = 200
    assert client.find_trouble() is None


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_whatever_else_is_answered_the_server_is_there(status, server, client):
    server.status = status
    assert client.find_trouble() is None


def test_a_server_that_is_gone_gives_no_answer(server, client):
    server.shutdown()
    server.server_close()
    assert client.find_trouble() == "no answer to a ping"


def test_a_port_that_resets_connections_is_told_with_the_setting_to_look_at():
    """As ClickHouse's native port does when its answer is overtaken by the reset."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reset() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    with accepted:
                        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        accepted.recv(1)

        threading.Thread(target=reset, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(TransientError, match=r"clickhouse\.url names its HTTP port"):
            connect(ClickHouse(url=url)).server_version()
        listening.shutdown(socket.SHUT_RDWR)
