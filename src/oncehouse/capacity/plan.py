"""`plan_capacity`: the load in, what it takes out. Pure; all numbers come from `constants.py`.

Formulas err on the side of more, and where a step of the code would make more load cheaper they take the line above
it: more events, larger ones, a longer window or more duplicates never need less. What machines cannot do is an error
that says what stands in the way, and what would help (`find_machines.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.capacity import constants
from oncehouse.capacity.index_layout import IndexLayout, lay_out_index, recommend_buckets
from oncehouse.capacity.inputs import CapacityInputs
from oncehouse.capacity.ledger_sizes import Disk, Epochs, Inserts, plan_epochs, plan_inserts, size_ledger
from oncehouse.capacity.throughput import Speed, plan_speed
from oncehouse.pipeline.dedup.index_compaction import MAX_KEYS
from oncehouse.pipeline.spark.arrow_batches import BLOCK_BYTES, BLOCK_ROWS


@dataclass(frozen=True, kw_only=True)
class Memory:
    worker_bytes: float
    """Of a Python worker that reads, one a core."""
    loading_worker_bytes: float
    """Of one that loads a batch as large as it may be; as many at once as there are tables."""
    merging_worker_bytes: float
    """Of the one worker that merges segments at the same time."""
    driver_bytes: float
    """Of the driver's Python process and its Java process."""
    machine_bytes: float
    """All processes on the machine that holds the driver too, without what is kept in the page cache."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    inputs: CapacityInputs
    machines: int
    buckets: int
    partitions: int
    """Of Kafka, at least: a read task a partition."""
    index: IndexLayout
    page_reads_a_second: float
    """At the busiest time, by look-ups in what of the key index does not fit a machine's page cache."""
    index_read_seconds: float
    """Processor time of a new worker until it has checked every byte of the key index once."""
    epochs: Epochs
    inserts: Inserts
    disk: Disk
    memory: Memory
    speed: Speed
    catch_up_seconds: float
    cost_a_month: float | None

    @property
    def peak_a_second(self) -> float:
        return self.inputs.events_a_second * self.inputs.peak

    @property
    def in_one_folder(self) -> bool:
        """Whether one machine holds the whole ledger; else its files belong into object storage."""
        return self.machines == 1 and self.disk.total_bytes <= self.inputs.machine.disk_bytes

    @property
    def machine_disk_bytes(self) -> float:
        """What a machine's own disk has to hold: the ledger, or its copies of the key index."""
        return self.disk.total_bytes if self.in_one_folder else self.index.size_bytes


def plan_for(inputs: CapacityInputs, machines: int) -> Plan:
    """The plan for so many machines, enough or not."""
    cores = inputs.machine.cores * machines
    partitions = inputs.partitions or cores
    epochs = plan_epochs(inputs, partitions=partitions)
    index = lay_out_index(inputs, cores=cores, epoch_rows=epochs.rows)
    inserts = plan_inserts(inputs, epochs)
    disk = size_ledger(inputs, index, epochs, inserts, partitions=partitions)
    memory = _plan_memory(inputs, index, disk, machines=machines)
    speed = plan_speed(inputs, index, cores=cores, partitions=partitions)
    return Plan(
        inputs=inputs,
        machines=machines,
        buckets=inputs.buckets or recommend_buckets(inputs, index.keys, cores=cores),
        partitions=partitions,
        index=index,
        page_reads_a_second=_count_page_reads(inputs, index, epochs, memory),
        index_read_seconds=index.size_bytes * constants.CHECK_SECONDS_A_BYTE.value,
        epochs=epochs,
        inserts=inserts,
        disk=disk,
        memory=memory,
        speed=speed,
        catch_up_seconds=speed.catch_up_seconds(inputs),
        cost_a_month=_cost(inputs, disk, machines),
    )


def _plan_memory(inputs: CapacityInputs, index: IndexLayout, disk: Disk, *, machines: int) -> Memory:
    rows = min(
        inputs.epoch.part_rows, inputs.epoch.max_rows, max(inputs.epoch.part_bytes / inputs.event_bytes, 1.0)
    )
    an_event = (
        constants.READ_MEMORY_BYTES_AN_EVENT.value
        + constants.READ_MEMORY_BYTES_A_BYTE.value * inputs.event_bytes
    )
    block_bytes = min(BLOCK_BYTES, BLOCK_ROWS * inputs.event_bytes)
    worker = (
        constants.WORKER_BYTES.value
        + rows * an_event
        + block_bytes * constants.READ_MEMORY_BYTES_A_BYTE_OF_A_BLOCK.value
    )
    batch_bytes = min(inputs.batch.max_bytes, inputs.batch.max_rows * inputs.event_bytes)
    loading = constants.WORKER_BYTES.value + batch_bytes * constants.LOAD_MEMORY_BYTES_A_BYTE.value
    merging = (
        constants.WORKER_BYTES.value + min(MAX_KEYS, index.keys) * constants.MERGE_MEMORY_BYTES_A_KEY.value
    )
    java = constants.JAVA_HEAP_BYTES + constants.JAVA_BYTES_BEYOND_HEAP.value
    driver = constants.DRIVER_BYTES.value + disk.files * constants.DRIVER_BYTES_A_FILE.value + java
    # With several machines the driver's has an executor too, which is a Java process of its own.
    executor = java if machines > 1 else 0.0
    other_cores = inputs.machine.cores - 1
    loads = min(inputs.tables, other_cores)
    workers = loads * max(worker, loading) + (other_cores - loads) * worker + max(worker, merging)
    return Memory(
        worker_bytes=worker,
        loading_worker_bytes=loading,
        merging_worker_bytes=merging,
        driver_bytes=driver,
        machine_bytes=driver + executor + workers,
    )


def _count_page_reads(inputs: CapacityInputs, index: IndexLayout, epochs: Epochs, memory: Memory) -> float:
    """A look-up touches a page of each segment that it searches; an epoch touches no page twice."""
    touched = min(
        inputs.events_a_second * inputs.peak * index.lookups_a_key,
        epochs.a_second * inputs.peak * index.hot_bytes / constants.PAGE_BYTES,
    )
    free = max(inputs.machine.memory_bytes - memory.machine_bytes, 0.0)
    missing = max(0.0, 1 - free / index.hot_bytes)
    return touched * missing


def _cost(inputs: CapacityInputs, disk: Disk, machines: int) -> float | None:
    if inputs.price_a_gigabyte is None and inputs.price_a_machine is None:
        return None
    kept = disk.total_bytes * inputs.replicas / constants.GB
    return kept * (inputs.price_a_gigabyte or 0.0) + machines * (inputs.price_a_machine or 0.0)
