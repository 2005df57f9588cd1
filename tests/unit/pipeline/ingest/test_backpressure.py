"""Reading pauses before there is no room for what it would write, and never for ever; the gate says so once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import Ledger, Pipeline
from oncehouse.errors import FullDiskError, TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.leases import LeasePauses, acquire, list_leases
from oncehouse.ledger.models import Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest import backpressure
from oncehouse.pipeline.ingest.backpressure import (
    BackpressureGate,
    LedgerDisk,
    PauseReading,
    Proceed,
    StorageState,
    evaluate_backpressure,
    least_free,
)
from oncehouse.pipeline.ingest.epoch import _free_space_when_full
from oncehouse.pipeline.ingest.part_files import epoch_path

WINDOW = 60 * 86_400.0
GB = 1 << 30
DISK = LedgerDisk(holds="the ledger's files under /ledger", free_bytes=100 * GB, total_bytes=200 * GB)
PLENTY = StorageState(backlog_bytes=0, epoch_bytes=GB // 4, disks=(DISK,))
CATALOG = "sqlite:///catalog.db"


def make_ledger(**bounds: object) -> Ledger:
    return Ledger(catalog=CATALOG, files="/ledger", **bounds)


def evaluate(storage: StorageState, *, paused: bool = False, **bounds: object) -> Proceed | PauseReading:
    return evaluate_backpressure(storage, make_ledger(**bounds), window_seconds=WINDOW, paused=paused)


def make_disk(free_bytes: int, total_bytes: int = 200 * GB) -> LedgerDisk:
    return replace(DISK, free_bytes=free_bytes, total_bytes=total_bytes)


def test_reading_goes_on_while_there_is_room():
    assert evaluate(PLENTY, max_backlog="1GB") == Proceed()


def test_reading_pauses_before_the_next_epoch_would_pass_the_bound():
    storage = replace(PLENTY, backlog_bytes=GB * 3 // 4)
    assert evaluate(storage, max_backlog=GB) == Proceed()
    found = evaluate(replace(storage, backlog_bytes=storage.backlog_bytes + 1), max_backlog=GB)
    assert isinstance(found, PauseReading)
    assert "768MB wait for ClickHouse, ledger.max_backlog is 1GB and an epoch may need 256MB" in found.reason
    assert "goes on by itself" in found.advice


def test_without_a_bound_any_backlog_may_wait():
    assert evaluate(replace(PLENTY, backlog_bytes=1 << 50)) == Proceed()


def test_reading_pauses_before_an_epoch_would_take_what_must_stay_free():
    assert evaluate(replace(PLENTY, disks=(make_disk(GB + GB // 4),))) == Proceed()
    found = evaluate(replace(PLENTY, disks=(DISK, make_disk(GB + GB // 4 - 1))))
    assert isinstance(found, PauseReading)
    assert "1.25GB are free for the ledger's files under /ledger, 1GB must stay free" in found.reason
    assert "Loaded events are kept for the window (60d), so loading alone frees nothing" in found.advice


def test_an_epoch_takes_its_space_where_the_files_are_and_not_beside_the_catalog():
    beside = replace(make_disk(GB + 1), takes_epochs=False)
    assert evaluate(replace(PLENTY, disks=(DISK, beside))) == Proceed()
    assert isinstance(
        evaluate(replace(PLENTY, disks=(DISK, replace(beside, free_bytes=GB - 1)))), PauseReading
    )


@pytest.mark.parametrize(
    ("total_bytes", "bounds", "kept"),
    [(200 * GB, {}, GB), (GB, {}, GB // 10), (GB, {"min_free": "300MB"}, 300 << 20)],
    ids=["a large disk", "a small disk", "as the file says"],
)
def test_what_stays_free_fits_the_disk_unless_the_file_says_more(total_bytes, bounds, kept):
    assert least_free(make_disk(0, total_bytes), make_ledger(**bounds)) == kept


def test_a_pause_ends_only_with_some_slack_so_that_it_does_not_begin_again_at_once():
    storage = replace(PLENTY, backlog_bytes=GB * 6 // 10)
    assert evaluate(storage, max_backlog=GB) == Proceed()
    assert isinstance(evaluate(storage, max_backlog=GB, paused=True), PauseReading)
    assert evaluate(replace(storage, backlog_bytes=GB * 5 // 10), max_backlog=GB, paused=True) == Proceed()
    tight = replace(PLENTY, disks=(make_disk(GB + GB // 4 + 1),))
    assert evaluate(tight) == Proceed()
    assert isinstance(evaluate(tight, paused=True), PauseReading)


@given(
    max_backlog=st.integers(1, 1 << 40),
    epoch_bytes=st.integers(0, 1 << 40),
    backlog_bytes=st.integers(0, 1 << 41),
    paused=st.booleans(),
)
def test_a_bound_however_small_never_keeps_reading_from_going_on(
    max_backlog, epoch_bytes, backlog_bytes, paused
):
    storage = StorageState(backlog_bytes=backlog_bytes, epoch_bytes=epoch_bytes)
    found = evaluate(storage, max_backlog=max_backlog, paused=paused)
    # ClickHouse takes all that waits in the end, and then an epoch is read, even one larger than the bound.
    assert evaluate(replace(storage, backlog_bytes=0), max_backlog=max_backlog, paused=True) == Proceed()
    if isinstance(found, Proceed) and backlog_bytes:
        assert backlog_bytes + epoch_bytes <= max_backlog


# -- the gate ---------------------------------------------------------------------------------------------

FULL = LedgerDisk(holds="the ledger's files under /ledger", free_bytes=5, total_bytes=1 << 40)


class GateSetup:
    """A gate, and the room that it sees each time it looks."""

    def __init__(self, catalog, pipeline: Pipeline, monkeypatch) -> None:
        self.catalog = catalog
        self.reported: list[str] = []
        self.disks: list[LedgerDisk] = []
        self.looks = 0
        self.noted: list[str | None] = []
        lease = acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=600)
        pauses = LeasePauses(catalog, lease)
        self.gate = BackpressureGate(pipeline, catalog, pauses, report=self.reported.append)
        monkeypatch.setattr(backpressure, "read_storage_state", self._look)
        monkeypatch.setattr(backpressure, "_POLL_SECONDS", 0.0)

    def _look(self, _pipeline, _catalog) -> StorageState:
        self.noted += [lease.pause for lease in list_leases(self.catalog)]
        disk = self.disks[min(self.looks, len(self.disks) - 1)]
        self.looks += 1
        return StorageState(backlog_bytes=0, epoch_bytes=0, disks=(disk,))


@pytest.fixture
def setup(catalog, file, monkeypatch) -> GateSetup:
    return GateSetup(catalog, load_pipeline(file), monkeypatch)


def test_where_there_is_room_nothing_is_said_or_noted(setup):
    setup.disks = [replace(FULL, free_bytes=1 << 39)]
    assert setup.gate.wait(lambda: False)
    assert (setup.reported, setup.noted) == ([], [None])


def test_a_pause_is_said_once_noted_for_others_and_ends_by_itself(setup):
    setup.disks = [FULL, FULL, FULL, replace(FULL, free_bytes=1 << 39)]
    assert setup.gate.wait(lambda: False)
    assert setup.looks == 4
    begin, end = setup.reported
    assert begin.startswith(
        "Pipeline events: reading pauses: 5B are free for the ledger's files under /ledger"
    )
    assert "free some space or enlarge the disk" in begin
    assert end == "Pipeline events: there is room again, reading goes on."
    assert setup.noted[0] is None
    assert all(note is not None and note.startswith("5B are free") for note in setup.noted[1:])
    assert [lease.pause for lease in list_leases(setup.catalog)] == [None]


def test_a_stop_ends_the_wait_and_leaves_it_noted_until_the_lease_is_given_back(setup):
    setup.disks = [FULL]
    stop = threading.Event()
    looks = iter(range(3))
    assert not setup.gate.wait(lambda: next(looks, None) is None or stop.is_set())
    assert setup.looks == 3
    assert len(setup.reported) == 1


def test_a_catalog_without_space_for_the_note_still_reports_the_pause(setup, monkeypatch):
    def refuse(*_arguments):
        raise TransientError("no space")

    monkeypatch.setattr(leases, "note_pause", refuse)
    setup.disks = [FULL, replace(FULL, free_bytes=1 << 39)]
    assert setup.gate.wait(lambda: False)
    assert len(setup.reported) == 2


@pytest.mark.parametrize(
    ("error", "gone"), [(FullDiskError("full"), True), (TransientError("away"), False)], ids=["full", "away"]
)
def test_an_epoch_that_found_no_space_gives_back_what_it_had_taken_and_nothing_else(file, error, gone):
    pipeline = load_pipeline(file)
    store = FileStore(pipeline.ledger.files)
    own = [epoch_path("events", 7, 3, name) for name in ("r1-a.parquet", "d0-b.arrow")]
    others = [
        epoch_path("events", 7, 4, "r1-a.parquet"),
        epoch_path("events", 7, 33, "r1-a.parquet"),
        epoch_path("events", 6, 3, "r1-a.parquet"),
        epoch_path("others", 7, 3, "r1-a.parquet"),
        "events/index/merged-3-x.segment.arrow",
    ]
    for path in (*own, *others):
        store.put(path, lambda target: Path(target).write_bytes(b"x"))
    with pytest.raises(type(error)), _free_space_when_full(pipeline, 7, 3):
        raise error
    assert set(store.walk("")) == set(others if gone else (*own, *others))
