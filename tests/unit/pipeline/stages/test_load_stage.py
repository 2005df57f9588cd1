"""The load stage beside a ClickHouse that comes and goes: what is cut, when, and what is said about it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from ledger_examples import TABLE, make_part, make_registration, take_lease
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError
from oncehouse.ledger.catalog.batches import finish_attempt, list_batches, start_attempt
from oncehouse.ledger.catalog.leases import acquire, list_leases
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import BatchStatus, Stage
from oncehouse.pipeline.load.insert_rate import InsertAnswer
from oncehouse.pipeline.load.insert_task import AttemptResult
from oncehouse.pipeline.stages import load_stage, server_watch
from oncehouse.pipeline.stages.load_stage import LoadStage

PATIENCE_SECONDS = 30.0
MIN_ROWS = 100


class FakeServer:
    """A ClickHouse that is there or not, and takes every batch while it is."""

    address = "http://nowhere:8123"
    database = "default"

    def __init__(self) -> None:
        self.there = False
        self.asked = 0
        self.too_many_parts = False
        self.parts: int | None = 1
        self.begun_at: list[float] = []
        self.late_seconds = 0.0
        """How long a task takes before its insert begins; every other one takes no time."""

    def query(self, statement: str, _parameters=None) -> list[tuple[object, ...]]:
        if "system.parts" not in statement:
            return [("MergeTree ORDER BY id SETTINGS parts_to_delay_insert = 1000",)]
        if self.parts is None:
            raise TransientError("no answer")
        return [(self.parts,)]

    def find_trouble(self) -> str | None:
        self.asked += 1
        return None if self.there else "no answer to a ping"

    def _answer(self, *, taken: bool) -> InsertAnswer:
        if taken:
            return InsertAnswer.TAKEN
        return InsertAnswer.TOO_MANY_PARTS if self.too_many_parts else InsertAnswer.FAILED

    def load(self, _spark, _pipeline, catalog, token, batch, *, facts) -> AttemptResult:
        attempt = start_attempt(catalog, token, batch.batch_id)
        time.sleep(self.late_seconds * (len(self.begun_at) % 2 == 0))
        self.begun_at.append(time.monotonic())
        taken = self.there and not self.too_many_parts
        result = AttemptResult(
            status=BatchStatus.IN_CLICKHOUSE if taken else BatchStatus.RETRY,
            outcome="inserted" if taken else "failed",
            detail=None if taken else "nobody there",
            answer=self._answer(taken=taken),
            seconds=time.monotonic() - self.begun_at[-1],
        )
        finish_attempt(
            catalog,
            token,
            attempt,
            status=result.status,
            outcome=result.outcome,
            detail=result.detail,
            wait_seconds=0.05,
        )
        return result


class FakeSpark:
    @property
    def sparkContext(self) -> FakeSpark:  # noqa: N802 - Spark's own spelling
        return self

    def setLocalProperty(self, _name: str, _value: str) -> None:  # noqa: N802 - Spark's own spelling
        pass


class Working:
    """The stage at work on a thread of its own."""

    def __init__(
        self, catalog, server: FakeServer, *, tables_unseen: bool = False, min_interval: float = 0.01
    ) -> None:
        self.catalog = catalog
        self.server = server
        self.error: OncehouseError | None = None
        self.said: list[str] = []
        self.stop, self.drain = threading.Event(), threading.Event()
        self.token = take_lease(catalog)
        self.epochs = 0
        lease = acquire(catalog, Stage.LOAD, holder="this test", lease_seconds=600)
        self._loading = LoadStage(
            FakeSpark(),
            make_pipeline(min_interval),
            catalog,
            lease,
            on_loaded=lambda _: None,
            say=self.said.append,
            tables_unseen=tables_unseen,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._loading.run(self.stop, self.drain)
        except OncehouseError as error:
            self.error = error

    def register(self, rows: int) -> None:
        self.epochs += 1
        number, epoch = self.epochs, self.epochs
        part = make_part(f"part-{number}", epoch=epoch, rows=rows, live_rows=rows)
        span = {"start": number * 10 - 10, "end": number * 10}
        register(self.catalog, self.token, make_registration(epoch, parts=(part,), **span))

    def rows(self, *statuses: BatchStatus) -> list[int]:
        return [batch.rows for batch in list_batches(self.catalog, statuses=statuses or None)]


def make_pipeline(min_interval: float) -> Pipeline:
    return Pipeline(
        pipeline="events",
        source={"kafka": {"bootstrap_servers": "nowhere:9092", "topics": ["t"]}, "fields": {"id": "UInt64"}},
        identity={"fields": ["id"]},
        tables=[{"name": TABLE}],
        clickhouse={"url": "http://nowhere:8123"},
        ledger={"catalog": "sqlite:///unused.db", "files": "unused"},
        batch={"min_rows": MIN_ROWS, "max_rows": 1000, "max_wait": 0.2, "min_interval": min_interval},
    )


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def server(monkeypatch) -> FakeServer:
    def read_nothing(_pipeline):
        raise TransientError("ClickHouse is away")

    server = FakeServer()
    monkeypatch.setattr(load_stage, "connect", lambda _config: server)
    monkeypatch.setattr(load_stage, "load", server.load)
    monkeypatch.setattr(load_stage, "read_tables", read_nothing)
    monkeypatch.setattr(load_stage, "_AWAY_SECONDS", 0.05)
    monkeypatch.setattr(server_watch, "PROBE_SECONDS", 0.05)
    return server


@pytest.fixture
def stage(catalog, server):
    made = Working(catalog, server)
    yield made
    made.stop.set()
    made.thread.join(PATIENCE_SECONDS)
    assert not made.thread.is_alive()


def test_few_rows_are_not_cut_for_a_server_that_is_away_and_that_is_said_once(stage, server):
    stage.register(5)
    wait_for(lambda: server.asked > 1)
    stage.register(6)
    asked = server.asked
    wait_for(lambda: server.asked > asked)
    assert stage.rows() == []
    assert len(stage.said) == 1
    assert "ClickHouse at http://nowhere:8123 does not answer" in stage.said[0]
    server.there = True
    wait_for(lambda: stage.rows(BatchStatus.IN_CLICKHOUSE))
    assert stage.rows() == [11]


def test_a_server_that_goes_away_and_comes_back_is_told_of_and_noted_while_nothing_waits_for_it(
    stage, server
):
    def note() -> str | None:
        return next(lease.pause for lease in list_leases(stage.catalog) if lease.stage is Stage.LOAD)

    wait_for(lambda: stage.said)
    assert stage.said[0].startswith("ClickHouse at http://nowhere:8123 does not answer")
    wait_for(lambda: note() is not None)
    assert note() == "ClickHouse at http://nowhere:8123 does not answer (no answer to a ping)"
    server.there = True
    wait_for(lambda: len(stage.said) > 1)
    assert "answers again" in stage.said[1]
    wait_for(lambda: note() is None)


def test_enough_rows_are_cut_whatever_the_server_says_and_nothing_beside_them_while_they_wait(stage, server):
    stage.register(MIN_ROWS)
    wait_for(lambda: stage.rows(BatchStatus.RETRY))
    for _ in range(4):
        stage.register(MIN_ROWS * 2)
    wait_for(lambda: len(stage.said) > 2)
    assert stage.rows() == [MIN_ROWS]
    server.there = True
    wait_for(lambda: sum(stage.rows(BatchStatus.IN_CLICKHOUSE)) == MIN_ROWS * 9)
    assert stage.rows() == [MIN_ROWS, MIN_ROWS * 8], "what waited goes out as one batch"


def test_a_drain_waits_for_the_server_and_ends_when_all_is_loaded(stage, server):
    stage.register(5)
    stage.drain.set()
    wait_for(lambda: server.asked > 1)
    assert stage.thread.is_alive()
    server.there = True
    stage.thread.join(PATIENCE_SECONDS)
    assert not stage.thread.is_alive()
    assert stage.rows(BatchStatus.IN_CLICKHOUSE) == [5]


@pytest.fixture
def late_stage(catalog, server):
    """Its tables were not looked at when it started."""
    made = Working(catalog, server, tables_unseen=True)
    yield made
    made.stop.set()
    made.thread.join(PATIENCE_SECONDS)


def test_tables_that_nobody_has_looked_at_get_nothing_before_somebody_has(late_stage, server, monkeypatch):
    looked = []
    monkeypatch.setattr(load_stage, "require_tables", lambda *_: looked.append(late_stage.rows()))
    late_stage.register(MIN_ROWS)
    wait_for(lambda: server.asked > 1)
    assert late_stage.rows() == []
    server.there = True
    wait_for(lambda: late_stage.rows(BatchStatus.IN_CLICKHOUSE))
    assert looked == [[]]


def test_a_table_that_is_found_unfit_when_the_server_is_back_ends_the_stage(late_stage, server, monkeypatch):
    def refuse(*_):
        raise ConfigurationError("no such table")

    monkeypatch.setattr(load_stage, "require_tables", refuse)
    late_stage.register(MIN_ROWS)
    server.there = True
    late_stage.thread.join(PATIENCE_SECONDS)
    assert str(late_stage.error) == "no such table"
    assert late_stage.rows() == []


def test_too_many_parts_slow_the_next_batches_down(stage, server):
    def interval_seconds() -> float:
        return stage._loading._rates.timing(TABLE).least_seconds

    usual = interval_seconds()
    server.there = server.too_many_parts = True
    stage.register(MIN_ROWS)
    wait_for(lambda: interval_seconds() > 4 * usual)
    server.too_many_parts = False
    wait_for(lambda: stage.rows(BatchStatus.IN_CLICKHOUSE))
    while interval_seconds() > usual:
        stage.register(MIN_ROWS)
        done = stage.epochs * MIN_ROWS
        wait_for(lambda done=done: sum(stage.rows(BatchStatus.IN_CLICKHOUSE)) == done)


def test_a_table_that_fills_up_with_parts_is_sent_to_more_seldom_before_it_refuses(stage, server):
    server.there, server.parts = True, 600
    stage.register(MIN_ROWS)
    wait_for(lambda: stage.rows(BatchStatus.IN_CLICKHOUSE))
    wait_for(lambda: stage._loading._rates.timing(TABLE).least_seconds > 0.01)


def test_whoever_may_not_see_parts_is_sent_to_all_the_same(stage, server):
    server.there, server.parts = True, None
    stage.register(MIN_ROWS)
    stage.register(MIN_ROWS)
    wait_for(lambda: sum(stage.rows(BatchStatus.IN_CLICKHOUSE)) == 2 * MIN_ROWS)
    assert stage._loading._rates.timing(TABLE).least_seconds == 0.01


def test_inserts_keep_their_distance_whatever_the_tasks_that_send_them_take_to_begin(catalog, server):
    server.there, server.late_seconds = True, 0.25
    stage = Working(catalog, server, min_interval=0.3)
    try:
        for _ in range(4):
            stage.register(MIN_ROWS)
            done = stage.epochs * MIN_ROWS
            wait_for(lambda done=done: sum(stage.rows(BatchStatus.IN_CLICKHOUSE)) == done)
    finally:
        stage.stop.set()
        stage.thread.join(PATIENCE_SECONDS)
    assert len(server.begun_at) == 4
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(server.begun_at))
