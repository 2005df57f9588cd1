"""How much a table must remember so that a repeated insert is dropped: pure arithmetic.

A table remembers the tokens of its latest blocks, one for each partition that an insert touches. A retry is
safe by its token alone as long as fewer blocks than that came in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SAFETY = 2
_LEAST_BLOCKS = 1000
_LEAST_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class WindowNeeds:
    min_interval_seconds: float
    """Least time between two inserts into the table, more than 0."""
    retry_horizon_seconds: float
    """Longest time from one attempt's start to the next one's: its timeout and the longest wait."""
    partitions_per_insert: int = 1
    """Partitions of the table that one batch usually touches."""


def blocks_needed(needs: WindowNeeds) -> int:
    inserts = needs.retry_horizon_seconds / needs.min_interval_seconds
    return max(_LEAST_BLOCKS, math.ceil(inserts * needs.partitions_per_insert * _SAFETY))


def seconds_needed(needs: WindowNeeds) -> int:
    return max(_LEAST_SECONDS, math.ceil(needs.retry_horizon_seconds * _SAFETY))


def explain(needs: WindowNeeds) -> str:
    """The figures behind `blocks_needed`, for messages."""
    partitions = "partition" if needs.partitions_per_insert == 1 else "partitions"
    return (
        f"{needs.retry_horizon_seconds:g} s until a retry / one insert each {needs.min_interval_seconds:g} s "
        f"x {needs.partitions_per_insert} {partitions} an insert x {_SAFETY} for safety, "
        f"at least {_LEAST_BLOCKS}"
    )
