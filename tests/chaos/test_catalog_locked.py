"""A SQLite catalog that a frozen process has locked, and files that may not be read: said, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frozen_locker import locked_by_frozen_process
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.common import sqlite_lock
from oncehouse.common.sqlite_lock import LockedError
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus
from oncehouse.pipeline.run import run_pipeline
from ordinary_rights import under_ordinary_rights

EVENTS = [make_event(number) for number in range(60)]
PROMISED_SECONDS = 10.0

# Locked


def lock_the_catalog(live_pipeline: LivePipeline) -> None:
    """Under a driver that runs, and before another one that starts."""
    live_pipeline.send(EVENTS[:40])
    with live_pipeline.start() as running:
        running.wait_for_rows(40)
        with locked_by_frozen_process(live_pipeline.folder / "catalog.db") as holder:
            locked = f"locked by process {holder.pid}"
            live_pipeline.send(EVENTS[20:])
            wait_until(
                lambda: any(locked in said for said in live_pipeline.said),
                "a line about the lock",
                seconds=PROMISED_SECONDS,
            )
            said: list[str] = []
            with pytest.raises(LockedError, match=locked) as caught:
                run_pipeline(
                    live_pipeline.pipeline, once=True, wait=False, spark=live_pipeline.spark, say=said.append
                )
            assert caught.value.exit_code == TransientError.exit_code
            assert locked in said[0]
        running.wait_for_rows(60)
        wait_until(
            lambda: any("not locked any more" in said for said in live_pipeline.said),
            "a line that it is free",
        )
    live_pipeline.assert_exact()


@pytest.mark.scenario("SQLite catalog locked by a frozen process")
def test_a_catalog_that_a_frozen_process_has_locked_is_told_of_with_its_holder(live_pipeline):
    lock_the_catalog(live_pipeline)


@pytest.mark.defect("SQLite catalog locked by a frozen process")
def test_a_lock_that_is_waited_for_in_silence_is_noticed(live_pipeline, monkeypatch):
    monkeypatch.setattr(sqlite_lock, "REPORT_SECONDS", sqlite_lock.WAIT_SECONDS)
    with pytest.raises(AssertionError, match="waited in vain: a line about the lock"):
        lock_the_catalog(live_pipeline)


# May not be read


@contextmanager
def refused(*paths: Path) -> Iterator[None]:
    for path in paths:
        path.chmod(0o000)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o600)


def run_refused(live_pipeline: LivePipeline, defect: str) -> str:
    """What a run says for which the rights of files hold; `defect`: of `defective_driver.py`."""
    command = live_pipeline.command("--once")
    if defect:
        command = [command[0], str(Path(__file__).with_name("defective_driver.py")), *command[3:]]
    about = {"DRIVER_DEFECT": defect, "DRIVER_FOLDER": str(live_pipeline.folder)}
    done = subprocess.run(
        under_ordinary_rights(command),
        env=os.environ | about,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 2, f"it ended with {done.returncode}: {told[-3000:]}"
    assert "Permission denied" in told
    assert "Traceback" not in told
    return told


def refuse_the_catalog(live_pipeline: LivePipeline, *, defect: str = "") -> None:
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    live_pipeline.send(EVENTS[20:])
    catalog = live_pipeline.folder / "catalog.db"
    with refused(catalog):
        assert str(catalog) in run_refused(live_pipeline, defect)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("unreadable catalog")
def test_a_catalog_that_may_not_be_read_ends_the_run_with_its_name_and_no_loss(live_pipeline):
    refuse_the_catalog(live_pipeline)


@pytest.mark.defect("unreadable catalog")
def test_a_refused_catalog_that_is_called_a_defect_is_noticed(live_pipeline):
    with pytest.raises(AssertionError, match="it ended with 70"):
        refuse_the_catalog(live_pipeline, defect="rights unknown")


def refuse_a_part(live_pipeline: LivePipeline, *, defect: str = "") -> None:
    """One that was settled by a driver that died before it was inserted."""
    live_pipeline.send(EVENTS)
    live_pipeline.crash("before inserting", "--once")
    parts = [
        live_pipeline.folder / "files" / loaded.part.file.path
        for batch in live_pipeline.batches()
        for loaded in batches.load_parts(live_pipeline.catalog, batch.batch_id)
    ]
    assert parts
    with refused(*parts):
        told = run_refused(live_pipeline, defect)
        assert any(str(part) in told for part in parts)
    assert not live_pipeline.batches(statuses=[BatchStatus.PARKED])
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("unreadable file of the ledger")
def test_a_part_that_may_not_be_read_ends_the_run_with_its_name_and_no_loss(live_pipeline):
    refuse_a_part(live_pipeline)


@pytest.mark.defect("unreadable file of the ledger")
def test_a_refused_part_that_parks_its_batch_is_noticed(live_pipeline):
    with pytest.raises(AssertionError, match="it ended with 1"):
        refuse_a_part(live_pipeline, defect="rights refuse batches")
