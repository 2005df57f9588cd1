"""A plan's figures under names that stay: bytes, seconds and rates as they are, for programs."""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.capacity.plan import Plan


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    a_second: float
    records: float
    packed: bool


@dataclass(frozen=True, kw_only=True)
class InsertFigures:
    a_second_a_table: float
    rows: float


@dataclass(frozen=True, kw_only=True)
class IndexFigures:
    keys: int
    segments: int
    look_ups_a_key: float
    bytes: int
    page_cache_bytes: int
    page_reads_a_second: float
    first_look_seconds: float


@dataclass(frozen=True, kw_only=True)
class DiskFigures:
    raw_bytes: int
    part_bytes: int
    key_file_bytes: int
    index_bytes: int
    catalog_bytes: int
    snapshot_bytes: int
    total_bytes: int
    files: int
    machine_bytes: int
    in_one_folder: bool


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    driver_bytes: int
    worker_bytes: int
    loading_worker_bytes: int
    merging_worker_bytes: int
    machine_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    machines: int
    buckets: int
    partitions: int
    events_a_second: float
    peak_events_a_second: float
    most_events_a_second: float
    bound_by: str
    processor_seconds_an_event: float
    catch_up_seconds: float | None
    epochs: EpochFigures
    inserts: InsertFigures
    key_index: IndexFigures
    disk: DiskFigures
    memory: MemoryFigures
    cost_a_month: float | None


def describe(plan: Plan) -> PlanFigures:
    index, disk, memory = plan.index, plan.disk, plan.memory
    return PlanFigures(
        machines=plan.machines,
        buckets=plan.buckets,
        partitions=plan.partitions,
        events_a_second=plan.inputs.events_a_second,
        peak_events_a_second=plan.peak_a_second,
        most_events_a_second=plan.speed.events_a_second,
        bound_by=plan.speed.bound_by,
        processor_seconds_an_event=plan.speed.processor_seconds_an_event,
        catch_up_seconds=plan.catch_up_seconds,
        epochs=EpochFigures(
            a_second=plan.epochs.a_second,
            records=plan.epochs.rows,
            packed=plan.epochs.packed,
        ),
        inserts=InsertFigures(a_second_a_table=plan.inserts.a_second, rows=plan.inserts.rows),
        key_index=IndexFigures(
            keys=round(index.keys),
            segments=round(index.segments),
            look_ups_a_key=index.lookups_a_key,
            bytes=round(index.size_bytes),
            page_cache_bytes=round(index.hot_bytes),
            page_reads_a_second=plan.page_reads_a_second,
            first_look_seconds=plan.index_read_seconds,
        ),
        disk=DiskFigures(
            raw_bytes=round(disk.raw_bytes),
            part_bytes=round(disk.part_bytes),
            key_file_bytes=round(disk.key_file_bytes + disk.duplicate_bytes),
            index_bytes=round(disk.index_bytes),
            catalog_bytes=round(disk.catalog_bytes),
            snapshot_bytes=round(disk.snapshot_bytes),
            total_bytes=round(disk.total_bytes),
            files=round(disk.files),
            machine_bytes=round(plan.machine_disk_bytes),
            in_one_folder=plan.in_one_folder,
        ),
        memory=MemoryFigures(
            driver_bytes=round(memory.driver_bytes),
            worker_bytes=round(memory.worker_bytes),
            loading_worker_bytes=round(memory.loading_worker_bytes),
            merging_worker_bytes=round(memory.merging_worker_bytes),
            machine_bytes=round(memory.machine_bytes),
        ),
        cost_a_month=plan.cost_a_month,
    )
