"""What `etl check` finds where the blocks of a Fact table cannot be counted."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.preflight.lineage_check import evaluate_uncounted
from table_facts import make_table_facts

TOPIC = Topic(topic="Fact", dst="dwh.fact", depends_on=("stage.main",))
PLACED = ("pos", "id")


def describe(engine: str, *columns: str) -> TableFacts:
    return make_table_facts(
        database="dwh",
        table="fact",
        engine=engine,
        columns=tuple(Column(name=name, type="UInt64", default_kind="") for name in columns),
    )


@pytest.mark.parametrize(
    ("engine", "columns", "what", "advice"),
    [
        ("MergeTree", PLACED, "its rows are counted", "GRANT SELECT ON system.parts TO `loader`"),
        ("MergeTree", ("n",), "the topic stops", "GRANT SELECT ON system.parts TO `loader`"),
        (
            "ReplicatedMergeTree",
            PLACED,
            "its rows are counted",
            "GRANT SELECT ON system.replicas TO `loader`",
        ),
        ("SharedMergeTree", ("n",), "stops the topic", "add the pos and id of stage.main"),
    ],
)
def test_a_table_whose_blocks_cannot_be_counted_is_told_with_what_follows(engine, columns, what, advice):
    (finding,) = evaluate_uncounted(TOPIC, describe(engine, *columns), "loader")
    assert what in finding.what
    assert finding.advice.startswith(advice)


def test_a_shared_table_whose_rows_can_be_found_is_not_complained_of():
    assert not list(evaluate_uncounted(TOPIC, describe("SharedMergeTree", *PLACED), "loader"))
