"""Batching: which open parts become which batches, now. Pure: state and time in, frozen batches out.

Size or time closes a batch. A table whose inserts are failing or piling up gets no new batches meanwhile, so
that what waits is inserted in fewer, larger blocks afterwards. A table with too many parts in ClickHouse gets them
more and more seldom, and step by step more often again once it takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oncehouse.config import BatchLimits
from oncehouse.ledger.records import Part

# How many parked batches a table may have before no further ones are cut for it: what refuses three batches
# refuses the fourth, and parts that are not in a batch can still be put into a different one.
PARKED_LIMIT = 3
# How often the least interval may be doubled for a table with too many parts.
_MOST_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class TableFeedback:
    """What the loader knows of a table: waiting batches, parked ones, and how the last inserts went."""

    waiting: int = 0
    parked: int = 0
    seconds_since_cut: float = float("inf")
    slower: int = 0
    """How often the interval between two batches is doubled."""


def adapt(slower: int, *, too_many_parts: bool) -> int:
    """How much slower a table is sent to after another insert: more for too many parts, else a step less."""
    return min(slower + 1, _MOST_STEPS) if too_many_parts else max(slower - 1, 0)


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
        chosen = _choose(waiting, limits[table])
        rows = sum(part.live_rows for part in chosen)
        more = len(chosen) < len(waiting)
        if _is_due(
            chosen[0], rows, more or draining, limits[table], feedback.get(table, TableFeedback()), now
        ):
            planned.append(PlannedBatch(table=table, parts=tuple(chosen)))
    return tuple(planned)


def _choose(waiting: list[Part], limits: BatchLimits) -> list[Part]:
    """The longest run of oldest parts within the limits; a single part may exceed them, for it is whole."""
    chosen: list[Part] = []
    rows = size_bytes = 0
    for part in waiting:
        rows += part.live_rows
        size_bytes += part.size_bytes
        full = rows > limits.max_rows or size_bytes > limits.max_bytes
        if chosen and (full or part.shape != chosen[0].shape):
            break
        chosen.append(part)
    return chosen


def _is_due(
    oldest: Part, rows: int, closed: bool, limits: BatchLimits, feedback: TableFeedback, now: float
) -> bool:
    if feedback.waiting or feedback.parked >= PARKED_LIMIT:
        return False
    if feedback.seconds_since_cut < limits.min_interval * 2**feedback.slower:
        return False
    age_seconds = now - oldest.registered_at
    # A negative age means that the catalog's clock was set back; nobody should wait for it to catch up.
    return closed or rows >= limits.min_rows or age_seconds >= limits.max_wait or age_seconds < 0
