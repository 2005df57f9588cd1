"""Syncs of SQLAlchemy classes while writers write, processes are killed, Redis goes away and ClickHouse fails.

At rest `FINAL` equals the database. The same storm with a defect put in has to be noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncehouse.devstack.faults import AnswerError, DropAnswer
from oncehouse.devstack.proxy import FaultProxy
from oncehouse.sync.redis_storage import RedisStorage
from stall_writer import writing
from sync_jobs import lose_while_away, see_inserts, start_job
from sync_stall import (
    SYNCS,
    BuyerSync,
    ChairSync,
    SaleSync,
    Stall,
    Tag,
    assert_equal,
    change,
    open_synced_stall,
)

CALM = {"sync_delay": 0, "sync_lease": 1}
CHANGED: dict[str, dict[str, Any]] = {
    **{sync.__name__: CALM for sync in SYNCS},
    "SaleSync": {**CALM, "sync_storage": "redis"},
    "ChairSync": {**CALM, "engine": "collapsing"},
}


@pytest.fixture
def stall(postgres_url, clickhouse, database, redis) -> Iterator[Stall]:
    settings = {"CLICKHOUSE_REDIS_CONFIG": {"port": redis.place.ports["redis"], "prefix": f"{database}:"}}
    names = ("sync_delay", "sync_lease", "sync_storage", "engine")
    originals = {sync: {name: getattr(sync, name) for name in names} for sync in SYNCS}
    with open_synced_stall(postgres_url, clickhouse, database, **settings) as stall:
        stall.settings = settings
        ChairSync.open_clickhouse().command("DROP TABLE chairs SYNC")
        for sync in SYNCS:
            change(sync, CHANGED[sync.__name__])
        stall.make_tables(ChairSync)
        with stall.session() as session:
            session.add_all([Tag(name=str(n)) for n in range(5)])
            session.commit()
        yield stall
        for sync, attributes in originals.items():
            for name, value in attributes.items():
                setattr(sync, name, value)


def weather(
    stall: Stall, stack: Any, clickhouse: Any, database: str, url: str, seed: int, *defects: str
) -> None:
    """Writers at work, and meanwhile: kills, a Redis that goes and comes back, inserts that fail or seem to."""
    dice = random.Random(seed)
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        address = {"default": {"db_url": proxy.url, "db_name": database}}
        settings = {**stall.settings, "CLICKHOUSE_DATABASES": address}
        with start_job(world="sync_stall", url=url, settings=settings, syncs=CHANGED, defects=defects) as job:
            job("work")
            with writing(stall, seed):
                for turn in range(5):
                    proxy.inject(dice.choice([AnswerError(), AnswerError(code=241), DropAnswer()]), times=1)
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
        assert sum(proxy.happened.values()) >= 5
    assert_equal(stall)


def test_at_rest_final_equals_the_database_of_sessions(
    stall, stack, clickhouse, database, postgres_url, record_property
):
    record_property("seed", 1)
    weather(stall, stack, clickhouse, database, postgres_url, 1)
    assert len(stall.rows(BuyerSync, "id")) > 10
    assert any(tags for (tags,) in stall.rows(SaleSync, "tags"))


def test_the_storm_notices_changes_that_were_lost_while_redis_was_away(
    stall, stack, clickhouse, database, postgres_url, monkeypatch
):
    monkeypatch.setattr(RedisStorage, "register", lose_while_away)
    with pytest.raises(AssertionError, match="sales: not what the database has"):
        weather(stall, stack, clickhouse, database, postgres_url, 3)


@pytest.mark.parametrize("defect", ["ignore_deletes", "remove_by_key", "never_free"])
def test_the_storm_of_sessions_notices_the_defects_of_the_old_tool(
    stall, stack, clickhouse, database, postgres_url, defect
):
    noticed = "not what the database has|drain failed|the syncs stand still"
    with pytest.raises(AssertionError, match=noticed):
        weather(stall, stack, clickhouse, database, postgres_url, 4, defect)
