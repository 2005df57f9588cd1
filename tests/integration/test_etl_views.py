"""Materialized views behind a Fact: what an INSERT reaches, however far behind, must drop a repeated step as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etl_shop import DiedError, Shop, open_shop
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.common import failpoints
from oncehouse.etl.preflight.lineage_check import inspect_lineage
from oncehouse.etl.scheduler.scheduler import StepFailed
from oncehouse.etl.step_log import log_ddl, plan_log_view

REMEMBERS = "SETTINGS non_replicated_deduplication_window = 1000"


@pytest.fixture
def shop(clickhouse, database, tmp_path: Path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path) as shop:
        yield shop


def add_inner_view(shop: Shop) -> str:
    """A view that keeps its rows itself; the name of the table that it made for them."""
    shop.run(
        "CREATE MATERIALIZED VIEW {db}.per_kind ENGINE = SummingMergeTree ORDER BY c "
        "AS SELECT c, count() AS n FROM {db}.fact GROUP BY c"
    )
    ((uuid,),) = shop.sql(
        "SELECT toString(uuid) FROM system.tables WHERE database = '{db}' AND name = 'per_kind'"
    )
    return f".inner_id.{uuid}"


def add_view_behind_a_view(shop: Shop) -> str:
    shop.run("CREATE TABLE {db}.totals (n UInt64) ENGINE = MergeTree ORDER BY n")
    shop.run("CREATE MATERIALIZED VIEW {db}.totaling TO {db}.totals AS SELECT sum(n) AS n FROM {db}.counts")
    return "totals"


def die_after_the_insert(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        if name == "etl-after-insert":
            raise DiedError

    with monkeypatch.context() as patch, shop.scheduler(hostid="dies") as scheduler:
        patch.setattr(failpoints, "reach", reach)
        (decision,) = scheduler.decide()
        with pytest.raises(DiedError):
            scheduler._runner.perform(scheduler._runner.plan_decision(decision))


both_kinds = pytest.mark.parametrize(
    ("add_view", "counted"),
    [(add_inner_view, "per_kind"), (add_view_behind_a_view, "totals")],
    ids=["inner table", "behind a view"],
)


@both_kinds
def test_a_view_whose_table_remembers_nothing_is_refused_before_a_step(shop, monkeypatch, add_view, counted):
    table = add_view(shop)
    shop.add(0, 40)
    with shop.scheduler() as scheduler:
        (failed,) = scheduler.plan()
    assert isinstance(failed, StepFailed)
    assert (
        f"`{table}` MODIFY SETTING non_replicated_deduplication_window = 1000" in failed.why.splitlines()[0]
    )
    shop.run(f"ALTER TABLE {{db}}.`{table}` MODIFY SETTING non_replicated_deduplication_window = 1000")
    die_after_the_insert(shop, monkeypatch)
    shop.catch_up(hostid="next")
    shop.check_exact()
    assert shop.sql(f"SELECT sum(n) FROM {{db}}.{counted}") == [(80,)]


@both_kinds
def test_the_check_names_the_view_and_the_statement_that_helps(
    shop: Shop, add_view: Callable[[Shop], str], counted: str
):
    table = add_view(shop)
    view = {"per_kind": "per_kind", "totals": "totaling"}[counted]
    (found,) = inspect_lineage(shop.client, [shop.topic], shop.database)
    assert found.level is Level.ERROR
    assert f"materialized view {shop.database}.{view}" in found.where
    assert f"`{table}` MODIFY SETTING" in found.advice
    shop.run(f"ALTER TABLE {{db}}.`{table}` MODIFY SETTING non_replicated_deduplication_window = 100")
    (narrow,) = inspect_lineage(shop.client, [shop.topic], shop.database)
    assert narrow.level is Level.WARNING, "as for the Fact itself"


def test_a_view_into_a_table_that_keeps_no_tokens_is_refused(shop: Shop):
    shop.run("CREATE TABLE {db}.plain (n UInt64) ENGINE = Memory")
    shop.run("CREATE MATERIALIZED VIEW {db}.plainly TO {db}.plain AS SELECT count() AS n FROM {db}.fact")
    shop.add(0, 40)
    with shop.scheduler() as scheduler:
        (failed,) = scheduler.plan()
    assert "has the engine Memory, which takes a repeated insert twice" in failed.why
    assert [one.level for one in inspect_lineage(shop.client, [shop.topic], shop.database)] == [Level.ERROR]


def test_the_log_of_a_fact_stands_in_no_ones_way(shop: Shop):
    """It logs a repeated block too, and marks it."""
    for statement in log_ddl(shop.database):
        shop.run(statement)
    shop.run(plan_log_view(shop.client, shop.database, shop.topic, id_column=None, time_column=None))
    assert inspect_lineage(shop.client, [shop.topic], shop.database) == ()
    shop.add(0, 40)
    shop.catch_up()
    shop.check_exact()
