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
from late_inserts import push_token_out

from chaos_processes import ended, freeze_without_lock, state_of
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import HoldRequest
from oncehouse.ledger.catalog import leases
from oncehouse.pipeline.load import attempt

EVENTS = [make_event(number) for number in range(60)]
SESSION_NOT_FOUND = 372


@pytest.fixture
def impatient_pipeline(make_pipeline) -> LivePipeline:
    # The timeout is for the table: it remembers little more than a thousand blocks.
    return make_pipeline(lease=2.0, clickhouse={"insert_timeout": 50})


def is_written(file: Path) -> bool:
    return file.exists() and bool(file.read_text(encoding="utf-8"))


def stand_still(live_pipeline: LivePipeline, *, circumstances: str, fenced_by: str) -> str:
    """Stop a driver whose worker has stopped before its first byte, let another finish; says what the worker got."""
    live_pipeline.document["clickhouse"]["insert_sessions"] = fenced_by == "the session"
    live_pipeline.send(EVENTS)
    driver = live_pipeline.spawn(defect=circumstances)
    stopped, outcome = live_pipeline.folder / "stopped", live_pipeline.folder / "outcome"
    with ended(driver):
        wait_until(lambda: is_written(stopped) or driver.poll() is not None, "an INSERT about to leave")
        assert driver.poll() is None, live_pipeline.log()[-3000:]
        pid = int(stopped.read_text(encoding="utf-8"))
        wait_until(lambda: state_of(pid) == "T", "its process to stand still")
        # The lease runs out only while nobody renews it.
        freeze_without_lock(driver, live_pipeline.folder / "catalog.db")
        wait_until(
            lambda: all(
                lease.expires_at < live_pipeline.catalog.now()
                for lease in leases.list_leases(live_pipeline.catalog)
            ),
            "the leases to run out",
        )
        live_pipeline.run()
        live_pipeline.assert_exact()
        push_token_out(live_pipeline)
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
    impatient_pipeline, fenced_by, circumstances, said
):
    outcome = stand_still(impatient_pipeline, circumstances=circumstances, fenced_by=fenced_by)
    assert outcome.startswith("Retryable("), outcome
    assert said in outcome
    impatient_pipeline.assert_exact()


@pytest.mark.scenario("INSERT paused before it is sent")
def test_a_driver_that_stood_still_after_its_attempt_was_written_adds_nothing(impatient_pipeline):
    """Its workers and its JVM go on, so that what it starts when it wakes up is really done."""
    live_pipeline = impatient_pipeline
    live_pipeline.send(EVENTS)
    driver = live_pipeline.spawn(defect="driver stops")
    stopped = live_pipeline.folder / "stopped"
    with ended(driver):
        wait_until(lambda: is_written(stopped) or driver.poll() is not None, "an attempt that was written")
        assert driver.poll() is None, live_pipeline.log()[-3000:]
        wait_until(
            lambda: all(
                lease.expires_at < live_pipeline.catalog.now()
                for lease in leases.list_leases(live_pipeline.catalog)
            ),
            "the leases to run out",
        )
        live_pipeline.run()
        live_pipeline.assert_exact()
        push_token_out(live_pipeline)
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(timeout=120) == 4, live_pipeline.log()[-2000:]
    live_pipeline.assert_exact()


@pytest.mark.defect("INSERT paused before it is sent")
def test_a_worker_that_knows_neither_deadline_nor_session_is_noticed(impatient_pipeline):
    outcome = stand_still(
        impatient_pipeline, circumstances="worker stops,never too late", fenced_by="nothing"
    )
    assert outcome.startswith("Inserted("), outcome
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        impatient_pipeline.assert_exact()


def hold_an_insert(live_pipeline: LivePipeline, proxy: FaultProxy) -> None:
    """The first INSERT reaches the server when a retry has finished its batch and the token is forgotten."""
    live_pipeline.document["clickhouse"]["insert_timeout"] = 1
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(HoldRequest())
    live_pipeline.run()
    live_pipeline.assert_exact()
    push_token_out(live_pipeline)
    proxy.release()
    wait_until(lambda: proxy.late_answers, "the INSERT that was held")


@pytest.mark.scenario("INSERT held on its way")
def test_an_insert_that_is_released_after_its_token_is_forgotten_adds_nothing(make_pipeline, proxy):
    live_pipeline = make_pipeline()
    hold_an_insert(live_pipeline, proxy)
    assert proxy.late_answers == [SESSION_NOT_FOUND]
    live_pipeline.assert_exact()


@pytest.mark.defect("INSERT held on its way")
def test_a_server_that_asks_for_no_session_is_noticed(make_pipeline, proxy, monkeypatch):
    monkeypatch.setattr(attempt, "make_open_settings", lambda _: {})
    live_pipeline = make_pipeline(clickhouse={"insert_sessions": False})
    hold_an_insert(live_pipeline, proxy)
    assert proxy.late_answers == [0]
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        live_pipeline.assert_exact()
