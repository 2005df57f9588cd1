"""What a running pipeline has done so far, as one frozen value.

`run` makes a new one after each epoch and each insert and hands it on; the CLI only draws it. Counts are
records since the process started, except those that say what stands now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamProgress:
    """What Spark says of the newest micro-batch of its stream."""

    batch: int
    """As Spark numbers them, from 0 with each start of the stream."""
    records: int
    input_per_second: float
    """Records that arrived, as Spark reckons."""
    processed_per_second: float
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each phase took, under Spark's own names; `triggerExecution` is the whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    read: int = 0
    new: int = 0
    duplicate: int = 0
    rejected: int = 0
    """Records that became dead letters."""
    skipped: int = 0
    """Tombstones, and what `shape` leaves out."""
    waiting: int = 0
    """Records whose schema version is not known yet."""
    batches_waiting: int = 0
    """Batches now in the ledger that are not in ClickHouse yet, parked ones included."""
    rows_in_clickhouse: int = 0
    """Rows of the batches that ClickHouse has confirmed, without those that a refill has replaced."""
    lag: int | None = None
    """Records now in Kafka that no epoch has settled; None while it is not known."""
    done_share: float | None = None
    """Of an import: the share of its bytes that is settled; None for what has no end."""
    events_per_second: float = 0.0
    """Records read a second, over the last few epochs."""
    stream: StreamProgress | None = field(default=None, compare=False)
    """None where there is no stream, or no micro-batch yet. It changes also while nothing happens, and is no news."""
