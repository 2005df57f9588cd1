"""What a step relies on is said with its insert, whatever the user's profile says; what cannot be said is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from clickhouse_users import PASSWORD
from etl_world import DiedError, Shop, open_shop
from oncehouse import crash
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.findings import Level
from oncehouse.config import ClickHouse
from oncehouse.etl import exact_settings
from oncehouse.etl.scheduler import Failed
from oncehouse.etl.server_check import inspect_server


@pytest.fixture
def shop(clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path) as shop:
        yield shop


def as_user(shop: Shop, name: str) -> Shop:
    """The same shop, whose scheduler talks to the server as another user."""
    return replace(shop, client=connect(ClickHouse(url=shop.client.config.url, user=name, password=PASSWORD)))


def die_after_insert(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        if name == "etl-after-insert":
            raise DiedError

    with monkeypatch.context() as patch, shop.scheduler(hostid="dies") as scheduler:
        patch.setattr(crash, "reach", reach)
        (step,) = scheduler.plan()
        with pytest.raises(DiedError):
            scheduler._runner.perform(step)


@pytest.mark.parametrize("user", ["loader", "select_not_deduplicated"])
def test_a_step_that_runs_again_adds_nothing_whatever_the_profile_says_of_deduplication(
    shop, user, monkeypatch
):
    shop.add(0, 100)
    mine = as_user(shop, user)
    die_after_insert(mine, monkeypatch)
    mine.catch_up(hostid="next")
    shop.check_exact()


def test_a_step_is_one_block_where_the_profile_wants_small_ones(shop):
    shop.add(0, 40)
    as_user(shop, "small_blocks").catch_up()
    shop.check_exact()
    assert shop.sql("SELECT n FROM {db}.counts") == [(80,)]  # the view sees each block by itself


def test_a_step_is_refused_where_the_profile_would_cut_its_rows_short(shop):
    shop.add(0, 200_000)
    topic = replace(shop.topic, maxstep_rows=1_000_000)
    with as_user(shop, "cut_short").scheduler(topic) as scheduler:
        (outcome,) = scheduler.run_round().outcomes
    assert isinstance(outcome, Failed)
    assert "Limit for " in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]


@pytest.mark.parametrize(
    ("user", "setting"),
    [
        ("select_never_deduplicated", "deduplicate_insert_select"),
        ("not_deduplicated", "deduplicate_insert"),
        ("doubled_views", "deduplicate_blocks_in_dependent_materialized_views"),
    ],
)
def test_nothing_goes_in_where_the_profile_forbids_what_makes_a_repeat_harmless(shop, user, setting):
    shop.add(0, 100)
    mine = as_user(shop, user)
    with mine.scheduler() as scheduler:
        (outcome,) = scheduler.run_round().outcomes
    assert isinstance(outcome, Failed)
    assert setting in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]
    found = inspect_server(mine.client, (shop.topic,), has_local_offsets=True)
    assert [(one.level, one.where) for one in found] == [(Level.ERROR, f"setting {setting}")]


def test_a_user_who_may_set_everything_is_not_complained_of(shop):
    for user in ("loader", "select_not_deduplicated", "small_blocks"):
        assert inspect_server(as_user(shop, user).client, (shop.topic,), has_local_offsets=True) == ()


def test_a_user_who_may_only_read_is_refused_by_the_check(shop):
    (found,) = inspect_server(as_user(shop, "reader").client, (shop.topic,), has_local_offsets=True)
    assert (found.level, found.where) == (Level.ERROR, "setting readonly")


def test_a_setting_that_is_left_out_would_be_caught(shop, monkeypatch):
    """The seeded defect: what the profile says of INSERT … SELECT is taken as it is."""
    left_out = {
        name: value for name, value in exact_settings._SETTINGS.items() if "insert_select" not in name
    }
    monkeypatch.setattr(exact_settings, "_SETTINGS", left_out)
    shop.add(0, 40)
    mine = as_user(shop, "select_not_deduplicated")
    die_after_insert(mine, monkeypatch)
    mine.catch_up(hostid="next")
    with pytest.raises(AssertionError):
        shop.check_exact()
