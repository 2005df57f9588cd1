"""A catalog file that is replaced by an older copy, and losses that cost no epoch: noticed, and repaired exactly."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from lost_transactions import lose_since, remember
from oncehouse.common import failpoints
from oncehouse.errors import CatalogBehindError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.batches import list_attempts
from oncehouse.ledger.models import BatchStatus, Stage
from oncehouse.pipeline.repair.repair import apply_repair, plan_repair

EVENTS = [make_event(number) for number in range(150)]


def repair(live_pipeline: LivePipeline) -> None:
    live_pipeline.age_marks()
    apply_repair(live_pipeline.pipeline, live_pipeline.said.append)
    assert plan_repair(live_pipeline.pipeline).is_clean


@pytest.mark.parametrize("point", ["before making batches", "after making batches"])
def test_a_batch_or_an_attempt_that_was_lost_without_an_epoch_is_found_again(
    live_pipeline, point, monkeypatch
):
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run(only=[Stage.INGEST])
    moments, reach = [], failpoints.reach

    def look(name: str) -> None:
        if name == point:
            moments.append(remember(live_pipeline.catalog))
        reach(name)

    monkeypatch.setattr(failpoints, "reach", look)
    live_pipeline.run(only=[Stage.LOAD])
    monkeypatch.undo()
    assert len(live_pipeline.rows()) == 40
    lose_since(live_pipeline.catalog, moments[0])
    wait_until(lambda: not plan_repair(live_pipeline.pipeline).is_clean, "the loss to be seen")
    with pytest.raises(CatalogBehindError):
        live_pipeline.run()
    wait_until_leases_ran_out(live_pipeline)
    repair(live_pipeline)
    assert {batch.status for batch in live_pipeline.batches()} <= {
        BatchStatus.IN_CLICKHOUSE,
        BatchStatus.REPLACED,
    }
    assert not any(list_attempts(live_pipeline.catalog, batch.batch_id) for batch in live_pipeline.batches())
    live_pipeline.send(EVENTS[20:])
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_an_outcome_that_was_lost_is_looked_up_without_a_repair(live_pipeline, monkeypatch):
    live_pipeline.send(EVENTS[:40])
    moments, reach = [], failpoints.reach

    def look(name: str) -> None:
        if name == "after inserting":
            moments.append(remember(live_pipeline.catalog))
        reach(name)

    monkeypatch.setattr(failpoints, "reach", look)
    live_pipeline.run()
    monkeypatch.undo()
    lose_since(live_pipeline.catalog, moments[0])
    wait_until_leases_ran_out(live_pipeline)
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_a_running_driver_notices_a_sqlite_file_that_was_replaced_by_an_older_copy(live_pipeline):
    path, copy = live_pipeline.folder / "catalog.db", live_pipeline.folder / "copy.db"
    live_pipeline.send(EVENTS[:40])
    with live_pipeline.start() as running:
        running.wait_for_rows(40)
        wait_until(
            lambda: all(batch.status is BatchStatus.IN_CLICKHOUSE for batch in live_pipeline.batches()),
            "it to be settled",
        )
        copy_out(path, copy)
        live_pipeline.send(EVENTS[40:80])
        running.wait_for_rows(80)
        put_back(copy, path)
        assert isinstance(running.wait_for_error(), CatalogBehindError)
    with pytest.raises(CatalogBehindError):
        live_pipeline.run()
    wait_until_leases_ran_out(live_pipeline)
    repair(live_pipeline)
    live_pipeline.run()
    live_pipeline.assert_exact()


def copy_out(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))


def put_back(copy: Path, path: Path) -> None:
    """As somebody would who stops nothing: the log of the old file goes with it."""
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    copy.replace(path)


def wait_until_leases_ran_out(live_pipeline: LivePipeline) -> None:
    wait_until(
        lambda: all(
            lease.expires_at < live_pipeline.catalog.now()
            for lease in leases.list_leases(live_pipeline.catalog)
        ),
        "the leases to run out",
    )
