"""Others write into a Fact, or into the target of a view of it, after a host has died in a step, until the step's token
is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from etl_shop import BASE_MS, DiedError, Shop, open_shop
from oncehouse.common import failpoints
from oncehouse.etl.scheduler.scheduler import StepFailed
from oncehouse.etl.steps import range_presence

ROWS = 40
OTHERS = 120


@pytest.fixture
def shop(clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path) as shop:
        for table in ("fact", "counts"):
            shop.run(f"ALTER TABLE {{db}}.{table} MODIFY SETTING non_replicated_deduplication_window = 100")
        yield shop


def insert_into_fact(shop: Shop, number: int) -> None:
    later = BASE_MS / 1000 + 3600 + number
    shop.run(f"INSERT INTO {{db}}.fact VALUES ({later}, {10**6 + number}, 0, 9)")


def insert_into_target(shop: Shop, number: int) -> None:
    shop.run(f"INSERT INTO {{db}}.counts VALUES ({number}), ({1 - number})")  # each block another one


def die_after_the_insert(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        if name == "etl-after-insert":
            raise DiedError

    shop.add(0, ROWS)
    with monkeypatch.context() as patch, shop.scheduler(hostid="dies") as scheduler:
        patch.setattr(failpoints, "reach", reach)
        (step,) = scheduler.plan()
        with pytest.raises(DiedError):
            scheduler._runner.perform(step)


def build_among_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, insert_other: Callable[[Shop, int], None]
) -> tuple[int, int, int]:
    """Rows of the step, different rows, and rows that the view behind the Fact has counted of them."""
    die_after_the_insert(shop, monkeypatch)
    for number in range(OTHERS):
        insert_other(shop, number)
    shop.catch_up(hostid="next")
    assert not shop.offset().is_open
    (own,) = shop.sql("SELECT count(), uniqExact(id, c) FROM {db}.fact WHERE c < 9")
    (counted,) = shop.sql("SELECT sum(n) FROM {db}.counts")
    return own[0], own[1], counted[0] - OTHERS


@pytest.mark.parametrize("insert_other", [insert_into_fact, insert_into_target])
@pytest.mark.scenario("foreign writers push a step's token out")
def test_a_step_that_is_there_is_not_inserted_again(shop, monkeypatch, insert_other):
    assert build_among_others(shop, monkeypatch, insert_other) == (2 * ROWS, 2 * ROWS, 2 * ROWS)


@pytest.mark.scenario("foreign writers push a step's token out")
def test_a_step_of_whose_views_nothing_is_known_stops_with_what_to_do(shop, monkeypatch):
    """The server was killed in the insert, or its query log may not be read."""
    die_after_the_insert(shop, monkeypatch)
    for number in range(OTHERS):
        insert_into_fact(shop, number)
    with monkeypatch.context() as patch, shop.scheduler(lease_seconds=0) as scheduler:
        patch.setattr(range_presence, "has_taken_token", lambda *_, **_names: False)
        (outcome,) = scheduler.run_round().outcomes
    assert isinstance(outcome, StepFailed)
    assert f"holds {2 * ROWS} of the {2 * ROWS} rows" in outcome.why
    assert "etl seek Fact start --force` builds them again" in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact WHERE c < 9") == [(2 * ROWS,)]


@pytest.mark.parametrize("insert_other", [insert_into_fact, insert_into_target])
@pytest.mark.defect("foreign writers push a step's token out")
def test_a_step_that_overlooks_the_blocks_of_others_is_noticed(shop, monkeypatch, insert_other):
    monkeypatch.setattr(range_presence, "find_forgetful", lambda *_: None)
    rows, different, counted = build_among_others(shop, monkeypatch, insert_other)
    doubled = 2 * ROWS if insert_other is insert_into_fact else 0
    assert (rows, different) == (2 * ROWS + doubled, 2 * ROWS)
    assert counted == 4 * ROWS
