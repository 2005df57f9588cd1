"""Steps on the real ClickHouse: Facts are exact, whatever dies in between, and never ahead of their sources."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from etl_shop import free_topics
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import PermanentError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.scheduler.step_runner import StepDone, StepRunner
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.decision import DueStep, WaitingTopic
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.etl.steps import range_presence
from oncehouse.etl.steps.operations import Insert, WriteLast, WriteNext

BASE_MS = 1_767_225_600_000  # 2026-01-01

RANGE = """(o.pos, o.id) > ({last_time:DateTime64(3)}, {last_id:UInt64})
    AND (o.pos, o.id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"""
FROM_OFFSETS = """(o.pos, o.id) > (SELECT last FROM {db}.Offsets WHERE topic = 'Orders')
    AND (o.pos, o.id) <= (SELECT next FROM {db}.Offsets WHERE topic = 'Orders')"""

# Dies by itself at a named point, or while the insert runs.
PROCESS = """
import os, signal, sys, threading
from pathlib import Path
from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler

url, database, in_insert = sys.argv[1:]
send = Client.command
def command(self, sql, parameters=None, settings=None):
    if sql.startswith("INSERT INTO") and "Orders" in sql and "OrdersFact" in sql:
        threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return send(self, sql, parameters, settings)
if in_insert == "yes":
    Client.command = command
client = connect(ClickHouse(url=url))
topic = Topic(topic="Orders", dst=f"{database}.OrdersFact",
    depends_on=(f"{database}.orders", f"{database}.customers"), transform=f"{database}.OrdersTransform",
    maxstep_rows=100)
with Scheduler(client, RocksDbOffsets(client, f"{database}.Offsets"), (topic,), folder=Path()) as scheduler:
    scheduler.run_until_idle()
print("finished")
"""


@dataclass(frozen=True, kw_only=True)
class EtlSetup:
    client: Client
    database: str
    store: OffsetStore
    condition: str
    """How the transform takes its range."""

    @property
    def topic(self) -> Topic:
        return Topic(
            topic="Orders",
            dst=f"{self.database}.OrdersFact",
            depends_on=(f"{self.database}.orders", f"{self.database}.customers"),
            transform=f"{self.database}.OrdersTransform",
            maxstep_rows=100,
        )

    def scheduler(self, *topics: Topic, hostid: str = "here", lease_seconds: float = 60) -> Scheduler:
        if not lease_seconds:
            free_topics(self.store)
        worker = TopicWorker(hostid=hostid, lease_seconds=lease_seconds or 60)
        return Scheduler(self.client, self.store, topics or (self.topic,), folder=Path(), worker=worker)

    def sql(self, text: str) -> list[tuple]:
        return self.client.query(text.replace("{db}", self.database))

    def run(self, text: str) -> None:
        self.client.command(text.replace("{db}", self.database))

    def add_orders(self, first: int, count: int, *, rows_per_ms: int = 7) -> None:
        self.run(
            f"INSERT INTO {{db}}.orders SELECT fromUnixTimestamp64Milli({BASE_MS} + intDiv(number, {rows_per_ms})), "
            f"number, number % 3 FROM numbers({first}, {count})"
        )

    def customers_reach(self, time_ms: int) -> None:
        self.run(
            f"INSERT INTO {{db}}.customers SELECT fromUnixTimestamp64Milli({BASE_MS + time_ms}), {time_ms}, number, "
            "'c' || toString(number) FROM numbers(3)"
        )

    def check_exact(self, rows: int) -> None:
        """Every order once, joined, and counted once by the view behind the Fact."""
        found = self.sql(
            "SELECT count(), uniqExact(id), countIf(name != 'c' || toString(customer)) FROM {db}.OrdersFact"
        )
        assert found == [(rows, rows, 0)]
        assert self.sql("SELECT sum(n) FROM {db}.OrdersPerCustomer") == [(rows,)]

    def offset(self, topic: str = "Orders"):
        return self.store.read_all().offsets[topic]


def make_view(setup: EtlSetup, condition: str) -> None:
    setup.run(
        f"CREATE OR REPLACE VIEW {{db}}.OrdersTransform AS SELECT o.id AS id, c.name AS name, o.pos AS pos, "
        f"o.customer AS customer FROM {{db}}.orders AS o "
        "INNER JOIN (SELECT DISTINCT customer, name FROM {db}.customers) AS c ON o.customer = c.customer "
        f"WHERE {condition}"
    )


@pytest.fixture(params=["parameters", "offsets"])
def setup(request, clickhouse, database) -> EtlSetup:
    client = connect(ClickHouse(url=clickhouse.url))
    store = RocksDbOffsets(client, f"{database}.Offsets")
    store.prepare()
    condition = RANGE if request.param == "parameters" else FROM_OFFSETS
    setup = EtlSetup(client=client, database=database, store=store, condition=condition)
    setup.run(
        "CREATE TABLE {db}.orders (pos DateTime64(3), id UInt64, customer UInt64) ENGINE = MergeTree ORDER BY (pos, id)"
    )
    setup.run(
        "CREATE TABLE {db}.customers (pos DateTime64(3), id UInt64, customer UInt64, name String) "
        "ENGINE = MergeTree ORDER BY (pos, id)"
    )
    remembers = "SETTINGS non_replicated_deduplication_window = 1000"
    setup.run(
        "CREATE TABLE {db}.OrdersFact (pos DateTime64(3), id UInt64, customer UInt64, name String) "
        f"ENGINE = MergeTree PARTITION BY id % 3 ORDER BY id {remembers}"
    )
    setup.run(
        "CREATE TABLE {db}.OrdersPerCustomer (customer UInt64, n UInt64) ENGINE = SummingMergeTree "
        f"ORDER BY customer {remembers}"
    )
    setup.run(
        "CREATE MATERIALIZED VIEW {db}.OrdersPerCustomerView TO {db}.OrdersPerCustomer AS "
        "SELECT customer, count() AS n FROM {db}.OrdersFact GROUP BY customer"
    )
    make_view(setup, condition)
    return setup


def test_facts_grow_with_their_sources_and_hold_every_row_once(setup):
    setup.add_orders(0, 350)
    setup.customers_reach(1000)
    with setup.scheduler() as scheduler:
        rounds = scheduler.run_until_idle()
        assert [
            outcome.rows for one in rounds for outcome in one.outcomes if isinstance(outcome, StepDone)
        ] == [
            100,
            100,
            100,
            50,
        ]
        setup.check_exact(350)
        setup.add_orders(350, 1)
        scheduler.run_until_idle()
        setup.check_exact(351)


def test_a_plan_shows_what_a_run_does_and_writes_nothing(setup):
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    with setup.scheduler() as scheduler:
        (step,) = scheduler.plan()
        assert setup.store.read_all().offsets == {}
        kinds = [type(operation) for operation in step.operations]
        assert kinds[0] is WriteNext
        assert kinds[-2:] == [Insert, WriteLast]
        scheduler.run_until_idle()
    assert setup.offset().last == step.span.next
    setup.check_exact(10)


def test_no_step_reads_past_the_slowest_source_and_a_late_source_is_waited_for(setup):
    setup.add_orders(0, 70)
    with setup.scheduler() as scheduler:
        assert isinstance(scheduler.decide()[0], WaitingTopic)
        scheduler.run_until_idle()
        setup.check_exact(0)
        setup.customers_reach(4)  # orders of 0..4 ms: five times seven
        scheduler.run_until_idle()
        setup.check_exact(35)
        (waiting,) = scheduler.run_round().outcomes or (None,)
        assert waiting is None, "the source that stopped costs nothing until it moves"
        setup.customers_reach(9)
        scheduler.run_until_idle()
        setup.check_exact(70)


def test_a_range_whose_output_would_not_fit_one_block_is_halved_before_it_is_inserted(setup):
    setup.add_orders(0, 100)
    setup.customers_reach(1000)
    with setup.scheduler() as scheduler:
        scheduler._runner._sizing.block_rows = 30
        rounds = scheduler.run_until_idle()
    steps = [outcome.rows for one in rounds for outcome in one.outcomes if isinstance(outcome, StepDone)]
    assert max(steps) <= 30
    assert sum(steps) == 100
    setup.check_exact(100)


POINTS = ("etl-before-next", "etl-after-next", "in the insert", "etl-after-insert", "etl-after-last")


@pytest.mark.parametrize("point", POINTS)
def test_facts_are_exact_after_a_kill(setup, point):
    setup.add_orders(0, 350)
    setup.customers_reach(1000)
    if point == "in the insert":
        make_view(setup, f"({setup.condition}) AND NOT ignore(sleepEachRow(0.004))")
    killed = run_process(setup, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "finished" not in killed.stdout
    with setup.scheduler(lease_seconds=0) as scheduler:
        scheduler.run_until_idle()
    wait_for_inserts_to_end(setup)
    setup.check_exact(350)


def run_process(setup: EtlSetup, point: str) -> subprocess.CompletedProcess[str]:
    in_insert = "yes" if point == "in the insert" else "no"
    crash_at = "" if in_insert == "yes" else f"{point}:2"
    return subprocess.run(
        [sys.executable, "-c", PROCESS, setup.client.config.url, setup.database, in_insert],
        env={**os.environ, "ONCEHOUSE_CRASH_AT": crash_at},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def wait_for_inserts_to_end(setup: EtlSetup) -> None:
    for _ in range(200):
        running = setup.sql(
            "SELECT count() FROM system.processes WHERE query_kind = 'Insert' AND query LIKE '%{db}%'"
        )
        if running == [(0,)]:
            return
        time.sleep(0.05)
    raise AssertionError("an insert never ended")


def test_a_token_that_differs_between_attempts_would_be_caught(setup, monkeypatch):
    """The seeded defect: without the same token, a range that runs again doubles its rows where none looks for them."""
    monkeypatch.setattr(range_presence, "find_forgetful", lambda *_: None)
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    stop_before_commit(setup, monkeypatch)
    monkeypatch.setattr("oncehouse.etl.steps.operation_builder.token_of", lambda *_range: uuid.uuid4().hex)
    with setup.scheduler(lease_seconds=0) as scheduler:
        scheduler.run_until_idle()
    with pytest.raises(AssertionError):
        setup.check_exact(10)


def stop_before_commit(setup: EtlSetup, monkeypatch) -> None:
    def refuse(*_arguments, **_names):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, setup.scheduler() as scheduler:
        patch.setattr("oncehouse.etl.state.transitions.commit", refuse)
        (decision,) = scheduler.decide()
        step = scheduler._runner.plan_decision(decision)
        with pytest.raises(KeyboardInterrupt):
            scheduler._runner.perform(step)


def test_a_step_that_was_taken_over_inserts_and_commits_nothing(setup):
    """A host that slept through its lease comes back with an old step."""
    setup.add_orders(0, 150)
    setup.customers_reach(1000)
    slow = StepRunner(setup.client, setup.store, TopicWorker(hostid="slow"), Path())
    with setup.scheduler(hostid="quick", lease_seconds=0) as quick:
        (decision,) = quick.decide()
        assert isinstance(decision, DueStep)
        step = slow.plan_decision(decision)
        transitions.begin(setup.store, TopicWorker(hostid="slow"), decision.offset, next_=step.span.next)
        free_topics(setup.store)
        quick.run_until_idle()
        insert, write_last = step.operations[-2:]
        with pytest.raises(PermanentError, match=r"range of this topic has changed|no longer held by slow"):
            slow._work.carry_out(insert, step)
        with pytest.raises(MutexError, match="no process"):
            slow._write_last(write_last, None, nullcontext())
    setup.check_exact(150)


def test_a_topic_that_fails_says_why_and_leaves_the_others_alone(setup, monkeypatch):
    monkeypatch.setattr("oncehouse.etl.scheduler.due_steps.retry_seconds", lambda _failed: 60)
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    broken = replace(setup.topic, topic="Broken", dst=f"{setup.database}.Missing")
    with setup.scheduler(broken, setup.topic) as scheduler:
        first = scheduler.run_round()
        assert isinstance(first.outcomes[0], StepFailed)
        assert isinstance(first.outcomes[1], StepDone)
        again = scheduler.decide()[0]
    assert setup.offset("Broken").state.startswith("failed 1: Topic Broken: its table")
    assert isinstance(again, WaitingTopic)
    assert "tried again in" in again.reason
    setup.check_exact(10)


@pytest.mark.parametrize("table", ["OrdersFact", "OrdersPerCustomer"])
def test_a_table_that_remembers_nothing_is_refused_with_the_statement_that_helps(setup, table):
    """The Fact itself, or one that a materialized view fills from it."""
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    setup.run(f"ALTER TABLE {{db}}.{table} MODIFY SETTING non_replicated_deduplication_window = 0")
    with setup.scheduler() as scheduler:
        (failed,) = scheduler.plan()
    assert f"`{table}` MODIFY SETTING non_rep" in failed.why


def test_a_plan_goes_on_after_a_topic_that_cannot_be_planned(setup):
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    broken = replace(setup.topic, topic="Broken", dst=f"{setup.database}.Missing")
    with setup.scheduler(broken, setup.topic) as scheduler:
        failed, step = scheduler.plan()
        assert scheduler.plan("Orders") == (step,)
    assert (failed.topic, step.topic.topic) == ("Broken", "Orders")
    assert "Missing does not exist" in failed.why
    assert setup.store.read_all().offsets == {}


def test_before_and_after_run_around_the_insert(setup):
    setup.add_orders(0, 10)
    setup.customers_reach(1000)
    setup.run("CREATE TABLE {db}.notes (what String, facts UInt64) ENGINE = MergeTree ORDER BY what")
    note = "INSERT INTO {db}.notes SELECT '{what}', count() FROM {db}.OrdersFact".replace(
        "{db}", setup.database
    )
    topic = replace(
        setup.topic, before=(note.replace("{what}", "before"),), after=(note.replace("{what}", "after"),)
    )
    with setup.scheduler(topic) as scheduler:
        scheduler.run_until_idle()
    assert setup.sql("SELECT what, facts FROM {db}.notes ORDER BY facts") == [("before", 0), ("after", 10)]


def test_a_fact_built_from_another_fact_waits_for_it(setup):
    setup.add_orders(0, 250)
    setup.customers_reach(1000)
    setup.run(
        "CREATE TABLE {db}.Second (pos DateTime64(3), id UInt64) ENGINE = MergeTree ORDER BY (pos, id) "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    setup.run(
        f"CREATE VIEW {{db}}.SecondTransform AS SELECT pos, id FROM {{db}}.OrdersFact AS o WHERE {RANGE}"
    )
    second = Topic(
        topic="Second",
        dst=f"{setup.database}.Second",
        depends_on=(f"{setup.database}.OrdersFact",),
        transform=f"{setup.database}.SecondTransform",
    )
    with setup.scheduler(second, setup.topic) as scheduler:
        assert "no rows yet" in scheduler.decide()[0].reason
        scheduler.run_until_idle()
    assert setup.sql("SELECT count(), uniqExact(id) FROM {db}.Second") == [(250, 250)]
