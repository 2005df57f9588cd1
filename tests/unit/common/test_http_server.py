"""What one client can do to the HTTP server before it has shown a token: little."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from oncehouse.common.http_server import HttpLimits, HttpServer, find_network, open_listener
from oncehouse.errors import ConfigurationError

LIMITS = HttpLimits(
    connections=6, connections_per_address=4, request_seconds=0.4, body_seconds=0.6, unread_seconds=0.5
)


class App:
    """Reads each request to its end, waits at `/wait` until `go`, and sends more than buffers hold at `/large`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.errors: list[BaseException] = []

    async def __call__(self, scope, receive, send) -> None:
        from starlette.concurrency import run_in_threadpool

        request = Request(scope, receive)
        try:
            body = await request.body()
            if scope["path"] == "/wait":
                await run_in_threadpool(self.go.wait, 20)
            text = "x" * (64 << 20) if scope["path"] == "/large" else f"{len(body)} bytes"
            await PlainTextResponse(text)(scope, receive, send)
        except BaseException as error:
            self.errors.append(error)
            # The client has gone: nobody is left to be answered.
            if type(error).__name__ != "ClientDisconnect":
                raise


@pytest.fixture
def app():
    app = App()
    yield app
    app.go.set()


@pytest.fixture
def server(app):
    with open_listener("127.0.0.1", 0, what="the test", advice="") as listener:
        server = HttpServer(app, listener, name="test", limits=LIMITS, drain_seconds=1)
        yield server
        app.go.set()
        server.close()


@pytest.fixture
def connect(server):
    with contextlib.ExitStack() as stack:

        def connect_from(source: str = "127.0.0.1", text: bytes = b"") -> socket.socket:
            opened = socket.create_connection(
                ("127.0.0.1", server.port), timeout=10, source_address=(source, 0)
            )
            stack.enter_context(opened)
            opened.sendall(text)
            return opened

        yield connect_from


def get(path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode()


def read_status(opened: socket.socket) -> str:
    """The status line; empty where the server closed the connection."""
    with contextlib.suppress(ConnectionError):
        return opened.recv(4096).split(b"\r\n")[0].decode()
    return ""


def is_closed_within(opened: socket.socket, seconds: float) -> bool:
    opened.settimeout(seconds)
    try:
        while opened.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_silent_connections_of_one_address_do_not_shut_it_out(connect):
    silent = [connect() for _ in range(12)]
    assert read_status(connect(text=get())) == "HTTP/1.1 200 OK"
    assert all(is_closed_within(one, 0.1) for one in silent[:8])


def test_silent_connections_of_many_addresses_do_not_shut_others_out(connect):
    silent = [connect(f"127.0.0.{number}") for number in range(2, 30)]
    assert read_status(connect(text=get())) == "HTTP/1.1 200 OK"
    assert is_closed_within(silent[0], 0.1)


def test_a_connection_without_a_request_is_closed(connect):
    assert is_closed_within(connect(), 5)


def test_headers_that_come_in_drops_end_with_408(connect):
    slow = connect(text=b"GET / HTTP/1.1\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(8):
            slow.sendall(b"a: b\r\n")
            time.sleep(0.1)
    assert read_status(slow) in {"HTTP/1.1 408 Request Timeout", ""}
    assert is_closed_within(slow, 5)


def test_a_body_that_does_not_come_ends_with_408(connect, app):
    slow = connect(text=b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nabc")
    assert read_status(slow) == "HTTP/1.1 408 Request Timeout"
    assert is_closed_within(slow, 5)
    until = time.monotonic() + 5
    while not app.errors and time.monotonic() < until:
        time.sleep(0.01)
    assert [type(error).__name__ for error in app.errors] == ["ClientDisconnect"]


def test_the_second_request_of_a_connection_has_its_deadline_too(connect):
    opened = connect(text=get())
    received = b""
    while not received.endswith(b"0 bytes"):
        received += opened.recv(4096)
    opened.sendall(b"GET / HT")
    assert read_status(opened) == "HTTP/1.1 408 Request Timeout"


def test_a_request_that_is_being_answered_has_no_deadline(connect, app):
    waiting = connect(text=get("/wait"))
    time.sleep(1.2)
    app.go.set()
    assert read_status(waiting) == "HTTP/1.1 200 OK"


def test_connections_that_are_being_answered_are_not_closed_for_others(connect, app):
    waiting = [connect(text=get("/wait")) for _ in range(4)]
    time.sleep(0.2)
    assert read_status(connect(text=get())) == "HTTP/1.1 503 Service Unavailable"
    assert read_status(connect("127.0.0.2", get())) == "HTTP/1.1 200 OK"
    app.go.set()
    assert [read_status(one) for one in waiting] == ["HTTP/1.1 200 OK"] * 4


def test_refused_connections_make_no_place_for_others(connect, app):
    waiting = [connect(text=get("/wait")) for _ in range(4)]
    time.sleep(0.2)
    refused = [connect(text=get()) for _ in range(6)]
    statuses = [read_status(one) for one in refused]
    assert set(statuses) <= {"HTTP/1.1 503 Service Unavailable", ""}
    assert read_status(connect("127.0.0.2", get())) == "HTTP/1.1 200 OK"
    app.go.set()
    assert [read_status(one) for one in waiting] == ["HTTP/1.1 200 OK"] * 4


def test_a_request_that_came_with_the_one_before_is_answered_however_long_it_takes(connect, app):
    both = connect(text=get() + get("/wait"))
    time.sleep(1.2)
    app.go.set()
    received = b""
    while received.count(b"0 bytes") < 2 and (chunk := both.recv(4096)):
        received += chunk
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_a_response_that_nobody_reads_is_given_up(connect, app):
    deaf = connect(text=get("/large"))
    time.sleep(1.5)
    received = 0
    with contextlib.suppress(ConnectionError):
        while chunk := deaf.recv(1 << 20):
            received += len(chunk)
    assert received < 64 << 20


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:2", 5, 0, 0), "2001:db8::/64"),
        (None, ""),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(peer, network):
    assert find_network(peer) == network


def test_an_address_that_is_taken_is_named_with_the_advice():
    with open_listener("127.0.0.1", 0, what="the test", advice="") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"^the test cannot listen on 127\.0\.0\.1:{port} .*; take"
        ):
            open_listener("127.0.0.1", port, what="the test", advice="take another")
