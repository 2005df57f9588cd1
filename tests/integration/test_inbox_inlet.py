"""The HTTP inlet: what it takes, what it refuses, and that it answers only what is committed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from inbox_examples import message
from oncehouse.common.database import open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.admin import read_inboxes
from oncehouse.messaging.inbox.http_endpoint import InboxEndpoint, listen
from oncehouse.messaging.inbox.http_endpoint import serve as run_server
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.types import StoreResult


@pytest.fixture
def stored(tmp_path) -> Iterator[StoredInbox]:
    opened = StoredInbox("orders", f"sqlite:///{tmp_path / 'shop.db'}")
    opened.create_tables()
    yield opened
    opened.close()


def call(inlet: InboxEndpoint, *requests: tuple[str, str, dict]) -> list[httpx.Response]:
    """The requests one after the other, on the app itself."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=inlet.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://inlet") as client:
            return [await client.request(method, path, **more) for method, path, more in requests]

    return asyncio.run(run())


def post(key: str | None, body: bytes = b"v", path: str = "/messages/orders", **headers: str | bytes):
    named = {} if key is None else {"Idempotency-Key": key}
    return "POST", path, {"content": body, "headers": {**named, **headers}}


def statuses(responses: list[httpx.Response]) -> list[int]:
    return [response.status_code for response in responses]


@pytest.fixture
def inlet(stored) -> InboxEndpoint:
    return InboxEndpoint({"orders": stored}, max_body_bytes=100)


def test_a_message_is_stored_once_and_a_repeat_is_told_from_a_conflict(inlet, stored):
    answers = call(inlet, post("a"), post("a"), post("a", b"other"), post("b", b"other"))
    assert statuses(answers) == [201, 200, 409, 201]
    assert [answer.json() for answer in answers[:2]] == [
        {"id": "a", "result": "stored"},
        {"id": "a", "result": "repeated"},
    ]
    assert stored.counts == StoreResult(new=2, repeated=2)


def test_a_handler_gets_key_body_and_kind(inlet, stored):
    call(inlet, post("a", b"\0", **{"Message-Key": "customer-1", "Content-Type": "application/octet-stream"}))
    seen = []
    stored.worker(lambda _session, one: seen.append(one)).run(once=True)
    (one,) = seen
    assert (one.topic, one.key, one.value, one.message_id) == ("orders", b"customer-1", b"\0", "a")
    assert one.header("content-type") == b"application/octet-stream"


def test_a_key_is_not_the_id_of_a_message_of_kafka(inlet, stored):
    assert stored.store([message("a")]).new == 1
    assert statuses(call(inlet, post("a", b"other"), post("a", b"other"))) == [201, 200]


@pytest.mark.parametrize("key", [None, "", "x" * 201])
def test_a_message_without_a_good_key_is_refused(inlet, key):
    (answer,) = call(inlet, post(key))
    assert answer.status_code == 400
    assert "Idempotency-Key must stand once" in answer.json()["error"]


def test_two_keys_are_none(inlet):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert statuses(call(inlet, ("POST", "/messages/orders", {"content": b"v", "headers": headers}))) == [400]


def test_a_body_that_is_too_large_is_refused_however_it_is_sent(inlet, stored):
    async def chunks():
        for _ in range(20):
            yield b"x" * 10

    declared, streamed = call(
        inlet,
        post("a", b"x" * 101),
        ("POST", "/messages/orders", {"content": chunks(), "headers": {"Idempotency-Key": "b"}}),
    )
    assert statuses([declared, streamed]) == [413, 413]
    assert stored.counts.new == 0
    assert statuses(call(inlet, post("c", b"x" * 100))) == [201]


def test_other_inboxes_paths_and_methods_are_refused(inlet):
    answers = call(
        inlet, post("a", path="/messages/other"), post("a", path="/"), ("GET", "/messages/orders", {})
    )
    assert statuses(answers) == [404, 404, 405]


def test_a_token_is_asked_for_where_one_is_set(stored):
    inlet = InboxEndpoint({"orders": stored}, token="sesame")
    given = ["", "sesame", "Bearer", "Bearer wrong", "Basic sesame", "bearer sesame", "Bearer sesame"]
    strange = "Bearer ünï".encode()
    answers = call(inlet, *(post("a", Authorization=one) for one in (*given, strange)))
    assert statuses(answers) == [401, 401, 401, 401, 401, 201, 200, 401]
    assert answers[0].headers["www-authenticate"] == "Bearer"


def test_a_database_that_is_away_is_told_as_such():
    engine = open_engine("postgresql+psycopg://nobody@127.0.0.1:9/none?connect_timeout=1", setting="database")
    message_answer, health = call(
        InboxEndpoint({"orders": StoredInbox("orders", engine)}), post("a"), ("GET", "/health", {})
    )
    assert (message_answer.status_code, health.status_code) == (503, 503)
    assert message_answer.headers["retry-after"]
    engine.dispose()


def test_health_is_told(inlet):
    (answer,) = call(inlet, ("GET", "/health", {}))
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], str]]]:
    """`oncehouse inbox serve` in a process of its own, and where it listens."""
    processes: list[subprocess.Popen[str]] = []

    def start(url: str) -> tuple[subprocess.Popen[str], str]:
        file = tmp_path / "messaging.yaml"
        file.write_text(
            yaml.safe_dump({"database": url, "inbox": {"names": ["orders"], "inlet": {"port": 0}}})
        )
        command = [
            sys.executable,
            "-c",
            "from oncehouse.cli.app import main; main()",
            "inbox",
            "serve",
            str(file),
        ]
        source = Path(__file__).parents[2] / "src"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        line = processes[-1].stdout.readline()
        return processes[-1], line.split()[2]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def test_what_was_answered_is_there_after_a_kill(postgres_url, serve):
    stored = StoredInbox("orders", postgres_url)
    stored.create_tables()
    killed, address = serve(postgres_url)
    for number in range(20):
        answer = httpx.post(
            f"{address}/messages/orders", content=b"v", headers={"Idempotency-Key": str(number)}
        )
        assert answer.status_code == 201
    killed.kill()
    with stored.engine.connect() as connection:
        (status,) = read_inboxes(connection)
    assert status.waiting == 20
    stored.close()


def test_a_stop_lets_a_request_that_has_begun_be_answered(stored, monkeypatch):
    begun, stop = threading.Event(), threading.Event()
    store_one = stored.store_one

    def store_slowly(given):
        begun.set()
        stop.wait(20)
        time.sleep(0.3)  # the server has heard of the stop by now
        return store_one(given)

    monkeypatch.setattr(stored, "store_one", store_slowly)
    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor() as pool:
        app = InboxEndpoint({"orders": stored}).app
        serving = pool.submit(run_server, app, listener, stop, drain_seconds=20)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/messages/orders"
        answer = pool.submit(httpx.post, address, content=b"v", headers={"Idempotency-Key": "a"})
        assert begun.wait(20)
        stop.set()
        assert answer.result(20).status_code == 201
        serving.result(20)


def test_silent_connections_shut_nobody_out(stored):
    stop = threading.Event()
    with (
        listen("127.0.0.1", 0) as listener,
        ThreadPoolExecutor() as pool,
        ExitStack() as opened,
    ):
        address = listener.getsockname()
        serving = pool.submit(
            run_server, InboxEndpoint({"orders": stored}).app, listener, stop, drain_seconds=1
        )
        try:
            for number in range(300):
                source = (f"127.0.0.{2 + number % 3}", 0)
                opened.enter_context(socket.create_connection(address, source_address=source))
            url = f"http://127.0.0.1:{address[1]}/messages/orders"
            assert httpx.post(url, content=b"v", headers={"Idempotency-Key": "a"}).status_code == 201
        finally:
            stop.set()
        serving.result(20)


def test_many_health_checks_ask_the_database_once(stored, monkeypatch):
    checks = []
    monkeypatch.setattr(stored, "check", lambda: checks.append(1))

    async def ask_often():
        app = InboxEndpoint({"orders": stored}).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inlet") as client:
            return await asyncio.gather(*(client.get("/health") for _ in range(50)))

    assert {response.status_code for response in asyncio.run(ask_often())} == {200}
    assert len(checks) == 1


def test_a_port_that_is_taken_is_told():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            listen("127.0.0.1", port)
