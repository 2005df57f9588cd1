"""INSERTs of parked batches end before rows count as absent: also one that no list of the server shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from oncehouse.clickhouse.client import error_class
from oncehouse.clickhouse.errors import classify
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import Attempt, BatchStatus, LedgerBatch
from oncehouse.pipeline.load.parked_inserts import end_parked_inserts

NOW = 10_000.0


def batch(name: str, status: BatchStatus) -> LedgerBatch:
    return LedgerBatch(
        batch_id=name,
        table="events",
        status=status,
        rows=1,
        size_bytes=1,
        created_at=0.0,
        attempts=2,
        next_attempt_at=0.0,
    )


def attempt(number: int, outcome: str | None, *, began: float = NOW - 5) -> Attempt:
    return Attempt(
        batch_id="parked",
        attempt=number,
        query_id=f"parked-{number}",
        started_at=began,
        finished_at=None,
        outcome=outcome,
        detail=None,
    )


class Server:
    def __init__(self, *, arriving: str | None = None, running: tuple[str, ...] = ()) -> None:
        self.arriving, self.running = arriving, running
        self.ended: list[str] = []
        self.killed: list[str] = []

    def command(self, _sql, parameters):
        self.killed += parameters["ids"]

    def query(self, sql, _parameters=None, settings=None):
        if "system.processes" in sql:
            return [(query,) for query in self.running]
        session = settings["session_id"]
        if session == self.arriving:
            from clickhouse_connect.driver.exceptions import DatabaseError

            failure = DatabaseError("Code: 373. Session is locked", code=373)
            judged = classify(failure)
            raise error_class(judged)(judged.message) from failure
        self.ended.append(session)
        return [(1,)]


def end(monkeypatch, server, attempts, *, sessions=True):
    monkeypatch.setattr(batches, "list_attempts", lambda *_: attempts)
    pipeline = SimpleNamespace(
        clickhouse=ClickHouse(url="http://fake:8123", insert_sessions=sessions, insert_timeout=300.0),
        max_clock_difference=60.0,
    )
    found = [batch("loaded", BatchStatus.IN_CLICKHOUSE), batch("parked", BatchStatus.PARKED)]
    end_parked_inserts(server, pipeline, SimpleNamespace(now=lambda: NOW), found)


def test_sessions_of_parked_attempts_that_may_have_sent_are_ended(monkeypatch):
    server = Server()
    end(monkeypatch, server, [attempt(1, None), attempt(2, "failed"), attempt(3, "unknown")])
    assert server.killed == ["parked-1", "parked-2", "parked-3"]
    assert server.ended == ["parked-1", "parked-3"]


def test_rows_of_an_insert_that_is_still_arriving_do_not_count_as_absent(monkeypatch):
    with pytest.raises(TransientError, match="still arriving"):
        end(monkeypatch, Server(arriving="parked-1"), [attempt(1, "unknown")])


def test_an_insert_that_outlives_its_kill_is_waited_for(monkeypatch):
    with pytest.raises(TransientError, match="still runs"):
        end(monkeypatch, Server(running=("parked-1",)), [attempt(1, "unknown")])


def test_without_sessions_only_time_proves_that_an_insert_does_not_come(monkeypatch):
    server = Server()
    with pytest.raises(TransientError, match="for 545 s"):
        end(monkeypatch, server, [attempt(1, "unknown")], sessions=False)
    end(monkeypatch, server, [attempt(1, "unknown", began=NOW - 551)], sessions=False)
    end(monkeypatch, server, [attempt(1, "failed")], sessions=False)
    assert server.ended == []
