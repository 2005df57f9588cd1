"""An INSERT stands still before its first byte, or on its way, until another driver has finished its batch and the
table has forgotten the token. Then it goes on, and adds nothing.

A Spark worker and a driver are stopped by SIGSTOP; on its way it is the proxy that holds the INSERT. Two fences refuse
it, each alone: the deadline, which a process cannot outlive while it stands still, and the session on the server.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from late_world import push_token_out

from chaos_processes import ended, state_of
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import HoldRequest
from oncehouse.ledger.catalog import leases
from oncehouse.pipeline.load import attempt
from road import Road, make_event, wait_until

EVENTS = [make_event(number) for number in range(60)]
SESSION_NOT_FOUND = 372


@pytest.fixture
def impatient_road(make_road) -> Road:
    # The timeout is for the table: it remembers little more than a thousand blocks.
    return make_road(lease=2.0, clickhouse={"insert_timeout": 50})


def is_written(file: Path) -> bool:
    return file.exists() and bool(file.read_text(encoding="utf-8"))


def stand_still(road: Road, *, circumstances: str, fenced_by: str) -> str:
    """Stop a driver whose worker has stopped before its first byte, let another finish; says what the worker got."""
    road.document["clickhouse"]["insert_sessions"] = fenced_by == "the session"
    road.send(EVENTS)
    driver = road.spawn(defect=circumstances)
    stopped, outcome = road.folder / "stopped", road.folder / "outcome"
    with ended(driver):
        wait_until(lambda: is_written(stopped) or driver.poll() is not None, "an INSERT about to leave")
        assert driver.poll() is None, road.log()[-3000:]
        pid = int(stopped.read_text(encoding="utf-8"))
        wait_until(lambda: state_of(pid) == "T", "its process to stand still")
        # The lease runs out only while nobody renews it.
        os.kill(driver.pid, signal.SIGSTOP)
        wait_until(
            lambda: all(lease.expires_at < road.catalog.now() for lease in leases.list_leases(road.catalog)),
            "the leases to run out",
        )
        road.run()
        road.assert_exact()
        push_token_out(road)
        os.kill(pid, signal.SIGCONT)
        wait_until(outcome.exists, "the worker to go on")
    return outcome.read_text(encoding="utf-8")


@pytest.mark.scenario("INSERT paused before it is sent")
@pytest.mark.parametrize(
    ("fenced_by", "circumstances", "said"),
    [
        ("the deadline", "worker stops,soon too late", "the INSERT was not sent"),
        ("the session", "worker stops,never too late", "does not know the session"),
    ],
)
def test_a_worker_that_stood_still_before_its_first_byte_adds_nothing(
    impatient_road, fenced_by, circumstances, said
):
    outcome = stand_still(impatient_road, circumstances=circumstances, fenced_by=fenced_by)
    assert outcome.startswith("TryAgain("), outcome
    assert said in outcome
    impatient_road.assert_exact()


@pytest.mark.scenario("INSERT paused before it is sent")
def test_a_driver_that_stood_still_after_its_attempt_was_written_adds_nothing(impatient_road):
    """Its workers and its JVM go on, so that what it starts when it wakes up is really done."""
    road = impatient_road
    road.send(EVENTS)
    driver = road.spawn(defect="driver stops")
    stopped = road.folder / "stopped"
    with ended(driver):
        wait_until(lambda: is_written(stopped) or driver.poll() is not None, "an attempt that was written")
        assert driver.poll() is None, road.log()[-3000:]
        wait_until(
            lambda: all(lease.expires_at < road.catalog.now() for lease in leases.list_leases(road.catalog)),
            "the leases to run out",
        )
        road.run()
        road.assert_exact()
        push_token_out(road)
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(timeout=120) == 4, road.log()[-2000:]
    road.assert_exact()


@pytest.mark.defect("INSERT paused before it is sent")
def test_a_worker_that_knows_neither_deadline_nor_session_is_noticed(impatient_road):
    outcome = stand_still(impatient_road, circumstances="worker stops,never too late", fenced_by="nothing")
    assert outcome.startswith("Inserted("), outcome
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        impatient_road.assert_exact()


def hold_an_insert(road: Road, proxy: FaultProxy) -> None:
    """The first INSERT reaches the server when a retry has finished its batch and the token is forgotten."""
    road.document["clickhouse"]["insert_timeout"] = 1
    road.go_through(proxy)
    road.send(EVENTS)
    proxy.inject(HoldRequest())
    road.run()
    road.assert_exact()
    push_token_out(road)
    proxy.release()
    wait_until(lambda: proxy.late_answers, "the INSERT that was held")


@pytest.mark.scenario("INSERT held on its way")
def test_an_insert_that_is_released_after_its_token_is_forgotten_adds_nothing(make_road, proxy):
    road = make_road()
    hold_an_insert(road, proxy)
    assert proxy.late_answers == [SESSION_NOT_FOUND]
    road.assert_exact()


@pytest.mark.defect("INSERT held on its way")
def test_a_server_that_asks_for_no_session_is_noticed(make_road, proxy, monkeypatch):
    monkeypatch.setattr(attempt, "opening_settings", lambda _: {})
    road = make_road(clickhouse={"insert_sessions": False})
    hold_an_insert(road, proxy)
    assert proxy.late_answers == [0]
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        road.assert_exact()
