"""How often a table gets a batch and how large that may be, from its load and ClickHouse's answers.

The functions are pure. What is observed (rows that arrive, how an insert went, how many parts the table has) makes a
new `InsertRate`; what that means for the next batch is a `BatchTiming`. The interval follows the load without a jump:
it is as short as allowed for a load that could not fill a batch in time, grows to the longest wait for one that just
can, and shrinks again above. A failed insert or too many parts double the interval at once; it is halved again only
after several inserts that went well. `TableRates` keeps the rates for the load stage.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert.part_pressure import PartPressure
from oncehouse.errors import OncehouseError
from oncehouse.ledger.models import BatchStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import BatchLimits
    from oncehouse.ledger.models import LedgerBatch, Part
    from oncehouse.pipeline.load.insert_task import AttemptResult

# The load is what arrived lately: each row counts less the longer it is ago, a third after this long.
REMEMBERED_SECONDS = 10.0
# How often the interval may be doubled for a table with too many parts, and for one whose inserts fail otherwise: a
# server that was away for long should not be sent to seldom when it is back.
MOST_STEPS = 5
MOST_STEPS_OF_FAILURES = 1
# Inserts that went well in a row before the interval is halved again. With fewer, a table that refuses now and then
# would be sent to faster and slower all the time.
GOOD_INSERTS = 4
# What is between the begins of two inserts, to what the first took: a fifth of the time is left for merges.
REST_TO_INSERT = 1.25
# Shares of the parts at which the server slows inserts down: from the one on there is time to back off before it does,
# below the other it is over. Between them nothing changes, so that merges alone do not turn the rate up and down.
CROWDED_SHARE = 0.5
RELIEVED_SHARE = 0.3
# An insert should not take more than this share of the time after which it counts as unknown.
SLOW_SHARE = 0.25
_FADING = 0.7


class InsertAnswer(StrEnum):
    """How an insert ended, as far as the rate depends on it."""

    TAKEN = "taken"
    TOO_MANY_PARTS = "too many parts"
    TOO_LARGE = "too large"
    """The server ran out of memory or time over it."""
    FAILED = "failed"
    """It did not answer, or said that it cannot now."""


@dataclass(frozen=True, kw_only=True)
class EndedInsert:
    """One insert that has ended."""

    answer: InsertAnswer
    rows: int
    seconds: float
    parts_share: float = 0.0
    """Parts of the table's fullest partition, as a share of those at which the server slows inserts down."""
    slow: bool = False
    """Whether it took so long that a larger one may not end in time."""


@dataclass(frozen=True, kw_only=True)
class InsertRate:
    """What is remembered of a table."""

    rows_a_second: float = 0.0
    seen_at: float | None = None
    insert_seconds: float = 0.0
    steps: int = 0
    """How often the interval is doubled."""
    good: int = 0
    """Inserts that went well since the last step."""
    most_rows: int | None = None
    """A batch may not hold more for now; None while nothing was too large."""


@dataclass(frozen=True, kw_only=True)
class BatchTiming:
    """What the rate means for the next batch."""

    least_seconds: float
    """No batch sooner after the last one, whatever waits."""
    rest_seconds: float
    """No sooner either, unless a batch is full."""
    interval_seconds: float
    """After this long whatever is there goes."""
    most_rows: int


def add_arrivals(rate: InsertRate, rows: int, now: float) -> InsertRate:
    """Rows that have come since the last look; `now` is any clock that only goes forward."""
    if rate.seen_at is None:
        return replace(rate, seen_at=now)
    faded = math.exp(-max(0.0, now - rate.seen_at) / REMEMBERED_SECONDS)
    return replace(rate, rows_a_second=rate.rows_a_second * faded + rows / REMEMBERED_SECONDS, seen_at=now)


def add_insert(rate: InsertRate, ended: EndedInsert, limits: BatchLimits) -> InsertRate:
    if ended.answer is InsertAnswer.TAKEN:
        known = rate.insert_seconds or ended.seconds
        took = known * _FADING + ended.seconds * (1 - _FADING)
        rate = replace(rate, insert_seconds=took, most_rows=_most_rows_after(rate, ended, limits))
        if ended.parts_share >= CROWDED_SHARE:
            return _double_interval(rate, MOST_STEPS)
        return _halve_interval(rate) if ended.parts_share < RELIEVED_SHARE else replace(rate, good=0)
    if ended.answer is InsertAnswer.TOO_LARGE or ended.slow:
        rate = replace(rate, most_rows=_halve(ended.rows, limits))
    return _double_interval(
        rate, MOST_STEPS if ended.answer is InsertAnswer.TOO_MANY_PARTS else MOST_STEPS_OF_FAILURES
    )


def _double_interval(rate: InsertRate, most: int) -> InsertRate:
    return replace(rate, steps=max(rate.steps, min(rate.steps + 1, most)), good=0)


def _halve_interval(rate: InsertRate) -> InsertRate:
    if not rate.steps:
        return replace(rate, good=0)
    good = rate.good + 1
    return replace(rate, steps=rate.steps - 1, good=0) if good >= GOOD_INSERTS else replace(rate, good=good)


def _most_rows_after(rate: InsertRate, ended: EndedInsert, limits: BatchLimits) -> int | None:
    """Less after a slow insert; a quarter more after one that was full and quick, until nothing holds it back."""
    if ended.slow:
        return _halve(ended.rows, limits)
    if rate.most_rows is None or ended.rows < rate.most_rows / 2:
        return rate.most_rows
    more = rate.most_rows + max(1, rate.most_rows // 4)
    return more if more < limits.max_rows else None


def _halve(rows: int, limits: BatchLimits) -> int:
    return max(limits.min_rows, min(rows, limits.max_rows) // 2)


def decide_timing(rate: InsertRate, limits: BatchLimits) -> BatchTiming:
    least = limits.min_interval * 2.0**rate.steps
    if limits.sizes == "fixed":
        return BatchTiming(
            least_seconds=least,
            rest_seconds=least,
            interval_seconds=limits.max_wait,
            most_rows=limits.max_rows,
        )
    # However long inserts take, a table is not sent to more seldom than one with too many parts.
    longest = limits.min_interval * 2.0**MOST_STEPS
    rest = max(least, min(rate.insert_seconds * REST_TO_INSERT, longest))
    return BatchTiming(
        least_seconds=least,
        rest_seconds=rest,
        interval_seconds=max(rest, _worth_waiting(rate.rows_a_second, limits)),
        most_rows=min(limits.max_rows, rate.most_rows or limits.max_rows),
    )


def _worth_waiting(rows_a_second: float, limits: BatchLimits) -> float:
    """Seconds in which the load fills a batch; where it cannot, the less the further it is from that."""
    if not limits.max_wait or not rows_a_second:
        return 0.0
    filled_seconds = limits.min_rows / rows_a_second
    if filled_seconds <= limits.max_wait:
        return filled_seconds
    return limits.max_wait * (limits.max_wait / filled_seconds)


class TableRates:
    """The rates of all tables. Used by the thread of the load stage; only `read_parts_share` runs where an insert ran.

    How full a table's partitions are is read after an insert that succeeded; an error there is no reason to stop.
    """

    def __init__(self, client: Client, limits: Mapping[str, BatchLimits], *, insert_timeout: float) -> None:
        self._limits = limits
        self._slow_seconds = insert_timeout * SLOW_SHARE
        self._rates = {table: InsertRate() for table in limits}
        self._pressure = {table: PartPressure(client, table) for table in limits}
        self._open: dict[str, set[str]] = {}

    def add_open_parts(self, parts: Iterable[Part]) -> None:
        """Count the rows that have come since the last call."""
        rows = dict.fromkeys(self._limits, 0)
        known, self._open = self._open, {table: set() for table in self._limits}
        for part in parts:
            self._open[part.table].add(part.part)
            if part.part not in known.get(part.table, ()):
                rows[part.table] += part.live_rows
        now = time.monotonic()
        for table, rate in self._rates.items():
            self._rates[table] = add_arrivals(rate, rows[table], now)

    def read_parts_share(self, table: str, result: AttemptResult) -> float:
        """The share of parts after an insert that succeeded."""
        if result.status is BatchStatus.IN_CLICKHOUSE and self._limits[table].sizes == "adaptive":
            with suppress(OncehouseError):
                return self._pressure[table].read_share()
        return 0.0

    def add_insert(self, batch: LedgerBatch, result: AttemptResult, parts_share: float) -> None:
        """Record how an insert ended; a parked batch says nothing about the server."""
        if result.status is BatchStatus.PARKED:
            return
        ended = EndedInsert(
            answer=result.answer,
            rows=batch.rows,
            seconds=result.seconds,
            parts_share=parts_share,
            slow=result.seconds >= self._slow_seconds,
        )
        self._rates[batch.table] = add_insert(self._rates[batch.table], ended, self._limits[batch.table])

    def timing(self, table: str) -> BatchTiming:
        return decide_timing(self._rates[table], self._limits[table])
