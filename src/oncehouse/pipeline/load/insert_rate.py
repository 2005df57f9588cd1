"""Pace: how often a table gets a batch and how large that may be, from its load and ClickHouse's answers. Pure.

What is seen (rows that arrive, how an insert went, how many parts the table has) makes a new `Pace`; what that means
for the next batch is a `Rhythm`. The interval follows the load without a step in it: it is as short as allowed for a
load that could not fill a batch in time, grows to the longest wait for one that just can, and shrinks again above.
Trouble doubles the interval at once; it is halved again only after several inserts that went well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from oncehouse.config.pipeline import BatchLimits

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
# below the other it is over. Between them nothing changes, so that merges alone do not turn the pace up and down.
CROWDED_SHARE = 0.5
RELIEVED_SHARE = 0.3
# An insert should not take more than this share of the time after which it counts as unknown.
SLOW_SHARE = 0.25
_FADING = 0.7


class Answer(StrEnum):
    """How an insert ended, as far as the pace depends on it."""

    TAKEN = "taken"
    TOO_MANY_PARTS = "too many parts"
    TOO_LARGE = "too large"
    """The server ran out of memory or time over it."""
    FAILED = "failed"
    """It did not answer, or said that it cannot now."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One insert that has ended."""

    answer: Answer
    rows: int
    seconds: float
    parts_share: float = 0.0
    """Parts of the table's fullest partition, as a share of those at which the server slows inserts down."""
    slow: bool = False
    """Whether it took so long that a larger one may not end in time."""


@dataclass(frozen=True, kw_only=True)
class Pace:
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
class Rhythm:
    """What the pace means for the next batch."""

    least_seconds: float
    """No batch sooner after the last one, whatever waits."""
    rest_seconds: float
    """No sooner either, unless a batch is full."""
    interval_seconds: float
    """After this long whatever is there goes."""
    most_rows: int


def see_arrivals(pace: Pace, rows: int, now: float) -> Pace:
    """Rows that have come since the last look; `now` is any clock that only goes forward."""
    if pace.seen_at is None:
        return replace(pace, seen_at=now)
    faded = math.exp(-max(0.0, now - pace.seen_at) / REMEMBERED_SECONDS)
    return replace(pace, rows_a_second=pace.rows_a_second * faded + rows / REMEMBERED_SECONDS, seen_at=now)


def see_insert(pace: Pace, seen: Ended, limits: BatchLimits) -> Pace:
    if seen.answer is Answer.TAKEN:
        known = pace.insert_seconds or seen.seconds
        took = known * _FADING + seen.seconds * (1 - _FADING)
        pace = replace(pace, insert_seconds=took, most_rows=_most_rows_after(pace, seen, limits))
        if seen.parts_share >= CROWDED_SHARE:
            return _slow_down(pace, MOST_STEPS)
        return _speed_up(pace) if seen.parts_share < RELIEVED_SHARE else replace(pace, good=0)
    if seen.answer is Answer.TOO_LARGE or seen.slow:
        pace = replace(pace, most_rows=_halve(seen.rows, limits))
    return _slow_down(pace, MOST_STEPS if seen.answer is Answer.TOO_MANY_PARTS else MOST_STEPS_OF_FAILURES)


def _slow_down(pace: Pace, most: int) -> Pace:
    return replace(pace, steps=max(pace.steps, min(pace.steps + 1, most)), good=0)


def _speed_up(pace: Pace) -> Pace:
    if not pace.steps:
        return replace(pace, good=0)
    good = pace.good + 1
    return replace(pace, steps=pace.steps - 1, good=0) if good >= GOOD_INSERTS else replace(pace, good=good)


def _most_rows_after(pace: Pace, seen: Ended, limits: BatchLimits) -> int | None:
    """Less after a slow insert; a quarter more after one that was full and quick, until nothing holds it back."""
    if seen.slow:
        return _halve(seen.rows, limits)
    if pace.most_rows is None or seen.rows < pace.most_rows / 2:
        return pace.most_rows
    more = pace.most_rows + max(1, pace.most_rows // 4)
    return more if more < limits.max_rows else None


def _halve(rows: int, limits: BatchLimits) -> int:
    return max(limits.min_rows, min(rows, limits.max_rows) // 2)


def decide_rhythm(pace: Pace, limits: BatchLimits) -> Rhythm:
    least = limits.min_interval * 2.0**pace.steps
    if limits.sizes == "fixed":
        return Rhythm(
            least_seconds=least,
            rest_seconds=least,
            interval_seconds=limits.max_wait,
            most_rows=limits.max_rows,
        )
    # However long inserts take, a table is not sent to more seldom than one with too many parts.
    longest = limits.min_interval * 2.0**MOST_STEPS
    rest = max(least, min(pace.insert_seconds * REST_TO_INSERT, longest))
    return Rhythm(
        least_seconds=least,
        rest_seconds=rest,
        interval_seconds=max(rest, _worth_waiting(pace.rows_a_second, limits)),
        most_rows=min(limits.max_rows, pace.most_rows or limits.max_rows),
    )


def _worth_waiting(rows_a_second: float, limits: BatchLimits) -> float:
    """Seconds in which the load fills a batch; where it cannot, the less the further it is from that."""
    if not limits.max_wait or not rows_a_second:
        return 0.0
    filled_seconds = limits.min_rows / rows_a_second
    if filled_seconds <= limits.max_wait:
        return filled_seconds
    return limits.max_wait * (limits.max_wait / filled_seconds)
