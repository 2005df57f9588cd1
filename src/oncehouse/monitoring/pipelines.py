"""The activity of a pipeline: counts, rates, the last hour by minute, free disk space; pages of epochs.

Rates and curves are computed from the ledger, so that readers keep no state and all see the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.segments import list_segments
from oncehouse.ledger.models import EpochKind, EpochRow, OffsetRange, Part
from oncehouse.ledger.stats import recent
from oncehouse.ledger.stats.recent import Load, Settled
from oncehouse.monitoring.overview import Overview, read_overview
from oncehouse.pipeline.ingest.backpressure import LedgerDisk, StorageState, least_free, read_storage_state

RATE_SECONDS = 60.0
CURVE_POINTS = 60
POINT_SECONDS = 60.0
INSERT_SECONDS = 600.0
"""Over how long a time inserts are averaged."""
_FROM_OUTSIDE = frozenset({EpochKind.KAFKA, EpochKind.FRAME})
_DAY = 86400.0
_AGES = (
    ("under an hour", 3600.0),
    ("under a day", _DAY),
    ("under a week", 7 * _DAY),
    ("under 30 days", 30 * _DAY),
    ("under 90 days", 90 * _DAY),
    ("older", float("inf")),
)


@dataclass(frozen=True, kw_only=True)
class ActivityRates:
    read_per_second: float
    """Records from outside that epochs have settled, over the last minute."""
    loaded_per_second: float
    """Rows that ClickHouse has confirmed, over the last minute."""
    read_curve: tuple[int, ...]
    """Records settled in each minute of the last hour, the oldest first."""
    loaded_curve: tuple[int, ...]
    insert_seconds: dict[str, float]
    """By table: how long inserts took, the mean of the last ten minutes; tables without inserts are left out."""


@dataclass(frozen=True, kw_only=True)
class DiskView:
    disk: LedgerDisk
    kept_free_bytes: int
    """Reading pauses before less than this is free."""


@dataclass(frozen=True, kw_only=True)
class PipelineActivity:
    overview: Overview
    pace: ActivityRates
    storage: StorageState
    max_backlog_bytes: int | None
    disks: tuple[DiskView, ...]
    newest_epoch: EpochRow | None
    lag_trouble: str | None
    """Why the lag is not known; None if it is known or the pipeline has no Kafka source."""


@dataclass(frozen=True, kw_only=True)
class IndexAge:
    age: str
    segments: int
    keys: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class EpochPage:
    epochs: tuple[EpochRow, ...]
    older: int | None
    """The epoch before which the next page begins; none on the last."""


@dataclass(frozen=True, kw_only=True)
class EpochDetail:
    epoch: EpochRow
    ranges: tuple[OffsetRange, ...]
    """What of Kafka it settled."""
    parts: tuple[Part, ...]


def read_activity(
    pipeline: Pipeline,
    catalog: Catalog,
    *,
    end_offsets: Mapping[tuple[str, int], int] | None = None,
    lag_trouble: str | None = None,
) -> PipelineActivity:
    storage = read_storage_state(pipeline, catalog)
    with catalog.snapshot() as view:
        now = view.now()
        since = now - CURVE_POINTS * POINT_SECONDS
        epochs = recent.list_recent_epochs(view, since=since)
        loads = recent.list_recent_loads(view, since=since)
        newest = next(iter(recent.page_epochs(view, before=None, limit=1)), None)
    return PipelineActivity(
        overview=read_overview(catalog, end_offsets=end_offsets),
        pace=measure_pace(epochs, loads, now),
        storage=storage,
        max_backlog_bytes=pipeline.ledger.max_backlog,
        disks=tuple(
            DiskView(disk=disk, kept_free_bytes=least_free(disk, pipeline.ledger)) for disk in storage.disks
        ),
        newest_epoch=newest,
        lag_trouble=lag_trouble,
    )


def measure_pace(epochs: Sequence[Settled], loads: Sequence[Load], now: float) -> ActivityRates:
    read = [(epoch.registered_at, epoch.read) for epoch in epochs if epoch.kind in _FROM_OUTSIDE]
    loaded = [(load.loaded_at, load.rows) for load in loads]
    return ActivityRates(
        read_per_second=_rate(read, now),
        loaded_per_second=_rate(loaded, now),
        read_curve=_curve(read, now),
        loaded_curve=_curve(loaded, now),
        insert_seconds=_mean_seconds(load for load in loads if load.loaded_at > now - INSERT_SECONDS),
    )


def _rate(counted: Iterable[tuple[float, int]], now: float) -> float:
    return sum(count for at, count in counted if at > now - RATE_SECONDS) / RATE_SECONDS


def _curve(counted: Iterable[tuple[float, int]], now: float) -> tuple[int, ...]:
    points = [0] * CURVE_POINTS
    for at, count in counted:
        ago = int(max(0.0, now - at) // POINT_SECONDS)
        if ago < CURVE_POINTS:
            points[CURVE_POINTS - 1 - ago] += count
    return tuple(points)


def _mean_seconds(loads: Iterable[Load]) -> dict[str, float]:
    taken: dict[str, list[float]] = {}
    for load in loads:
        if load.seconds is not None:
            taken.setdefault(load.table, []).append(load.seconds)
    return {table: sum(seconds) / len(seconds) for table, seconds in sorted(taken.items())}


def read_index_ages(catalog: Catalog) -> tuple[IndexAge, ...]:
    """The key index by the age of its segments; ages without keys are omitted."""
    with catalog.snapshot() as view:
        now, segments = view.now(), list_segments(view)
    found: dict[str, list[int]] = {name: [0, 0, 0] for name, _ in _AGES}
    for segment in segments:
        name = next(name for name, bound in _AGES if now - segment.first_seen_to < bound)
        sums = found[name]
        sums[0] += 1
        sums[1] += segment.keys
        sums[2] += segment.file.size_bytes
    return tuple(
        IndexAge(age=name, segments=segments_, keys=keys, size_bytes=size_bytes)
        for name, (segments_, keys, size_bytes) in found.items()
        if segments_
    )


def list_epoch_page(catalog: Catalog, *, before: int | None = None, limit: int = 50) -> EpochPage:
    found = recent.page_epochs(catalog, before=before, limit=limit + 1)
    shown = found[:limit]
    return EpochPage(epochs=shown, older=shown[-1].epoch if len(found) > limit else None)


def read_epoch(catalog: Catalog, epoch: int) -> EpochDetail:
    """One epoch with what it settled and wrote; ConfigurationError when it is not there any more."""
    with catalog.snapshot() as view:
        return EpochDetail(
            epoch=recent.find_epoch(view, epoch),
            ranges=recent.list_epoch_ranges(view, epoch),
            parts=recent.list_epoch_parts(view, epoch),
        )
