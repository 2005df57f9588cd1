"""Room for further epochs: facts about backlog and disks in, Go or Pause out. Pure, but for the reading of the facts.

Two bounds: what waits for ClickHouse (`ledger.max_backlog`), which shrinks as it is loaded, and what stays free on
the disks of files and catalog (`ledger.min_free`). Loaded events are kept for the window and count for the second one
alone, so that a backlog always comes to an end and whoever pauses for it goes on.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.config.field_types import format_duration
from oncehouse.ledger.stats.backlog import largest_epoch, sum_backlog
from oncehouse.pipeline.spark.session import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.config.pipeline import Ledger, Pipeline
    from oncehouse.ledger.catalog.database import Catalog

LEAST_FREE_BYTES = 1 << 30
_LEAST_FREE_SHARE = 10
# Whoever pauses goes on only when a fifth of a bound is free again, so that it does not pause at every epoch.
_SLACK = 5


@dataclass(frozen=True, kw_only=True)
class Disk:
    holds: str
    """What of the ledger lies there, and where."""
    free_bytes: int
    total_bytes: int
    takes_epochs: bool = True
    """Whether the files of an epoch go there; a catalog grows by little."""


@dataclass(frozen=True, kw_only=True)
class Room:
    backlog_bytes: int
    """Files of events that are not in ClickHouse yet."""
    epoch_bytes: int
    """What a further epoch may need, by the largest of the newest."""
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Go:
    pass


@dataclass(frozen=True, kw_only=True)
class Pause:
    reason: str
    advice: str


def judge_room(room: Room, ledger: Ledger, *, window_seconds: float, paused: bool = False) -> Go | Pause:
    """Whether another epoch may be read; `paused`: it is waited for already, so a little more room is asked for."""
    return next(iter(_objections(room, ledger, window_seconds, paused=paused)), Go())


def least_free(disk: Disk, ledger: Ledger) -> int:
    """What has to stay free: as the pipeline file says, or a default that a small disk can afford."""
    if ledger.min_free is not None:
        return ledger.min_free
    return min(LEAST_FREE_BYTES, disk.total_bytes // _LEAST_FREE_SHARE)


def _objections(room: Room, ledger: Ledger, window_seconds: float, *, paused: bool) -> Iterator[Pause]:
    most = ledger.max_backlog
    # Without a backlog one epoch is always read, however small the bound: else nothing could ever go on.
    if most is not None and room.backlog_bytes:
        bound = most - most // _SLACK if paused else most
        if room.backlog_bytes + room.epoch_bytes > bound:
            yield Pause(
                reason=f"{spell_bytes(room.backlog_bytes)} wait for ClickHouse, ledger.max_backlog is "
                f"{spell_bytes(most)} and an epoch may need {spell_bytes(room.epoch_bytes)}",
                advice="It goes on by itself as ClickHouse takes what waits. See that it takes inserts and that no "
                "batch is parked (`oncehouse status`), or raise ledger.max_backlog.",
            )
    for disk in room.disks:
        kept = least_free(disk, ledger)
        bound = kept + kept // _SLACK if paused else kept
        needed = room.epoch_bytes if disk.takes_epochs else 0
        if disk.free_bytes < bound + needed:
            yield Pause(
                reason=f"{spell_bytes(disk.free_bytes)} are free for {disk.holds}, {spell_bytes(kept)} must stay free "
                f"(ledger.min_free) and an epoch may need {spell_bytes(needed)}",
                advice="It goes on by itself when there is room: free some space or enlarge the disk. Loaded events "
                f"are kept for the window ({format_duration(window_seconds)}), so loading alone frees nothing.",
            )


def read_room(pipeline: Pipeline, catalog: Catalog) -> Room:
    return Room(
        backlog_bytes=sum_backlog(catalog),
        epoch_bytes=largest_epoch(catalog),
        disks=look_at_disks(pipeline, catalog),
    )


def look_at_disks(pipeline: Pipeline, catalog: Catalog) -> tuple[Disk, ...]:
    """Of this machine: a bucket and a database server have nobody here whom one could ask."""
    return tuple(_disks(pipeline, catalog))


def _disks(pipeline: Pipeline, catalog: Catalog) -> Iterator[Disk]:
    root = pipeline.ledger.files
    files = _nearest(scratch_folder(root))
    if "://" in root:
        yield _look("Spark's checkpoint", files, takes_epochs=False)
    else:
        yield _look("the ledger's files", files, takes_epochs=True)
    if catalog.folder is not None:
        folder = _nearest(catalog.folder)
        if folder.stat().st_dev != files.stat().st_dev:
            yield _look("the catalog", folder, takes_epochs=False)


def _nearest(folder: Path) -> Path:
    """The folder, or the next one above that is there: before the first run there may be none of ours."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _look(holds: str, folder: Path, *, takes_epochs: bool) -> Disk:
    found = shutil.disk_usage(folder)
    return Disk(
        holds=f"{holds} under {folder}",
        free_bytes=found.free,
        total_bytes=found.total,
        takes_epochs=takes_epochs,
    )


def spell_bytes(count: int) -> str:
    """For people: three digits and a unit."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g}{unit}"
        size /= 1024
    return f"{size:,.3g}TB"
