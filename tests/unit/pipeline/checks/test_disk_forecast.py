"""The check warns before the ledger's disk is full, with its figures and a date."""

from __future__ import annotations

from dataclasses import replace

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.config.pipeline import Ledger
from oncehouse.ledger.stats.backlog import Kept
from oncehouse.pipeline.checks.disk_forecast import check_disk_forecast
from oncehouse.pipeline.ingest.backpressure import LedgerDisk, StorageState

WINDOW = 60 * 86_400.0
GB = 1 << 30
DISK = LedgerDisk(holds="the ledger's files under /ledger", free_bytes=100 * GB, total_bytes=200 * GB)
PLENTY = StorageState(backlog_bytes=0, epoch_bytes=GB // 4, disks=(DISK,))
CATALOG = "sqlite:///catalog.db"


def find(storage: StorageState, kept: Kept | None = None, **bounds: object):
    return list(
        check_disk_forecast(
            storage,
            kept,
            Ledger(catalog=CATALOG, files="/ledger", **bounds),
            window_seconds=WINDOW,
            now=10 * 86_400.0,
        )
    )


def test_where_there_is_room_the_check_reports_its_figures():
    (found,) = find(PLENTY, max_backlog="2GB")
    assert found.level is Level.OK
    assert found.what == "100GB are free for the ledger's files under /ledger; 0B wait for ClickHouse, of 2GB"


def test_check_warns_where_reading_would_pause_at_once():
    (found,) = find(replace(PLENTY, disks=(replace(DISK, free_bytes=5),)))
    assert found.level is Level.WARNING
    assert found.what.startswith("reading would pause at once: 5B are free")


def test_check_warns_of_a_bound_that_is_smaller_than_an_epoch():
    _, found = find(PLENTY, max_backlog="200MB")
    assert found.level is Level.WARNING
    assert "an epoch takes up to 256MB, more than the 200MB" in found.what


def test_check_warns_before_a_window_of_events_fills_the_disk():
    kept = Kept(size_bytes=30 * GB, since=0.0)
    _, found = find(PLENTY, kept)
    assert found.level is Level.WARNING
    assert "grows by about 3GB a day and keeps events for 60d" in found.what
    assert "takes about 180GB; there is room for 129GB" in found.what
    assert "will pause in about 33d" in found.what
    assert "shorten identity.window" in found.advice


def test_a_window_that_fits_is_right_and_nothing_is_said_of_a_young_ledger():
    assert [found.level for found in find(PLENTY, Kept(size_bytes=GB, since=0.0))] == [Level.OK, Level.OK]
    assert len(find(PLENTY, Kept(size_bytes=30 * GB, since=10 * 86_400.0 - 60))) == 1


def test_nothing_is_forecast_for_a_bucket():
    ledger = Ledger(catalog=CATALOG, files="s3://bucket/ledger")
    found = check_disk_forecast(
        PLENTY, Kept(size_bytes=30 * GB, since=0.0), ledger, window_seconds=WINDOW, now=10 * 86_400.0
    )
    assert [one.level for one in found] == [Level.OK]
