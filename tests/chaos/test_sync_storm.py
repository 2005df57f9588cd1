"""Model sync while everything happens at once: writers of every kind, kill -9, Redis restarted, ClickHouse failing.

At rest `FINAL` equals the database, in Django and in SQLAlchemy. The same storm with a defect of the old tool put in
has to be noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from changed_syncs import changed
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import AnswerError, DropAnswer
from oncehouse.sync.changes.redis_storage import RedisStorage
from sync_jobs import lose_while_away, see_inserts
from sync_storms import FRAMEWORKS, Storm, open_storm
from synced_shop import Shop

from django.db import transaction  # isort: skip - after the settings of synced_shop

from sync_shop.clickhouse_models import CustomerSync
from sync_shop.models import Customer

CALM = {"sync_delay": 0, "sync_lease": 1, "sync_batch_size": 50}


@pytest.fixture(params=FRAMEWORKS)
def storm(request, postgres_url, clickhouse, database, redis) -> Iterator[Storm]:
    with open_storm(
        FRAMEWORKS[request.param],
        postgres_url,
        clickhouse,
        database,
        calm=CALM,
        orders={"sync_storage": "redis", "sync_batch_size": None},
        CLICKHOUSE_REDIS_CONFIG={"port": redis.place.ports["redis"], "prefix": f"{database}:"},
    ) as storm:
        yield storm


def weather(storm: Storm, stack: Any, seed: int, *defects: str) -> None:
    """Writers at work, and meanwhile: kills, a Redis that goes and comes back, inserts that fail or seem to."""
    dice = random.Random(seed)
    with FaultProxy(server_port=storm.clickhouse_port) as proxy:
        with storm.start_job(through=proxy.url, defects=defects) as job:
            job("work")
            with storm.writing(seed):
                for turn in range(6):
                    fault = dice.choice([AnswerError(), AnswerError(code=241), DropAnswer()])
                    proxy.inject(fault, times=dice.randrange(1, 3))
                    see_inserts(proxy, dice.randrange(3, 9))
                    if turn == 2:
                        stack.kill("redis")
                        time.sleep(0.5)
                        stack.start("redis")
                    job("kill")
                    job("work")
                job("kill")
            proxy.take_back()
            job("drain")
        assert sum(proxy.happened.values()) >= 6
    storm.assert_equal()


@pytest.mark.parametrize("seed", [1, 2])
def test_at_rest_final_equals_the_database(storm, stack, seed, record_property):
    record_property("seed", seed)
    weather(storm, stack, seed)
    assert len(storm.shop.rows(storm.framework.people, "id")) > 10
    assert any(tags for (tags,) in storm.shop.rows(storm.framework.orders, "tags"))


@pytest.mark.parametrize("defect", ["ignore_deletes", "remove_by_key"])
def test_the_storm_notices_the_defects_of_the_old_tool(storm, stack, defect):
    with pytest.raises(AssertionError, match="not what the database has"):
        weather(storm, stack, 3, defect)


def test_the_storm_notices_changes_that_were_lost_while_redis_was_away(storm, stack, monkeypatch):
    def tell_later(storage: RedisStorage, writer: Any, *told: Any) -> None:
        """As the old tool did, which knows Django alone: after the commit."""
        transaction.on_commit(lambda: lose_while_away(storage, writer, *told), using=storm.shop.alias)

    is_django = isinstance(storm.shop, Shop)
    monkeypatch.setattr(RedisStorage, "register", tell_later if is_django else lose_while_away)
    with pytest.raises(AssertionError, match=r"(orders|sales): not what the database has"):
        weather(storm, stack, 4)


def test_the_storm_notices_a_lock_that_a_killed_process_never_frees(storm, stack):
    with pytest.raises(AssertionError, match=r"drain failed|the syncs stand still"):
        weather(storm, stack, 5, "never_free")


POINTS = ("sync.listed", "sync.read", "sync.confirmed", "sync.inserted", "sync.removed")


@pytest.mark.parametrize("engine", ["replacing", "append", "collapsing"])
@pytest.mark.parametrize("storm", ["django"], indirect=True)
def test_a_process_killed_at_any_step_leaves_what_the_next_one_needs(storm, engine):
    attributes: dict[str, Any] = {"sync_lease": 1}
    if engine != "replacing":
        attributes["engine"] = engine
    shop, changes = storm.shop, {CustomerSync: attributes}
    people = Customer.objects.using(shop.alias)
    with changed(changes), storm.start_job(changes=changes) as job:
        for point in POINTS:
            doomed = people.create(name=f"{point} deleted")
            people.create(name=point)
            job(f"crash {point}")
            doomed.delete()
            people.filter(name__in=POINTS).update(vip=True)
            job("drain")
            assert shown(shop, engine) == sorted(people.values_list("name", "vip")), point
            assert shop.waiting(CustomerSync) == []


def shown(shop: Shop, engine: str) -> list[tuple[Any, ...]]:
    if engine != "append":
        return shop.rows(CustomerSync, "name, vip")
    rows = shop.rows(CustomerSync, "id, _version, name, vip, _deleted", final=False)
    assert len(rows) == len({row[:2] for row in rows}), "a batch was taken twice"
    return sorted({row[0]: row[2:4] for row in rows if not row[4]}[key] for key in _alive(rows))


def _alive(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Keys whose newest row is no deletion; the rows are in order of key and version."""
    newest = {row[0]: row[4] for row in rows}
    return [key for key, deleted in newest.items() if not deleted]
