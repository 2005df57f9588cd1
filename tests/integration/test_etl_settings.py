"""What a step relies on is said with its insert, whatever the user's profile says; what cannot be said is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.request import Request, urlopen

import pytest

from clickhouse_users import PASSWORD
from etl_shop import DiedError, Shop, open_shop
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.common import failpoints
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl.preflight.server_check import inspect_server
from oncehouse.etl.scheduler.scheduler import StepFailed
from oncehouse.etl.state.position import Position
from oncehouse.etl.steps import exact_settings
from oncehouse.etl.steps.exact_settings import insert_settings
from oncehouse.etl.steps.source_ranges import count_range, read_sources


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
        patch.setattr(failpoints, "reach", reach)
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
    assert isinstance(outcome, StepFailed)
    assert "Limit for " in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]


def test_rows_of_a_shard_that_is_away_are_not_left_out(shop):
    shop.add(0, 40)
    (port,) = shop.sql("SELECT tcpPort()")[0]
    shop.run(
        f"CREATE VIEW {{db}}.sharded AS SELECT * FROM "
        f"remote('127.0.0.1:{port},127.0.0.1:1', {{db}}.stage, 'loader', '{PASSWORD}')"
    )
    client = as_user(shop, "some_shards").client
    some = client.config.url.rstrip("/")
    with urlopen(
        Request(
            f"{some}/?query=SELECT+count()+FROM+{shop.database}.sharded",
            headers={"X-ClickHouse-User": "some_shards", "X-ClickHouse-Key": PASSWORD},
        )
    ) as answer:
        assert answer.read() == b"40\n", "without the setting, the rows of one shard pass for all"
    table, start, end = f"{shop.database}.sharded", Position(time_ms=0, id=0), Position(time_ms=1 << 40, id=0)
    with pytest.raises(OncehouseError, match="connection tries failed"):
        count_range(client, table, last=start, next_=end)
    with pytest.raises(OncehouseError, match="connection tries failed"):
        read_sources(client, [table])
    with pytest.raises(OncehouseError, match="connection tries failed"):
        client.query(
            f"INSERT INTO {shop.database}.stage SELECT * FROM {table}", settings=insert_settings("t")
        )


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
    assert isinstance(outcome, StepFailed)
    assert setting in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]
    found = inspect_server(mine.client, (shop.topic,), has_local_offsets=True)
    assert [(one.level, one.where) for one in found] == [(Level.ERROR, f"setting {setting}")]


def test_nothing_is_planned_where_the_profile_leaves_shards_out_whatever_is_asked(shop):
    shop.add(0, 100)
    mine = as_user(shop, "some_shards_always")
    with mine.scheduler() as scheduler, pytest.raises(PermanentError, match="skip_unavailable_shards"):
        scheduler.run_round()
    found = inspect_server(mine.client, (shop.topic,), has_local_offsets=True)
    assert [(one.level, one.where) for one in found] == [(Level.ERROR, "setting skip_unavailable_shards")]


def test_a_user_who_may_set_everything_is_not_complained_of(shop):
    for user in ("loader", "select_not_deduplicated", "small_blocks"):
        assert inspect_server(as_user(shop, user).client, (shop.topic,), has_local_offsets=True) == ()


def test_a_user_who_may_only_read_is_refused_by_the_check(shop):
    (found,) = inspect_server(as_user(shop, "reader").client, (shop.topic,), has_local_offsets=True)
    assert (found.level, found.where) == (Level.ERROR, "setting readonly")


def test_a_setting_that_is_left_out_would_be_caught(shop, monkeypatch):
    """The seeded defect: what the profile says of INSERT … SELECT is taken as it is, and no rows are looked for."""
    monkeypatch.setattr("oncehouse.etl.steps.range_presence.find_forgetful", lambda *_: None)
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
