"""Batching: which open parts become which batches, now. Pure: state and time in, frozen batches out.

Size or time closes a batch; how much of either is the table's timing (`insert_rate.py`), or fixed limits. A table whose
inserts are failing or piling up gets no new batches meanwhile, so that what waits is inserted in fewer, larger blocks
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oncehouse.config.pipeline import BatchLimits
from oncehouse.ledger.models import Part
from oncehouse.pipeline.load.insert_rate import BatchTiming, InsertRate, decide_timing

# How many parked batches a table may have before no further ones are cut for it: what refuses three batches
# refuses the fourth, and parts that are not in a batch can still be put into a different one.
PARKED_LIMIT = 3


@dataclass(frozen=True, kw_only=True)
class TableFeedback:
    """What the loader knows of a table: waiting batches, parked ones, and its timing."""

    waiting: int = 0
    parked: int = 0
    seconds_since_cut: float = float("inf")
    timing: BatchTiming | None = None
    """None: that of a table of which nothing was seen yet."""


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    table: str
    parts: tuple[Part, ...]


def plan_batches(
    parts: Iterable[Part],
    *,
    limits: Mapping[str, BatchLimits],
    feedback: Mapping[str, TableFeedback],
    now: float,
    draining: bool = False,
) -> tuple[PlannedBatch, ...]:
    """At most one batch a table: the oldest open parts up to the limits, if they are due.

    `draining` closes what is there without waiting for more, when no more is to come.
    """
    by_table: dict[str, list[Part]] = {}
    for part in parts:
        if part.live_rows:
            by_table.setdefault(part.table, []).append(part)
    planned = []
    for table, waiting in by_table.items():
        known = feedback.get(table, TableFeedback())
        timing = known.timing or decide_timing(InsertRate(), limits[table])
        chosen = _choose(waiting, limits[table], timing)
        closed = draining or len(chosen) < len(waiting)
        if _may_cut(known, timing) and (closed or _is_due(chosen, limits[table], timing, known, now)):
            planned.append(PlannedBatch(table=table, parts=tuple(chosen)))
    return tuple(planned)


def _choose(waiting: list[Part], limits: BatchLimits, timing: BatchTiming) -> list[Part]:
    """The longest run of oldest parts within the limits; a single part may exceed them, for it is whole."""
    chosen: list[Part] = []
    rows = size_bytes = 0
    for part in waiting:
        rows += part.live_rows
        size_bytes += part.size_bytes
        full = rows > timing.most_rows or size_bytes > limits.max_bytes
        if chosen and (full or part.shape != chosen[0].shape):
            break
        chosen.append(part)
    return chosen


def _may_cut(known: TableFeedback, timing: BatchTiming) -> bool:
    held_up = known.waiting or known.parked >= PARKED_LIMIT
    return not held_up and known.seconds_since_cut >= timing.least_seconds


def _is_due(
    chosen: list[Part], limits: BatchLimits, timing: BatchTiming, known: TableFeedback, now: float
) -> bool:
    """Whether a batch that could still grow goes now."""
    enough = sum(part.live_rows for part in chosen) >= limits.min_rows
    if limits.sizes == "fixed":
        age_seconds = now - chosen[0].registered_at
        # A negative age means that the catalog's clock was set back; waiting for it to catch up could take hours.
        return enough or age_seconds >= limits.max_wait or age_seconds < 0
    # Counted from the last batch and not from the oldest row: what comes after a pause goes at once.
    rested = known.seconds_since_cut >= timing.rest_seconds
    return rested and (enough or known.seconds_since_cut >= timing.interval_seconds)
