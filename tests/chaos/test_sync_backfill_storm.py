"""A backfill while writers write and syncs run, is killed at random and at every step, hangs, and ClickHouse fails.

At rest `FINAL` equals the database, and `verify` says so. The same storm with a defect put in has to be noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncehouse.devstack.faults import AnswerError, DropAnswer
from oncehouse.devstack.proxy import FaultProxy
from oncehouse.sync import verifying
from oncehouse.sync.verifying import verify
from stall_writer import writing
from sync_jobs import see_inserts, start_job
from sync_stall import (
    SYNCS,
    Boss,
    Buyer,
    BuyerSync,
    Chair,
    ChairSync,
    GiftSale,
    Line,
    Sale,
    Stall,
    Tag,
    assert_equal,
    change,
    open_synced_stall,
)

CALM = {"sync_delay": 0, "sync_lease": 1, "sync_batch_size": 2_000}
CHANGED: dict[str, dict[str, Any]] = {
    **{sync.__name__: CALM for sync in SYNCS},
    "ChairSync": {**CALM, "engine": "collapsing"},
}
ROWS = 120


@pytest.fixture
def stall(postgres_url, clickhouse, database) -> Iterator[Stall]:
    """With rows of which no operation tells."""
    names = ("sync_delay", "sync_lease", "sync_batch_size", "engine")
    originals = {sync: {name: getattr(sync, name) for name in names} for sync in SYNCS}
    with open_synced_stall(postgres_url, clickhouse, database) as stall:
        ChairSync.open_clickhouse().command("DROP TABLE chairs SYNC")
        for sync in SYNCS:
            change(sync, CHANGED[sync.__name__])
        stall.make_tables(ChairSync)
        with stall.session() as session:
            session.add_all([Tag(name=str(n)) for n in range(5)])
            session.add_all(
                Buyer(name=f"c0.{n:04}", sales=[Sale(lines=[Line(amount=n)]), GiftSale(greeting="g")])
                for n in range(ROWS)
            )
            session.add_all(Boss(str(n)) for n in range(10))
            session.add_all(Chair("old ä", n) for n in range(ROWS))
            session.commit()
        stall.forget_waiting()
        yield stall
        for sync, attributes in originals.items():
            for name, value in attributes.items():
                setattr(sync, name, value)


def weather(
    stall: Stall, clickhouse: Any, database: str, url: str, seed: int, flag: Path, *defects: str
) -> None:
    dice = random.Random(seed)
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        settings = {"CLICKHOUSE_DATABASES": {"default": {"db_url": proxy.url, "db_name": database}}}
        given = {"world": "sync_stall", "url": url, "settings": settings, "syncs": CHANGED}
        with start_job(**given, hang=str(flag), chunk=8, defects=defects) as job:
            job("work")
            with writing(stall, seed):
                for _turn in range(4):
                    proxy.inject(dice.choice([AnswerError(), AnswerError(code=241), DropAnswer()]), times=1)
                    job("fill")
                    see_inserts(proxy, dice.randrange(4, 12))
                    job("kill_fill")
                flag.touch()
                job("fill")
                await_file(flag.with_suffix(".hangs"))
                # Long enough for the lease to run out and for others to sync what is newer.
                time.sleep(3)
            job("kill")
            proxy.take_back()
            job("drain")
            flag.unlink()
            job("join_fill")
            job("drain")
        assert sum(proxy.happened.values()) >= 4
    assert_equal(stall)


def await_file(path: Path) -> None:
    give_up_at = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up_at, "no chunk was read"
        time.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_backfill_in_a_storm_ends_in_what_the_database_has(
    stall, clickhouse, database, postgres_url, tmp_path, seed, record_property, monkeypatch
):
    record_property("seed", seed)
    weather(stall, clickhouse, database, postgres_url, seed, tmp_path / "flag")
    monkeypatch.setattr(verifying, "PAUSE_SECONDS", 0.1)
    for sync in SYNCS:
        report = verify(sync, keys_a_range=100)
        assert (report.is_clean, report.waiting, report.changing) == (True, 0, 0), report
        assert report.rows


def test_the_storm_notices_a_chunk_that_is_numbered_after_it_was_read(
    stall, clickhouse, database, postgres_url, tmp_path
):
    with pytest.raises(AssertionError, match="not what the database has"):
        weather(stall, clickhouse, database, postgres_url, 3, tmp_path / "flag", "number_after_reading")


POINTS = ("chunk_listed", "chunk_read", "chunk_confirmed", "inserted", "chunk_sent")


@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
def test_a_backfill_killed_at_any_step_leaves_what_the_next_one_needs(
    stall, clickhouse, database, postgres_url, engine
):
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    attributes = CALM if engine == "replacing" else {**CALM, "engine": engine}
    BuyerSync.open_clickhouse().command("DROP TABLE buyers SYNC")
    change(BuyerSync, attributes)
    stall.make_tables(BuyerSync)
    given = {"world": "sync_stall", "url": postgres_url, "syncs": {"BuyerSync": attributes}}
    with start_job(**given, settings={"CLICKHOUSE_DATABASES": {"default": address}}, chunk=8) as job:
        for point in POINTS:
            job(f"crash_fill sync.{point}:2")
        job("fill")
        job("join_fill")
    report = verify(BuyerSync)
    assert (report.is_clean, report.rows) == (True, ROWS)
    if engine != "replacing":
        # Not a row twice, whichever step was the last.
        assert BuyerSync.open_clickhouse().query("SELECT count() FROM buyers") == [(ROWS,)]
