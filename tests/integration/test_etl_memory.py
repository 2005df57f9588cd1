"""An open range that is older than the table's memory: the rows are looked for, and nothing is inserted blindly."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed, TopicBusy
from oncehouse.etl.scheduler.step_runner import StepDone
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets
from oncehouse.etl.state.topic_lease import TopicWorker

TRANSFORM = """SELECT pos, id FROM {db}.stage WHERE (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64})
AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"""


@pytest.fixture
def client(zookeeper, clickhouse) -> Client:
    return connect(ClickHouse(url=clickhouse.url))


@pytest.fixture
def topic(client, database, tmp_path, monkeypatch) -> Topic:
    # Only replicated tables forget by time, and the servers of the tests have none.
    monkeypatch.setattr("oncehouse.etl.steps.destination_check.describe_table", describe_as_forgetful)
    (tmp_path / "copy.sql").write_text(TRANSFORM.replace("{db}", database))
    client.command(
        f"CREATE TABLE {database}.stage (pos DateTime64(3), id UInt64) ENGINE = MergeTree ORDER BY (pos, id)"
    )
    client.command(
        f"CREATE TABLE {database}.fact (pos DateTime64(3), id UInt64) "
        "ENGINE = MergeTree ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command(
        f"INSERT INTO {database}.stage SELECT fromUnixTimestamp64Milli(1700000000000 + number), number FROM numbers(50)"
    )
    return Topic(
        topic="Copy", dst=f"{database}.fact", depends_on=(f"{database}.stage",), transform="copy.sql"
    )


@pytest.fixture
def store(client, database) -> KeeperMapOffsets:
    store = KeeperMapOffsets(client, f"{database}.Offsets", f"/{uuid.uuid4().hex}")
    store.prepare()
    return store


def describe_as_forgetful(client: Client, table: str) -> TableFacts | None:
    facts = describe_table(client, table)
    return facts and replace(facts, window_seconds=1.0)


def leave_open(client: Client, store: KeeperMapOffsets, topic: Topic, folder: Path, *, rows: int) -> None:
    """A process that died after it had inserted so many rows, long ago; the table has forgotten its token."""
    with Scheduler(client, store, (topic,), folder=folder, worker=TopicWorker(hostid="dead")) as dead:
        (step,) = dead.plan()
    transitions.begin(store, TopicWorker(hostid="dead"), step.seen, next_=step.span.next)
    client.command(f"INSERT INTO {topic.dst} SELECT pos, id FROM {topic.depends_on[0]} LIMIT {rows}")
    transitions.unlock(store, "Copy")
    time.sleep(0.6)  # past the share of the memory that is relied on


def run_once(client, store, topic, folder):
    with Scheduler(client, store, (topic,), folder=folder) as scheduler:
        (outcome,) = scheduler.run_round().outcomes
    return outcome


@pytest.mark.parametrize("rows", [0, 50])
def test_rows_that_are_there_are_not_inserted_again_and_absent_ones_are(client, store, topic, tmp_path, rows):
    leave_open(client, store, topic, tmp_path, rows=rows)
    assert isinstance(run_once(client, store, topic, tmp_path), StepDone)
    assert client.query(f"SELECT count(), uniqExact(id) FROM {topic.dst}") == [(50, 50)]


def test_a_range_that_is_partly_there_stops_the_topic(client, store, topic, tmp_path):
    leave_open(client, store, topic, tmp_path, rows=20)
    outcome = run_once(client, store, topic, tmp_path)
    assert isinstance(outcome, StepFailed)
    assert "holds 20 of the 50 rows" in outcome.why
    assert store.read_all().offsets["Copy"].is_open
    assert client.query(f"SELECT count() FROM {topic.dst}") == [(20,)]


def test_a_step_longer_than_its_lease_keeps_its_topic(client, store, topic, tmp_path):
    """The heartbeat: another host stays out while the first one's insert runs on."""
    slow = (tmp_path / "copy.sql").read_text() + " AND NOT ignore(sleepEachRow(0.055))"
    (tmp_path / "copy.sql").write_text(slow)
    first, second = (TopicWorker(hostid=name, lease_seconds=1.8) for name in ("first", "second"))
    with (
        Scheduler(client, store, (topic,), folder=tmp_path, worker=first) as long,
        Scheduler(client, store, (topic,), folder=tmp_path, worker=second) as other,
    ):
        running = long._pool.submit(long.run_round)
        outcomes = []
        while not store.read_all().offsets and not running.done():
            time.sleep(0.01)
        while not running.done():
            outcomes.extend(other.run_round().outcomes)
            time.sleep(0.1)
        (done,) = running.result().outcomes
    assert isinstance(done, StepDone)
    assert all(isinstance(outcome, TopicBusy) for outcome in outcomes)
    assert client.query(f"SELECT count(), uniqExact(id) FROM {topic.dst}") == [(50, 50)]
