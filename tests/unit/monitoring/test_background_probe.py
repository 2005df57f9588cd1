"""Probes of servers that may be slow: a reader gets the last answer and waits no longer than its limit."""

from __future__ import annotations

import threading

import pytest

from oncehouse.errors import TransientError
from oncehouse.monitoring.background_probe import BackgroundProbe
from oncehouse.monitoring.unavailable import NoAnswer


class Server:
    """Answers with a number that grows; while it is held, it does not answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.asked += 1
        answer = self.asked
        assert self.free.wait(10)
        if self.error is not None:
            raise self.error
        return answer


@pytest.fixture
def server() -> Server:
    return Server()


def test_an_answer_is_kept_for_a_while_and_asked_for_again_when_it_is_old(server):
    now = 0.0
    hearing = BackgroundProbe(server, refresh_seconds=5.0, monotonic=lambda: now)
    assert [hearing.read(wait_seconds=5), hearing.read(wait_seconds=5)] == [1, 1]
    now = 6.0
    assert hearing.read(wait_seconds=5) == 1  # the old one, and a new one is asked for meanwhile
    while hearing.read(wait_seconds=5) == 1:
        pass
    assert server.asked == 2


def test_whoever_looks_waits_no_longer_than_it_wants_to(server):
    server.free.clear()
    hearing = BackgroundProbe(server, refresh_seconds=5.0)
    answer = hearing.read(wait_seconds=0.01)
    assert isinstance(answer, NoAnswer)
    assert not answer.failed
    hearing.read(wait_seconds=0.01)
    assert server.asked == 1, "one question at a time"
    server.free.set()
    assert hearing.read(wait_seconds=5) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [(TransientError("Kafka is away"), "Kafka is away"), (KeyError("x"), "unexpected KeyError: 'x'")],
)
def test_a_failure_is_heard_with_its_reason(server, error, told):
    server.error = error
    answer = BackgroundProbe(server, refresh_seconds=5.0).read(wait_seconds=5)
    assert answer == NoAnswer(why=told, failed=True)


def test_after_a_change_nothing_that_was_asked_before_it_is_heard(server):
    hearing = BackgroundProbe(server, refresh_seconds=60.0)
    assert hearing.read(wait_seconds=5) == 1
    hearing.forget()
    assert hearing.read(wait_seconds=5) == 2
    hearing.forget()
    server.free.clear()
    hearing.read(wait_seconds=0.01)  # the third question is under way
    hearing.forget()  # and its answer may be from before this
    server.free.set()
    assert hearing.read(wait_seconds=5) == 4
