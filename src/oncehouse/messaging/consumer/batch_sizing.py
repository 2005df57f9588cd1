"""How large the next batch may be and how long it may wait, from the run times of the handler so far.

A handler is assumed to cost a fixed time per call and per record; both are estimated from measurements, newer ones
counting more. The size aims at a target time, twice that while records pile up, but is never so small that calls cost
more than a fifth of it. Changes are halved and small ones skipped, so that noise has no effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FADING = 0.8
_DEAD_BAND = 0.2
_LEAST_SPREAD = 0.25
_CALLS_TO_TARGET = 5
_WAIT_TO_CALL = 4
_LONGEST_WAIT_FACTOR = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizeLimits:
    size: int
    """No batch is larger."""
    wait_seconds: float
    """The shortest wait for more records; with expensive calls up to ten times as long."""
    target_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    size: int
    wait_seconds: float
    call_seconds: float = 0.0
    """The estimated cost of a call."""
    weight: float = 0.0
    records: float = 0.0
    seconds: float = 0.0
    records_squared: float = 0.0
    records_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMeasurement:
    records: int
    seconds: float
    lag: int
    """Records that wait after the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerCost:
    call_seconds: float
    record_seconds: float


def initial_batch_size(limits: BatchSizeLimits) -> BatchSize:
    return BatchSize(size=limits.size, wait_seconds=limits.wait_seconds)


def adapt_batch_size(batch_size: BatchSize, seen: BatchMeasurement, limits: BatchSizeLimits) -> BatchSize:
    remembered = _remember(batch_size, seen)
    cost = estimate_cost(remembered)
    target = max(limits.target_seconds, _CALLS_TO_TARGET * cost.call_seconds)
    if seen.lag >= batch_size.size:
        target *= 2
    ideal = (target - cost.call_seconds) / cost.record_seconds if cost.record_seconds else float(limits.size)
    size = _step(batch_size.size, min(max(ideal, 1.0), float(limits.size)))
    wait = min(
        max(limits.wait_seconds, _WAIT_TO_CALL * cost.call_seconds),
        _LONGEST_WAIT_FACTOR * limits.wait_seconds,
    )
    return BatchSize(
        size=size,
        wait_seconds=wait,
        call_seconds=cost.call_seconds,
        weight=remembered.weight,
        records=remembered.records,
        seconds=remembered.seconds,
        records_squared=remembered.records_squared,
        records_seconds=remembered.records_seconds,
    )


def estimate_cost(batch_size: BatchSize) -> HandlerCost:
    """Least squares over the measurements. Batches of similar size do not determine a call's cost, so it stays."""
    mean_records, mean_seconds = (
        batch_size.records / batch_size.weight,
        batch_size.seconds / batch_size.weight,
    )
    spread = batch_size.records_squared / batch_size.weight - mean_records**2
    if spread <= (_LEAST_SPREAD * mean_records) ** 2:
        call = min(batch_size.call_seconds, mean_seconds)
        return HandlerCost(call_seconds=call, record_seconds=(mean_seconds - call) / mean_records)
    slope = (batch_size.records_seconds / batch_size.weight - mean_records * mean_seconds) / spread
    slope = min(max(slope, 0.0), mean_seconds / mean_records)
    return HandlerCost(call_seconds=mean_seconds - slope * mean_records, record_seconds=slope)


def _remember(batch_size: BatchSize, seen: BatchMeasurement) -> BatchSize:
    records, seconds = float(seen.records), seen.seconds
    return BatchSize(
        size=batch_size.size,
        wait_seconds=batch_size.wait_seconds,
        call_seconds=batch_size.call_seconds,
        weight=batch_size.weight * _FADING + 1,
        records=batch_size.records * _FADING + records,
        seconds=batch_size.seconds * _FADING + seconds,
        records_squared=batch_size.records_squared * _FADING + records * records,
        records_seconds=batch_size.records_seconds * _FADING + records * seconds,
    )


def _step(size: int, ideal: float) -> int:
    """Half-way to the ideal on a logarithmic scale; at most by a factor of 2."""
    factor = ideal / size
    if abs(factor - 1) <= _DEAD_BAND:
        return size
    return max(1, round(size * min(max(math.sqrt(factor), 0.5), 2.0)))
