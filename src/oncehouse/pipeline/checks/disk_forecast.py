"""Whether there is room for what the ledger will keep: sizes in, findings out, before reading has to pause. Pure.

The ledger keeps every event for the window, loaded or not, so its disk must hold what comes in during a window. What it
has grown by so far shows how much that is.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.common.formatting import format_bytes
from oncehouse.config.field_types import format_duration
from oncehouse.config.pipeline import Ledger
from oncehouse.ledger.stats.backlog import Kept
from oncehouse.pipeline.ingest.backpressure import Proceed, StorageState, evaluate_backpressure, least_free

_DAY_SECONDS = 86_400.0
# What a ledger grew by in less than this says little about a day.
_LEAST_SECONDS = 3_600.0


def check_disk_forecast(
    storage: StorageState, kept: Kept | None, ledger: Ledger, *, window_seconds: float, now: float
) -> Iterator[Finding]:
    decision = evaluate_backpressure(storage, ledger, window_seconds=window_seconds)
    if isinstance(decision, Proceed):
        yield Finding(level=Level.OK, where="ledger", what=_describe(storage, ledger))
    else:
        yield Finding(
            level=Level.WARNING,
            where="ledger",
            what=f"reading would pause at once: {decision.reason}",
            advice=decision.advice,
        )
    yield from _check_backlog(storage, ledger)
    # A bucket does not say how much it can hold.
    if kept is not None and "://" not in ledger.files:
        yield from _check_growth(storage, kept, ledger, window_seconds, now)


def _describe(storage: StorageState, ledger: Ledger) -> str:
    bounds = [f"{format_bytes(disk.free_bytes)} are free for {disk.holds}" for disk in storage.disks]
    most = "without a bound" if ledger.max_backlog is None else f"of {format_bytes(ledger.max_backlog)}"
    return "; ".join([*bounds, f"{format_bytes(storage.backlog_bytes)} wait for ClickHouse, {most}"])


def _check_backlog(storage: StorageState, ledger: Ledger) -> Iterator[Finding]:
    if ledger.max_backlog is not None and storage.epoch_bytes > ledger.max_backlog:
        yield Finding(
            level=Level.WARNING,
            where="ledger.max_backlog",
            what=f"an epoch takes up to {format_bytes(storage.epoch_bytes)}, more than the "
            f"{format_bytes(ledger.max_backlog)} that may wait for ClickHouse: reading pauses after each epoch until "
            "it is loaded",
            advice="raise ledger.max_backlog, or lower epoch.max_rows",
        )


def _check_growth(
    storage: StorageState, kept: Kept, ledger: Ledger, window_seconds: float, now: float
) -> Iterator[Finding]:
    seconds = now - kept.since
    if seconds < min(_LEAST_SECONDS, window_seconds):
        return
    disk = storage.disks[0]
    a_day = kept.size_bytes / seconds * _DAY_SECONDS
    needed = round(a_day / _DAY_SECONDS * window_seconds)
    there = kept.size_bytes + disk.free_bytes - least_free(disk, ledger)
    window = format_duration(window_seconds)
    what = (
        f"the ledger grows by about {format_bytes(round(a_day))} a day and keeps events for {window} "
        f"(identity.window), which takes about {format_bytes(needed)}; there is room for {format_bytes(there)} "
        f"for {disk.holds}"
    )
    if needed <= there:
        yield Finding(level=Level.OK, where="identity.window", what=what)
        return
    lasts = max(0.0, (there - kept.size_bytes) / a_day * _DAY_SECONDS)
    yield Finding(
        level=Level.WARNING,
        where="identity.window",
        what=f"{what}: reading will pause in about {format_duration(round(lasts / 3600) * 3600)}",
        advice="enlarge the disk, move ledger.files to object storage, or shorten identity.window",
    )
