"""Reading pauses before there is no room for what it would write, and nothing keeps it waiting for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.config.pipeline import Ledger
from oncehouse.ledger.stats.backlog import Kept
from oncehouse.pipeline.checks.disk_forecast import judge_ledger
from oncehouse.pipeline.ingest.backpressure import Disk, Go, Pause, Room, judge_room, least_free, spell_bytes

WINDOW = 60 * 86_400.0
GB = 1 << 30
DISK = Disk(holds="the ledger's files under /ledger", free_bytes=100 * GB, total_bytes=200 * GB)
ROOMY = Room(backlog_bytes=0, epoch_bytes=GB // 4, disks=(DISK,))
CATALOG = "sqlite:///catalog.db"


def make_ledger(**bounds: object) -> Ledger:
    return Ledger(catalog=CATALOG, files="/ledger", **bounds)


def judge(room: Room, *, paused: bool = False, **bounds: object) -> Go | Pause:
    return judge_room(room, make_ledger(**bounds), window_seconds=WINDOW, paused=paused)


def make_disk(free_bytes: int, total_bytes: int = 200 * GB) -> Disk:
    return replace(DISK, free_bytes=free_bytes, total_bytes=total_bytes)


def test_reading_goes_on_while_there_is_room():
    assert judge(ROOMY, max_backlog="1GB") == Go()


def test_reading_pauses_before_the_next_epoch_would_pass_the_bound():
    room = replace(ROOMY, backlog_bytes=GB * 3 // 4)
    assert judge(room, max_backlog=GB) == Go()
    found = judge(replace(room, backlog_bytes=room.backlog_bytes + 1), max_backlog=GB)
    assert isinstance(found, Pause)
    assert "768MB wait for ClickHouse, ledger.max_backlog is 1GB and an epoch may need 256MB" in found.reason
    assert "goes on by itself" in found.advice


def test_without_a_bound_any_backlog_may_wait():
    assert judge(replace(ROOMY, backlog_bytes=1 << 50)) == Go()


def test_reading_pauses_before_an_epoch_would_take_what_must_stay_free():
    assert judge(replace(ROOMY, disks=(make_disk(GB + GB // 4),))) == Go()
    found = judge(replace(ROOMY, disks=(DISK, make_disk(GB + GB // 4 - 1))))
    assert isinstance(found, Pause)
    assert "1.25GB are free for the ledger's files under /ledger, 1GB must stay free" in found.reason
    assert "Loaded events are kept for the window (60d), so loading alone frees nothing" in found.advice


def test_an_epoch_takes_its_space_where_the_files_are_and_not_beside_the_catalog():
    beside = replace(make_disk(GB + 1), takes_epochs=False)
    assert judge(replace(ROOMY, disks=(DISK, beside))) == Go()
    assert isinstance(judge(replace(ROOMY, disks=(DISK, replace(beside, free_bytes=GB - 1)))), Pause)


@pytest.mark.parametrize(
    ("total_bytes", "bounds", "kept"),
    [(200 * GB, {}, GB), (GB, {}, GB // 10), (GB, {"min_free": "300MB"}, 300 << 20)],
    ids=["a large disk", "a small disk", "as the file says"],
)
def test_what_stays_free_fits_the_disk_unless_the_file_says_more(total_bytes, bounds, kept):
    assert least_free(make_disk(0, total_bytes), make_ledger(**bounds)) == kept


def test_a_pause_ends_only_with_some_slack_so_that_it_does_not_begin_again_at_once():
    room = replace(ROOMY, backlog_bytes=GB * 6 // 10)
    assert judge(room, max_backlog=GB) == Go()
    assert isinstance(judge(room, max_backlog=GB, paused=True), Pause)
    assert judge(replace(room, backlog_bytes=GB * 5 // 10), max_backlog=GB, paused=True) == Go()
    tight = replace(ROOMY, disks=(make_disk(GB + GB // 4 + 1),))
    assert judge(tight) == Go()
    assert isinstance(judge(tight, paused=True), Pause)


@given(
    max_backlog=st.integers(1, 1 << 40),
    epoch_bytes=st.integers(0, 1 << 40),
    backlog_bytes=st.integers(0, 1 << 41),
    paused=st.booleans(),
)
def test_a_bound_however_small_never_keeps_reading_from_going_on(
    max_backlog, epoch_bytes, backlog_bytes, paused
):
    room = Room(backlog_bytes=backlog_bytes, epoch_bytes=epoch_bytes)
    found = judge(room, max_backlog=max_backlog, paused=paused)
    # ClickHouse takes all that waits in the end, and then an epoch is read, even one larger than the bound.
    assert judge(replace(room, backlog_bytes=0), max_backlog=max_backlog, paused=True) == Go()
    if isinstance(found, Go) and backlog_bytes:
        assert backlog_bytes + epoch_bytes <= max_backlog


@pytest.mark.parametrize(
    ("count", "spelt"), [(0, "0B"), (999, "999B"), (1000, "0.977KB"), (3 << 20, "3MB"), (5 << 40, "5TB")]
)
def test_sizes_are_spelt_for_people(count, spelt):
    assert spell_bytes(count) == spelt


def find(room: Room, kept: Kept | None = None, **bounds: object):
    return list(judge_ledger(room, kept, make_ledger(**bounds), window_seconds=WINDOW, now=10 * 86_400.0))


def test_check_tells_of_room_with_its_figures():
    (found,) = find(ROOMY, max_backlog="2GB")
    assert found.level is Level.OK
    assert found.what == "100GB are free for the ledger's files under /ledger; 0B wait for ClickHouse, of 2GB"


def test_check_warns_where_reading_would_pause_at_once():
    (found,) = find(replace(ROOMY, disks=(make_disk(5),)))
    assert found.level is Level.WARNING
    assert found.what.startswith("reading would pause at once: 5B are free")


def test_check_warns_of_a_bound_that_is_smaller_than_an_epoch():
    _, found = find(ROOMY, max_backlog="200MB")
    assert found.level is Level.WARNING
    assert "an epoch takes up to 256MB, more than the 200MB" in found.what


def test_check_warns_before_a_window_of_events_fills_the_disk():
    kept = Kept(size_bytes=30 * GB, since=0.0)
    _, found = find(ROOMY, kept)
    assert found.level is Level.WARNING
    assert "grows by about 3GB a day and keeps events for 60d" in found.what
    assert "takes about 180GB; there is room for 129GB" in found.what
    assert "will pause in about 33d" in found.what
    assert "shorten identity.window" in found.advice


def test_a_window_that_fits_is_right_and_a_young_ledger_is_not_judged():
    assert [found.level for found in find(ROOMY, Kept(size_bytes=GB, since=0.0))] == [Level.OK, Level.OK]
    assert len(find(ROOMY, Kept(size_bytes=30 * GB, since=10 * 86_400.0 - 60))) == 1


def test_a_bucket_has_no_end_that_could_be_asked_for():
    ledger = Ledger(catalog=CATALOG, files="s3://bucket/ledger")
    found = judge_ledger(
        ROOMY, Kept(size_bytes=30 * GB, since=0.0), ledger, window_seconds=WINDOW, now=10 * 86_400.0
    )
    assert [one.level for one in found] == [Level.OK]
