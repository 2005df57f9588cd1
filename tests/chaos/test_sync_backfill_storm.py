"""A backfill while writers write and syncs run, is killed at random and at every step, hangs, and ClickHouse fails.

At rest `FINAL` equals the database, and `verify` says so, in Django and in SQLAlchemy. The same storm with a defect put
in has to be noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from changed_syncs import changed
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import AnswerError, DropAnswer
from oncehouse.sync.verify import verify as verifying
from oncehouse.sync.verify.verify import verify
from sync_jobs import see_inserts
from sync_storms import FRAMEWORKS, Storm, open_storm

CALM = {"sync_delay": 0, "sync_lease": 1, "sync_batch_size": 2_000}
ROWS = 120


@pytest.fixture(params=FRAMEWORKS)
def storm(request, postgres_url, clickhouse, database) -> Iterator[Storm]:
    """With rows of which no operation tells."""
    framework = FRAMEWORKS[request.param]
    with open_storm(framework, postgres_url, clickhouse, database, calm=CALM, rows=ROWS) as storm:
        yield storm


def weather(storm: Storm, seed: int, flag: Path, *defects: str) -> None:
    dice = random.Random(seed)
    with FaultProxy(server_port=storm.clickhouse_port) as proxy:
        with storm.start_job(through=proxy.url, hang=str(flag), chunk=8, defects=defects) as job:
            job("work")
            with storm.writing(seed):
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
    storm.assert_equal()


def await_file(path: Path) -> None:
    give_up_at = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up_at, "no chunk was read"
        time.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_backfill_in_a_storm_ends_in_what_the_database_has(
    storm, tmp_path, seed, record_property, monkeypatch
):
    record_property("seed", seed)
    weather(storm, seed, tmp_path / "flag")
    monkeypatch.setattr(verifying, "PAUSE_SECONDS", 0.1)
    for sync in storm.framework.syncs:
        report = verify(sync, keys_a_range=100)
        assert (report.is_clean, report.waiting, report.changing) == (True, 0, 0), report
        assert report.rows


def test_the_storm_notices_a_chunk_that_is_numbered_after_it_was_read(storm, tmp_path):
    with pytest.raises(AssertionError, match="not what the database has"):
        weather(storm, 3, tmp_path / "flag", "number_after_reading")


POINTS = ("chunk_listed", "chunk_read", "chunk_confirmed", "inserted", "chunk_sent")


@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
def test_a_backfill_killed_at_any_step_leaves_what_the_next_one_needs(storm, engine):
    people = storm.framework.people
    changes = {people: CALM if engine == "replacing" else {**CALM, "engine": engine}}
    with changed(changes), storm.start_job(changes=changes, chunk=8) as job:
        for point in POINTS:
            job(f"crash_fill sync.{point}:2")
        job("fill")
        job("join_fill")
        report = verify(people)
        assert (report.is_clean, report.rows) == (True, ROWS)
        if engine != "replacing":
            # Not a row twice, whichever step was the last.
            count = f"SELECT count() FROM {people.declaration().table}"
            assert people.open_clickhouse().query(count) == [(ROWS,)]
