"""How many events a second machines can take, and how long what an outage left takes. Pure.

Two bounds: the processor time of an event over all cores, and how long the largest epoch takes, which is read by a
task a partition and decided by a task a range of buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.capacity import constants
from oncehouse.capacity.index_layout import IndexLayout, count_ranges
from oncehouse.capacity.inputs import CapacityInputs

# What is left of the cores for the work: the rest is for bursts, loads that come at once, and the machine itself.
_USABLE = 0.7


@dataclass(frozen=True, kw_only=True)
class Speed:
    events_a_second: float
    """At most, with all cores of all machines."""
    processor_seconds_an_event: float
    bound_by: str
    """`cores`, or `epochs` where more cores would hardly help."""

    def catch_up_seconds(self, inputs: CapacityInputs) -> float:
        """Until nothing is left of an outage, while the usual traffic goes on."""
        spare = self.events_a_second - inputs.events_a_second
        return inputs.events_a_second * inputs.outage_seconds / spare if spare > 0 else float("inf")


def plan_speed(inputs: CapacityInputs, index: IndexLayout, *, cores: int, partitions: int) -> Speed:
    read_seconds = _read_seconds(inputs)
    merge_seconds = (
        (1 - inputs.duplicate_share) * (index.writes_a_key - 1) * constants.MERGE_SECONDS_A_KEY.value
    )
    open_seconds = index.segments * constants.OPEN_SECONDS_A_SEGMENT.value / inputs.epoch.max_rows
    an_event = read_seconds + index.lookup_seconds + merge_seconds + open_seconds
    by_cores = _USABLE * cores / an_event
    by_epochs = inputs.epoch.max_rows / _epoch_seconds(inputs, index, read_seconds, cores, partitions)
    return Speed(
        events_a_second=min(by_cores, by_epochs),
        processor_seconds_an_event=an_event,
        bound_by="cores" if by_cores <= by_epochs else "epochs",
    )


def _read_seconds(inputs: CapacityInputs) -> float:
    """Of the pipeline without look-ups and merges; each further table is taken to cost as much as the first."""

    def task_seconds(event_bytes: float) -> float:
        return constants.READ_SECONDS_AN_EVENT.value + constants.READ_SECONDS_A_BYTE.value * event_bytes

    longer = task_seconds(inputs.event_bytes) / task_seconds(constants.EVENT_BYTES.value)
    return constants.PIPELINE_SECONDS_AN_EVENT.value * longer * inputs.tables


def _epoch_seconds(
    inputs: CapacityInputs, index: IndexLayout, read_seconds: float, cores: int, partitions: int
) -> float:
    """Of the largest epoch."""
    rows = inputs.epoch.max_rows
    readers = _USABLE * min(cores, partitions)
    deciders = _USABLE * count_ranges(rows, buckets=inputs.buckets or cores, cores=cores)
    decide_seconds = rows * index.lookup_seconds + index.segments * constants.OPEN_SECONDS_A_SEGMENT.value
    return constants.EPOCH_SECONDS + rows * read_seconds / readers + decide_seconds / deciders
