"""The gate before an epoch waits for room, tells it once, and is seen from elsewhere; a full disk gets space back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import FullDiskError, TransientError
from oncehouse.ledger.catalog.leases import acquire, list_leases
from oncehouse.ledger.models import Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest import pause
from oncehouse.pipeline.ingest.backpressure import Disk, Room
from oncehouse.pipeline.ingest.epoch import _giving_space_back
from oncehouse.pipeline.ingest.part_files import epoch_path
from oncehouse.pipeline.ingest.pause import Gate

FULL = Disk(holds="the ledger's files under /ledger", free_bytes=5, total_bytes=1 << 40)


class World:
    """A gate, and the room that it sees each time it looks."""

    def __init__(self, catalog, pipeline: Pipeline, monkeypatch) -> None:
        self.catalog = catalog
        self.said: list[str] = []
        self.disks: list[Disk] = []
        self.looks = 0
        self.noted: list[str | None] = []
        lease = acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=600)
        self.gate = Gate(pipeline, catalog, lease, say=self.said.append)
        monkeypatch.setattr(pause, "read_room", self._look)
        monkeypatch.setattr(pause, "_LOOK_SECONDS", 0.0)

    def _look(self, _pipeline, _catalog) -> Room:
        self.noted += [lease.pause for lease in list_leases(self.catalog)]
        disk = self.disks[min(self.looks, len(self.disks) - 1)]
        self.looks += 1
        return Room(backlog_bytes=0, epoch_bytes=0, disks=(disk,))


@pytest.fixture
def world(catalog, file, monkeypatch) -> World:
    return World(catalog, load_pipeline(file), monkeypatch)


def test_where_there_is_room_nothing_is_said_or_noted(world):
    world.disks = [replace(FULL, free_bytes=1 << 39)]
    assert world.gate.wait(lambda: False)
    assert (world.said, world.noted) == ([], [None])


def test_a_pause_is_said_once_noted_for_others_and_ends_by_itself(world):
    world.disks = [FULL, FULL, FULL, replace(FULL, free_bytes=1 << 39)]
    assert world.gate.wait(lambda: False)
    assert world.looks == 4
    begin, end = world.said
    assert begin.startswith(
        "Pipeline events: reading pauses: 5B are free for the ledger's files under /ledger"
    )
    assert "free some space or enlarge the disk" in begin
    assert end == "Pipeline events: there is room again, reading goes on."
    assert world.noted[0] is None
    assert all(note is not None and note.startswith("5B are free") for note in world.noted[1:])
    assert [lease.pause for lease in list_leases(world.catalog)] == [None]


def test_a_stop_ends_the_wait_and_leaves_it_noted_until_the_lease_is_given_back(world):
    world.disks = [FULL]
    stop = threading.Event()
    looks = iter(range(3))
    assert not world.gate.wait(lambda: next(looks, None) is None or stop.is_set())
    assert world.looks == 3
    assert len(world.said) == 1


def test_a_catalog_without_space_for_the_note_keeps_nobody_from_being_told(world, monkeypatch):
    def refuse(*_arguments):
        raise TransientError("no space")

    monkeypatch.setattr(pause.leases, "note_pause", refuse)
    world.disks = [FULL, replace(FULL, free_bytes=1 << 39)]
    assert world.gate.wait(lambda: False)
    assert len(world.said) == 2


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
    with pytest.raises(type(error)), _giving_space_back(pipeline, 7, 3):
        raise error
    assert set(store.walk("")) == set(others if gone else (*own, *others))
