"""What of a topic's work would reach one server of several: a pure judgement."""

from __future__ import annotations

import pytest

from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic
from oncehouse.etl.steps.replication import TableReplication, explain_one_sided

REPLICATED, PLAIN = "ReplicatedReplacingMergeTree", "MergeTree"
STEP, REPAIR, RELOAD, RANGE = (
    {"template": Template.STEP},
    {"template": Template.STEP, "late": LatePolicy.REPAIR},
    {"template": Template.RELOAD},
    {"template": Template.RANGE},
)


def judge(work: dict[str, object], engine: str, database: str, replicas: int = 2) -> str | None:
    topic = Topic(topic="T", dst="dwh.t", depends_on=("stage.t",), **work)
    told = explain_one_sided(
        topic, TableReplication(engine=engine, database_engine=database, replicas=replicas)
    )
    return told and told[0]


@pytest.mark.parametrize(
    ("work", "engine", "database"),
    [
        (STEP, REPLICATED, "Atomic"),
        (STEP, REPLICATED, "Replicated"),
        (RANGE, REPLICATED, "Atomic"),  # REPLACE PARTITION goes the way of the rows
        (RANGE, REPLICATED, "Replicated"),
        (RELOAD, REPLICATED, "Replicated"),
        (RELOAD, "SharedMergeTree", "Shared"),
    ],
)
def test_what_reaches_every_replica_is_done(work, engine, database):
    assert judge(work, engine, database) is None


@pytest.mark.parametrize(
    ("work", "engine", "database", "said"),
    [
        (RELOAD, REPLICATED, "Atomic", "the EXCHANGE of a reload would reach one of them"),
        (RELOAD, PLAIN, "Replicated", "each with rows of its own"),
        (RANGE, PLAIN, "Replicated", "each with rows of its own"),
        (REPAIR, REPLICATED, "Atomic", "would not find them on another"),
        (REPAIR, REPLICATED, "Replicated", "would not find them on another"),
    ],
)
def test_what_reaches_one_replica_only_is_refused(work, engine, database, said):
    assert said in (judge(work, engine, database) or "")


@pytest.mark.parametrize("work", [STEP, REPAIR, RELOAD, RANGE])
def test_one_replica_is_no_several(work):
    assert judge(work, REPLICATED, "Atomic", replicas=1) is None
    assert judge(work, PLAIN, "Replicated", replicas=1) is None


@pytest.mark.parametrize("engine", ["Distributed", "Buffer", "KeeperMap"])
def test_a_table_whose_rows_stand_elsewhere_is_not_reloaded(engine):
    assert "the same rows" in (judge(RELOAD, engine, "Atomic", replicas=1) or "")
    assert judge(STEP, engine, "Atomic", replicas=1) is None
