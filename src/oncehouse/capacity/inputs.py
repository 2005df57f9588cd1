"""The inputs of a plan: a load, how long ids are remembered, and machines; and values that no plan can be made for.

They are numbers only, from the command line, or from a pipeline file for those that it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from oncehouse.config.pipeline import BatchLimits, Epoch
from oncehouse.errors import ConfigurationError

DAY_SECONDS = 86_400.0
_MOST_EVENTS_A_DAY = 1e15
_MOST_EVENT_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: int = 8
    memory_bytes: int = 32 << 30
    disk_bytes: int = 1 << 40
    disk_reads_a_second: int = 20_000
    """Random reads: some 20,000 of a modest SSD, 200 of a spinning disk."""


@dataclass(frozen=True, kw_only=True)
class CapacityInputs:
    events_a_day: float
    """Records in Kafka, duplicates included."""
    event_bytes: float
    window_seconds: float
    duplicate_share: float = 0.0
    """Of the records, those whose id was seen before."""
    peak: float = 2.0
    """How much busier than the average the busiest time is."""
    tables: int = 1
    """How many tables take each event."""
    partitions: int | None = None
    """Of the topics together; None: as many as the plan needs."""
    buckets: int | None = None
    """None: as many as the plan needs."""
    stored_share: float | None = None
    """Bytes that raw bytes and parts take together for a byte of an event; None: as in the benchmarks."""
    outage_seconds: float = 3_600.0
    epoch: Epoch = field(default_factory=Epoch)
    batch: BatchLimits = field(default_factory=BatchLimits)
    machine: Machine = field(default_factory=Machine)
    machines: int | None = None
    """How many there are; None: the plan says how many are needed."""
    replicas: int = 1
    price_a_gigabyte: float | None = None
    """Of disk or object storage, a month."""
    price_a_machine: float | None = None

    @property
    def events_a_second(self) -> float:
        return self.events_a_day / DAY_SECONDS

    @property
    def new_a_second(self) -> float:
        return self.events_a_second * (1 - self.duplicate_share)


def refuse_senseless(inputs: CapacityInputs) -> None:
    """Raises ConfigurationError for numbers that mean nothing, all of them at once."""
    found = [
        f"{name} must be {rule}, not {value:g}"
        for name, value, rule, holds in _rules(inputs)
        if not (math.isfinite(value) and holds)
    ]
    if found:
        raise ConfigurationError("No plan can be made: " + "; ".join(found) + ".")


def _rules(inputs: CapacityInputs) -> list[tuple[str, float, str, bool]]:
    machine = inputs.machine
    buckets, partitions, machines = (
        1 if given is None else given for given in (inputs.buckets, inputs.partitions, inputs.machines)
    )
    return [
        (
            "the events a day",
            inputs.events_a_day,
            f"above 0 and at most {_MOST_EVENTS_A_DAY:g}",
            0 < inputs.events_a_day <= _MOST_EVENTS_A_DAY,
        ),
        (
            "the size of an event",
            inputs.event_bytes,
            "above 0 bytes and at most 1GB",
            0 < inputs.event_bytes <= _MOST_EVENT_BYTES,
        ),
        ("the window", inputs.window_seconds, "above 0 seconds", inputs.window_seconds > 0),
        (
            "the share of duplicates",
            inputs.duplicate_share,
            "from 0 to below 1, such as 0.1",
            0 <= inputs.duplicate_share < 1,
        ),
        ("the peak", inputs.peak, "1 or more times the average", inputs.peak >= 1),
        ("the number of tables", inputs.tables, "1 or more", inputs.tables >= 1),
        ("the number of partitions", partitions, "1 or more", partitions >= 1),
        (
            "the number of buckets",
            buckets,
            "a power of two up to 4096",
            1 <= buckets <= 4096 and not buckets & (buckets - 1),
        ),
        (
            "the stored share",
            inputs.stored_share or 0.0,
            "above 0",
            inputs.stored_share is None or inputs.stored_share > 0,
        ),
        ("the outage", inputs.outage_seconds, "0 seconds or more", inputs.outage_seconds >= 0),
        ("the number of cores", machine.cores, "1 or more", machine.cores >= 1),
        ("the memory of a machine", machine.memory_bytes, "above 0 bytes", machine.memory_bytes > 0),
        ("the disk of a machine", machine.disk_bytes, "above 0 bytes", machine.disk_bytes > 0),
        (
            "the disk's reads a second",
            machine.disk_reads_a_second,
            "1 or more",
            machine.disk_reads_a_second >= 1,
        ),
        ("the number of machines", machines, "1 or more", machines >= 1),
        ("the number of replicas", inputs.replicas, "1 or more", inputs.replicas >= 1),
        ("a price", inputs.price_a_gigabyte or 0.0, "0 or more", (inputs.price_a_gigabyte or 0.0) >= 0),
        ("a price", inputs.price_a_machine or 0.0, "0 or more", (inputs.price_a_machine or 0.0) >= 0),
    ]
