"""Statements before and after the insert, as lineage tables write them: several in one text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etl_shop import Shop, open_shop
from oncehouse.etl.lineage.files import load_lineage
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import StepFailed


@pytest.fixture
def shop(clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path) as shop:
        shop.run("CREATE TABLE {db}.notes (n UInt64, text String) ENGINE = MergeTree ORDER BY n")
        yield shop


def read_topic(shop: Shop, folder: Path, *, before: str, after: str = "SELECT 1") -> Topic:
    (folder / "lineage.yaml").write_text(
        f"""topics:
  - {{topic: Stage, dst: {shop.database}.stage}}
  - topic: Fact
    dst: {shop.database}.fact
    depends_on: {shop.database}.stage
    transform: {shop.database}.FactTransform
    before: |
{indent(before, shop)}
    after: |
{indent(after, shop)}
"""
    )
    return load_lineage(folder)[1]


def indent(text: str, shop: Shop) -> str:
    return "\n".join(f"      {line}" for line in text.replace("{db}", shop.database).splitlines())


def test_several_statements_in_one_text_run_in_their_order(shop, tmp_path):
    topic = read_topic(
        shop,
        tmp_path,
        before="""
-- first; of two
TRUNCATE TABLE {db}.notes; INSERT INTO {db}.notes SELECT 1, 'a;b' /* one; /* and; */ two */;
INSERT INTO {db}.notes SELECT count() + 1, 'it''s; `so`' FROM {db}.notes;
""",
        after="INSERT INTO {db}.notes SELECT count() + 1, $tag$after; all$tag$ FROM {db}.notes",
    )
    shop.add(0, 10)
    shop.catch_up(topic)
    shop.check_exact()
    assert shop.sql("SELECT n, text FROM {db}.notes ORDER BY n") == [
        (1, "a;b"),
        (2, "it's; `so`"),
        (3, "after; all"),
    ]


def test_a_statement_that_fails_is_named_by_topic_and_number_and_the_step_runs_again_from_the_first(
    shop, tmp_path
):
    topic = read_topic(
        shop,
        tmp_path,
        before="TRUNCATE TABLE {db}.notes; INSERT INTO {db}.notes SELECT 1, 'x'; INSERT INTO {db}.missing SELECT 1",
    )
    shop.add(0, 10)
    with shop.scheduler(topic) as scheduler:
        (outcome,) = scheduler.run_round().outcomes
        assert isinstance(outcome, StepFailed)
        assert outcome.why.startswith("Topic Fact: statement 3 of 3 of `before` failed: ")
        assert "missing" in shop.offset().state
    shop.run("CREATE TABLE {db}.missing (n UInt64) ENGINE = MergeTree ORDER BY n")
    with shop.scheduler(topic, lease_seconds=0) as scheduler:
        scheduler._runner.perform(scheduler._runner.plan_decision(resume(scheduler, shop, topic)))
    shop.check_exact()
    assert shop.sql("SELECT count() FROM {db}.notes") == [(1,)]


def resume(scheduler, shop, topic):
    from oncehouse.etl.state.decision import ResumeStep

    return ResumeStep(topic=topic, offset=shop.offset())
