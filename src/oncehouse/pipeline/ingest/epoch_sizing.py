"""How many records an epoch may read, from how large records are and how long epochs took. Pure.

An epoch reads all that waits, up to this many. The bound follows bytes and time, so that an epoch of large or slow
records is neither larger nor longer than was asked for; a small epoch says nothing about it, since what is fixed in an
epoch is most of its time. Spark takes the bound of its micro-batches when a stream starts, so it moves seldom and by
much: outside of a dead band, and upwards only when epochs are full.

What is not settled when a process dies is read again by the next one. So the first epoch after a start is small,
however much waits: a process that never lives long still settles some of it. Full epochs then grow by what the last
one shows to fit the time. The stream starts with the full bound all the same: while epochs grow, a micro-batch is cut
into several of them, for each start of a stream takes the time of a small epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oncehouse.config.pipeline import Epoch
from oncehouse.ledger.models import OffsetRange

LEAST_RECORDS = 100
FIRST_RECORDS = 30_000
_FIRST_SHARE_OF_BYTES = 16
_FADING = 0.5
_FULL_SHARE = 0.8
# Wider than what records and machines differ by from epoch to epoch (0.8 to 1.25), in either direction.
_LOWERED_BELOW = 0.63
_RAISED_ABOVE = 1.6
_TOO_LONG = 1.25
# The most that a cut leaves to be read with what comes before it.
_REST_SHARE = 0.25
_SHORT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class EpochSize:
    most_records: int
    record_bytes: float = 0.0
    """0 while nothing is known."""


@dataclass(frozen=True, kw_only=True)
class SettledEpoch:
    """An epoch that was just settled."""

    records: int
    size_bytes: int
    seconds: float


def first_size(limits: Epoch, record_bytes: float = 0.0) -> EpochSize:
    """After a start. `record_bytes`: from a look at some of the records that wait; 0 where there are none."""
    records = min(limits.max_rows, FIRST_RECORDS)
    most = _bound(records, record_bytes, limits, max_bytes=limits.max_bytes // _FIRST_SHARE_OF_BYTES)
    return EpochSize(most_records=most, record_bytes=record_bytes)


def full_bound(limits: Epoch, record_bytes: float) -> int:
    """The most records that an epoch may ever have of such records."""
    return _bound(limits.max_rows, record_bytes, limits, max_bytes=limits.max_bytes)


def cut_ranges(
    ranges: Sequence[OffsetRange], most_records: int
) -> tuple[tuple[OffsetRange, ...], tuple[OffsetRange, ...]]:
    """The next epoch of what waits, about as large as it may be, and the rest; each partition gives its share."""
    waiting = sum(span.end - span.start for span in ranges)
    if waiting <= most_records * (1 + _REST_SHARE):
        return tuple(ranges), ()
    share = most_records / waiting
    cuts = [span.start + math.ceil((span.end - span.start) * share) for span in ranges]
    taken = tuple(replace(span, end=cut) for span, cut in zip(ranges, cuts, strict=True))
    rest = tuple(replace(span, start=cut) for span, cut in zip(ranges, cuts, strict=True))
    return taken, rest if any(span.end > span.start for span in rest) else ()


def adjust_size(size: EpochSize, seen: SettledEpoch, limits: Epoch) -> EpochSize:
    if not seen.records:
        return size
    found = seen.size_bytes / seen.records
    # Larger records count at once, smaller ones gradually: an epoch of too few costs less than one of too many.
    record_bytes = max(found, found + (size.record_bytes - found) * _FADING)
    wanted = _bound(_in_time(size, seen, limits), record_bytes, limits, max_bytes=limits.max_bytes)
    full = seen.records >= size.most_records * _FULL_SHARE
    lowered = wanted < size.most_records * _LOWERED_BELOW
    raised = full and (wanted > size.most_records * _RAISED_ABOVE or wanted == limits.max_rows)
    most = wanted if lowered or raised else size.most_records
    return replace(size, most_records=most, record_bytes=record_bytes)


def _in_time(size: EpochSize, seen: SettledEpoch, limits: Epoch) -> float:
    """How many records fit the time: fewer after an epoch that took too long, more after a full and short one."""
    if seen.seconds > limits.max_seconds * _TOO_LONG:
        return seen.records * limits.max_seconds / seen.seconds
    short_seconds = limits.max_seconds * _SHORT_SHARE
    if seen.seconds < short_seconds:
        # What is fixed in an epoch counts as reading here, so that more would have fitted.
        return max(size.most_records * 2.0, seen.records * short_seconds / max(seen.seconds, 0.001))
    return float(size.most_records)


def _bound(records: float, record_bytes: float, limits: Epoch, *, max_bytes: int) -> int:
    fitting = min(records, max_bytes / record_bytes if record_bytes else records)
    return min(limits.max_rows, max(LEAST_RECORDS, int(fitting)))
