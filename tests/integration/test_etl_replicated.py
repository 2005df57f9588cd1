"""Facts on several servers: what would reach one of them only is refused before anything is built.

Two replicas of one table stand on one server here, under names of their own. They take no rows: the engine of the tests
has no way to be reached by others.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic
from oncehouse.etl.preflight.server_check import inspect_server
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets
from oncehouse.etl.steps.replication import TableReplication, read_replication

COLUMNS = "(pos DateTime64(3), id UInt64)"


@pytest.fixture
def client(zookeeper, clickhouse) -> Client:
    return connect(ClickHouse(url=clickhouse.url))


@pytest.fixture
def topic(client, database) -> Topic:
    path = f"/oncehouse/{uuid.uuid4().hex}"
    client.command(f"CREATE TABLE {database}.stage {COLUMNS} ENGINE = MergeTree ORDER BY (pos, id)")
    client.command(f"INSERT INTO {database}.stage VALUES ('2026-01-01 00:00:00', 1)")
    for name in ("fact", "fact_there"):
        client.command(
            f"CREATE TABLE {database}.{name} {COLUMNS} ENGINE = ReplicatedMergeTree('{path}', '{name}') "
            "PARTITION BY toDate(pos) ORDER BY (pos, id)"
        )
    return Topic(topic="Copy", dst=f"{database}.fact", depends_on=(f"{database}.stage",))


@pytest.fixture
def run(client, database) -> Callable[[Topic], StepFailed]:
    store = KeeperMapOffsets(client, f"{database}.Offsets", f"/{uuid.uuid4().hex}")
    store.prepare()

    def run(topic: Topic) -> StepFailed:
        with Scheduler(client, store, (topic,), folder=Path()) as scheduler:
            (outcome,) = scheduler.run_round().outcomes
        assert isinstance(outcome, StepFailed)
        return outcome

    return run


def test_it_is_known_on_how_many_servers_a_table_stands(client, topic):
    assert read_replication(client, (topic.dst, topic.depends_on[0], "no.such")) == {
        topic.dst: TableReplication(engine="ReplicatedMergeTree", database_engine="Atomic", replicas=2),
        topic.depends_on[0]: TableReplication(engine="MergeTree", database_engine="Atomic"),
    }


def test_a_reload_that_would_reach_one_replica_only_is_refused_before_anything_is_built(client, topic, run):
    reload = replace(topic, template=Template.RELOAD)
    why = run(reload).why
    assert "stands on 2 servers" in why
    assert "ENGINE = Replicated" in why
    assert client.query("SELECT count() FROM system.tables WHERE name LIKE 'fact\\_aside\\_%'") == [(0,)]
    (found,) = inspect_server(client, (reload,), has_local_offsets=False)
    assert (found.level, found.where) == (Level.ERROR, "Copy")


def test_a_repair_of_late_rows_that_another_server_would_not_know_of_is_refused(client, topic, run):
    repairing = replace(topic, late=LatePolicy.REPAIR)
    assert "late: count" in run(repairing).why
    (found,) = inspect_server(client, (repairing,), has_local_offsets=False)
    assert (found.level, found.where) == (Level.ERROR, "Copy")


def test_offsets_of_one_server_for_facts_on_several_are_warned_of(client, topic):
    (found,) = inspect_server(client, (topic,), has_local_offsets=True)
    assert (found.level, found.where) == (Level.WARNING, "offsets.store")
    assert inspect_server(client, (topic,), has_local_offsets=False) == ()
