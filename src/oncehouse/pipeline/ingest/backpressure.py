"""Backpressure: whether there is room for another epoch, and the gate that waits until there is.

Two bounds: the backlog that waits for ClickHouse (`ledger.max_backlog`), which shrinks as it is loaded, and the space
that stays free on the disks of files and catalog (`ledger.min_free`). Loaded events are kept for the window and count
for the second bound alone, so that a backlog always comes to an end and an ingest that pauses for it goes on.

`evaluate_backpressure` decides and is pure. While the gate waits, leases are renewed and loading and retention go on.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common.formatting import format_bytes
from oncehouse.config.field_types import format_duration
from oncehouse.ledger.stats.backlog import largest_epoch, sum_backlog
from oncehouse.pipeline.spark.session import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncehouse.config.pipeline import Ledger, Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.catalog.leases import LeasePauses

LEAST_FREE_BYTES = 1 << 30
_LEAST_FREE_SHARE = 10
# A paused ingest goes on only when a fifth of a bound is free again, so that it does not pause at every epoch.
_SLACK = 5
_POLL_SECONDS = 0.5
_SUBJECT = "backpressure"


@dataclass(frozen=True, kw_only=True)
class LedgerDisk:
    holds: str
    """What of the ledger lies there, and where."""
    free_bytes: int
    total_bytes: int
    takes_epochs: bool = True
    """Whether the files of an epoch go there; a catalog grows by little."""


@dataclass(frozen=True, kw_only=True)
class StorageState:
    backlog_bytes: int
    """Files of events that are not in ClickHouse yet."""
    epoch_bytes: int
    """What another epoch may need, by the largest of the newest."""
    disks: tuple[LedgerDisk, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Proceed:
    pass


@dataclass(frozen=True, kw_only=True)
class PauseReading:
    reason: str
    advice: str


def evaluate_backpressure(
    storage: StorageState, ledger: Ledger, *, window_seconds: float, paused: bool = False
) -> Proceed | PauseReading:
    """Whether another epoch may be read; with `paused` reading has stopped already, and needs some slack to go on."""
    return next(iter(_find_obstacles(storage, ledger, window_seconds, paused=paused)), Proceed())


def least_free(disk: LedgerDisk, ledger: Ledger) -> int:
    """What has to stay free: as the pipeline file says, or a default that a small disk can afford."""
    if ledger.min_free is not None:
        return ledger.min_free
    return min(LEAST_FREE_BYTES, disk.total_bytes // _LEAST_FREE_SHARE)


def _find_obstacles(
    storage: StorageState, ledger: Ledger, window_seconds: float, *, paused: bool
) -> Iterator[PauseReading]:
    most = ledger.max_backlog
    # Without a backlog one epoch is always read, however small the bound: otherwise nothing could ever go on.
    if most is not None and storage.backlog_bytes:
        bound = most - most // _SLACK if paused else most
        if storage.backlog_bytes + storage.epoch_bytes > bound:
            yield PauseReading(
                reason=f"{format_bytes(storage.backlog_bytes)} wait for ClickHouse, ledger.max_backlog is "
                f"{format_bytes(most)} and an epoch may need {format_bytes(storage.epoch_bytes)}",
                advice="It goes on by itself as ClickHouse takes what waits. See that it takes inserts and that no "
                "batch is parked (`oncehouse status`), or raise ledger.max_backlog.",
            )
    for disk in storage.disks:
        kept = least_free(disk, ledger)
        bound = kept + kept // _SLACK if paused else kept
        needed = storage.epoch_bytes if disk.takes_epochs else 0
        if disk.free_bytes < bound + needed:
            yield PauseReading(
                reason=f"{format_bytes(disk.free_bytes)} are free for {disk.holds}, {format_bytes(kept)} must stay "
                f"free (ledger.min_free) and an epoch may need {format_bytes(needed)}",
                advice="It goes on by itself when there is room: free some space or enlarge the disk. Loaded events "
                f"are kept for the window ({format_duration(window_seconds)}), so loading alone frees nothing.",
            )


def read_storage_state(pipeline: Pipeline, catalog: Catalog) -> StorageState:
    return StorageState(
        backlog_bytes=sum_backlog(catalog),
        epoch_bytes=largest_epoch(catalog),
        disks=read_disks(pipeline, catalog),
    )


def read_disks(pipeline: Pipeline, catalog: Catalog) -> tuple[LedgerDisk, ...]:
    """The disks of this machine; the space of a bucket or a database server is not known here."""
    return tuple(_disks(pipeline, catalog))


def _disks(pipeline: Pipeline, catalog: Catalog) -> Iterator[LedgerDisk]:
    root = pipeline.ledger.files
    files = _nearest_existing(scratch_folder(root))
    if "://" in root:
        yield _disk("Spark's checkpoint", files, takes_epochs=False)
    else:
        yield _disk("the ledger's files", files, takes_epochs=True)
    if catalog.folder is not None:
        folder = _nearest_existing(catalog.folder)
        if folder.stat().st_dev != files.stat().st_dev:
            yield _disk("the catalog", folder, takes_epochs=False)


def _nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent: before the first run it may not exist."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _disk(holds: str, folder: Path, *, takes_epochs: bool) -> LedgerDisk:
    usage = shutil.disk_usage(folder)
    return LedgerDisk(
        holds=f"{holds} under {folder}",
        free_bytes=usage.free,
        total_bytes=usage.total,
        takes_epochs=takes_epochs,
    )


class BackpressureGate:
    """Waits before each epoch until there is room for it; the threads of one holder of the ingest lease share it."""

    def __init__(
        self, pipeline: Pipeline, catalog: Catalog, pauses: LeasePauses, *, report: Callable[[str], None]
    ) -> None:
        """`pauses`: of the lease, which says that and why reading pauses."""
        self._pipeline = pipeline
        self._catalog = catalog
        self._pauses = pauses
        self._report = report
        self._lock = threading.Lock()
        self._paused = False

    def wait(self, is_over: Callable[[], bool]) -> bool:
        """True as soon as there is room for an epoch, False when it is over before that."""
        while not is_over():
            decision = evaluate_backpressure(
                read_storage_state(self._pipeline, self._catalog),
                self._pipeline.ledger,
                window_seconds=self._pipeline.identity.window,
                paused=self._paused,
            )
            if not isinstance(decision, PauseReading):
                self._resume()
                return True
            self._pause(decision)
            time.sleep(_POLL_SECONDS)
        return False

    def _pause(self, decision: PauseReading) -> None:
        if not self._change(paused=True):
            return
        self._report(
            f"Pipeline {self._pipeline.pipeline}: reading pauses: {decision.reason}. {decision.advice}"
        )
        self._pauses.set(_SUBJECT, decision.reason)

    def _resume(self) -> None:
        if not self._change(paused=False):
            return
        self._report(f"Pipeline {self._pipeline.pipeline}: there is room again, reading goes on.")
        self._pauses.set(_SUBJECT, None)

    def _change(self, *, paused: bool) -> bool:
        with self._lock:
            changed, self._paused = self._paused != paused, paused
        return changed
