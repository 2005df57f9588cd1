"""Is there room for what the ledger will keep? Sizes in, findings out, before reading has to pause. Pure.

The ledger keeps every event for the window, loaded or not, so its disk must hold what comes in during a window. How
much that is, is told by what it has grown by so far.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.config.field_types import format_duration
from oncehouse.config.pipeline import Ledger
from oncehouse.ledger.stats.backlog import Kept
from oncehouse.pipeline.ingest.backpressure import Go, Room, judge_room, least_free, spell_bytes

_DAY_SECONDS = 86_400.0
# What a ledger grew by in less than this says little about a day.
_LEAST_SECONDS = 3_600.0


def judge_ledger(
    room: Room, kept: Kept | None, ledger: Ledger, *, window_seconds: float, now: float
) -> Iterator[Finding]:
    found = judge_room(room, ledger, window_seconds=window_seconds)
    if isinstance(found, Go):
        yield Finding(level=Level.OK, where="ledger", what=_tell(room, ledger))
    else:
        yield Finding(
            level=Level.WARNING,
            where="ledger",
            what=f"reading would pause at once: {found.reason}",
            advice=found.advice,
        )
    yield from _judge_backlog(room, ledger)
    # In a bucket there is nobody whom one could ask for its end.
    if kept is not None and "://" not in ledger.files:
        yield from _judge_growth(room, kept, ledger, window_seconds, now)


def _tell(room: Room, ledger: Ledger) -> str:
    bounds = [f"{spell_bytes(disk.free_bytes)} are free for {disk.holds}" for disk in room.disks]
    most = "without a bound" if ledger.max_backlog is None else f"of {spell_bytes(ledger.max_backlog)}"
    return "; ".join([*bounds, f"{spell_bytes(room.backlog_bytes)} wait for ClickHouse, {most}"])


def _judge_backlog(room: Room, ledger: Ledger) -> Iterator[Finding]:
    if ledger.max_backlog is not None and room.epoch_bytes > ledger.max_backlog:
        yield Finding(
            level=Level.WARNING,
            where="ledger.max_backlog",
            what=f"an epoch takes up to {spell_bytes(room.epoch_bytes)}, more than the "
            f"{spell_bytes(ledger.max_backlog)} that may wait for ClickHouse: reading pauses after each epoch until "
            "it is loaded",
            advice="raise ledger.max_backlog, or lower epoch.max_rows",
        )


def _judge_growth(
    room: Room, kept: Kept, ledger: Ledger, window_seconds: float, now: float
) -> Iterator[Finding]:
    seconds = now - kept.since
    if seconds < min(_LEAST_SECONDS, window_seconds):
        return
    disk = room.disks[0]
    a_day = kept.size_bytes / seconds * _DAY_SECONDS
    needed = round(a_day / _DAY_SECONDS * window_seconds)
    there = kept.size_bytes + disk.free_bytes - least_free(disk, ledger)
    window = format_duration(window_seconds)
    what = (
        f"the ledger grows by about {spell_bytes(round(a_day))} a day and keeps events for {window} (identity.window), "
        f"which takes about {spell_bytes(needed)}; there is room for {spell_bytes(there)} for {disk.holds}"
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
