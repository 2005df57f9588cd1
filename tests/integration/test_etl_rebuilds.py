"""Reload and Range on the real ClickHouse: built aside, gated by row counts, put in place whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.common import failpoints
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed, StepOutcome
from oncehouse.etl.scheduler.step_runner import StepDone, StepRunner
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.decision import ResumeStep
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.steps import operation_builder
from oncehouse.etl.steps.operations import Exchange, Insert, ReplacePartitions, WriteLast


@pytest.fixture
def client(clickhouse) -> Client:
    return connect(ClickHouse(url=clickhouse.url))


@pytest.fixture
def store(client, database) -> RocksDbOffsets:
    store = RocksDbOffsets(client, f"{database}.Offsets")
    store.prepare()
    client.command(
        f"CREATE TABLE {database}.stage (pos DateTime64(3, 'UTC'), id UInt64, v UInt64) "
        "ENGINE = MergeTree ORDER BY (pos, id)"
    )
    client.command(
        f"CREATE TABLE {database}.fact (day Date, id UInt64, v UInt64) ENGINE = MergeTree PARTITION BY day "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    return store


def fill(client: Client, database: str, day: int, rows: int, *, value: int = 1) -> None:
    client.command(
        f"INSERT INTO {database}.stage SELECT toDateTime64('2026-01-{day:02} 00:00:00', 3, 'UTC') + number, "
        f"number + {day} * 1000, {value} FROM numbers({rows})"
    )


def run_once(client: Client, store: RocksDbOffsets, topic: Topic, folder: Path) -> tuple[StepOutcome, ...]:
    with Scheduler(client, store, (topic,), folder=folder) as scheduler:
        return scheduler.run_round().outcomes


def left_aside(client: Client, database: str) -> list[str]:
    return [name for (name,) in client.query(f"SHOW TABLES FROM {database} LIKE 'fact_aside%'")]


def test_a_reload_replaces_the_table_whole_and_identical_rows_are_not_dropped(
    client, database, store, tmp_path
):
    (tmp_path / "all.sql").write_text(f"SELECT toDate(pos) AS day, id, v FROM {database}.stage")
    topic = Topic(
        topic="Small",
        dst=f"{database}.fact",
        depends_on=(f"{database}.stage",),
        template=Template.RELOAD,
        transform="all.sql",
    )
    fill(client, database, 1, 50)
    assert isinstance(run_once(client, store, topic, tmp_path)[0], StepDone)
    assert client.query(f"SELECT count() FROM {database}.fact") == [(50,)]
    assert store.read_all().offsets["Small"].rows == 50
    assert run_once(client, store, topic, tmp_path) == ()
    fill(client, database, 2, 1)
    for _ in range(2):
        run_once(client, store, topic, tmp_path)
        assert client.query(f"SELECT count() FROM {database}.fact") == [(51,)]
    assert left_aside(client, database) == []


def test_a_reload_that_lost_half_its_rows_is_not_put_in_place(client, database, store, tmp_path):
    (tmp_path / "some.sql").write_text(f"SELECT toDate(pos) AS day, id, v FROM {database}.stage WHERE v = 2")
    topic = Topic(
        topic="Small",
        dst=f"{database}.fact",
        depends_on=(f"{database}.stage",),
        template=Template.RELOAD,
        transform="some.sql",
    )
    client.command(f"INSERT INTO {database}.fact SELECT '2026-01-01', number, 0 FROM numbers(100)")
    fill(client, database, 1, 49, value=2)
    (outcome,) = run_once(client, store, topic, tmp_path)
    assert isinstance(outcome, StepFailed)
    assert "has 100 rows, its reload only 49" in outcome.why
    assert client.query(f"SELECT count(), sum(v) FROM {database}.fact") == [(100, 0)]
    assert "its reload only 49" in store.read_all().offsets["Small"].state


WHOLE_DAYS = """SELECT toDate(pos) AS day, id, v FROM {db}.stage
WHERE pos >= toStartOfDay(toTimeZone({last_time:DateTime64(3)}, 'UTC')) AND pos <= {next_time:DateTime64(3)}"""


@pytest.fixture
def ranged(database, tmp_path) -> Topic:
    (tmp_path / "days.sql").write_text(WHOLE_DAYS.replace("{db}", database))
    return Topic(
        topic="Days",
        dst=f"{database}.fact",
        depends_on=(f"{database}.stage",),
        template=Template.RANGE,
        transform="days.sql",
        range_column="day",
    )


def test_a_range_replaces_its_partitions_and_leaves_the_others_alone(
    client, database, store, ranged, tmp_path
):
    fill(client, database, 1, 10)
    fill(client, database, 2, 10)
    run_once(client, store, ranged, tmp_path)
    client.command(f"ALTER TABLE {database}.stage UPDATE v = 9 WHERE 1", settings={"mutations_sync": 1})
    client.command(
        f"INSERT INTO {database}.stage SELECT toDateTime64('2026-01-02 12:00:00', 3, 'UTC'), 9999, 9"
    )
    assert isinstance(run_once(client, store, ranged, tmp_path)[0], StepDone)
    days = client.query(f"SELECT day, count(), sum(v) FROM {database}.fact GROUP BY day ORDER BY day")
    assert [row[1:] for row in days] == [(10, 10), (11, 99)]
    assert store.read_all().offsets["Days"].rows == 11, "of the partition that was put in place"


def test_a_range_that_yields_half_a_partition_replaces_nothing(client, database, store, ranged, tmp_path):
    fill(client, database, 1, 10)
    run_once(client, store, ranged, tmp_path)
    partly = WHOLE_DAYS.replace("{db}", database).replace("pos >=", "id > 9000 AND pos >=")
    (tmp_path / "days.sql").write_text(partly)
    client.command(
        f"INSERT INTO {database}.stage SELECT toDateTime64('2026-01-01 12:00:00', 3, 'UTC'), 9999, 9"
    )
    (outcome,) = run_once(client, store, replace(ranged), tmp_path)
    assert isinstance(outcome, StepFailed)
    assert "whole partitions" in outcome.why
    assert client.query(f"SELECT count() FROM {database}.fact") == [(10,)]


@pytest.mark.parametrize("template", [Template.RELOAD, Template.RANGE])
def test_a_host_that_stood_still_before_the_swap_puts_nothing_of_another_in_place(
    client, database, store, ranged, tmp_path, monkeypatch, template
):
    """Another one took the topic over, and had not filled its own table yet when the first one woke."""
    topic = replace(ranged, template=template, gate_share=0.0)
    fill(client, database, 1, 10)
    slow = StepRunner(client, store, TopicWorker(hostid="slow"), tmp_path)
    quick = StepRunner(client, store, TopicWorker(hostid="quick"), tmp_path)
    with Scheduler(client, store, (topic,), folder=tmp_path) as scheduler:
        (decision,) = scheduler.decide()
    step = slow.plan_decision(decision)
    points: list[str] = []

    def reach(name: str) -> None:
        points.append(name)
        if name == "etl-before-swap" and points.count(name) == 1:
            take_over()

    def take_over() -> None:
        transitions.unlock(store, "Days")
        seen = store.read_all().offsets["Days"]
        again = quick.plan_decision(ResumeStep(topic=topic, offset=seen))
        begun = tuple(one for one in again.operations if not isinstance(one, Insert | WriteLast))
        until = next(
            number for number, one in enumerate(begun) if isinstance(one, Exchange | ReplacePartitions)
        )
        quick.perform(replace(again, operations=begun[:until]))

    monkeypatch.setattr(failpoints, "reach", reach)
    client.command(f"INSERT INTO {database}.fact SELECT '2026-01-01', number, 7 FROM numbers(10)")
    with pytest.raises(MutexError, match="MUTEX"):
        slow.perform(step)
    assert client.query(f"SELECT count(), sum(v) FROM {database}.fact") == [(10, 70)], "as it was"
    transitions.unlock(store, "Days")
    assert [type(one) for one in run_once(client, store, topic, tmp_path)] == [StepDone]
    assert client.query(f"SELECT count(), sum(v) FROM {database}.fact") == [(10, 10)]
    assert left_aside(client, database) == []


def test_a_side_table_that_runs_share_would_be_caught(client, database, store, ranged, tmp_path, monkeypatch):
    """The seeded defect: every run builds into the same name."""
    monkeypatch.setattr(
        operation_builder, "staging_table", lambda dst, _token: f"{dst}_aside_0123456789abcdef"
    )
    test = test_a_host_that_stood_still_before_the_swap_puts_nothing_of_another_in_place
    with pytest.raises(AssertionError, match="as it was"):
        test(client, database, store, ranged, tmp_path, monkeypatch, Template.RELOAD)
