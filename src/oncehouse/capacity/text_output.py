"""A plan as people read it, and as a program does. Pure."""

from __future__ import annotations

from oncehouse.capacity.constants import GB
from oncehouse.capacity.plan import Plan
from oncehouse.common.formatting import format_bytes
from oncehouse.config.field_types import format_duration

Facts = dict[str, str]


def format_plan(plan: Plan) -> dict[str, Facts]:
    """Facts by title."""
    return {
        "load": _format_load(plan),
        "machines": _format_machines(plan),
        "memory of a machine": _format_memory(plan),
        "key index": _format_index(plan),
        "disk of the ledger": _format_disk(plan),
        "inserts": _format_inserts(plan),
        **({} if plan.cost_a_month is None else {"cost": _format_cost(plan)}),
    }


def _format_load(plan: Plan) -> Facts:
    inputs = plan.inputs
    return {
        "events": f"{inputs.events_a_day:,.0f} a day of {_size(inputs.event_bytes)} each",
        "usually": _rate(inputs.events_a_second),
        "at the busiest time": _rate(plan.peak_a_second),
        "new": f"{_rate(inputs.new_a_second)}, remembered for {format_duration(inputs.window_seconds)}",
        "epochs": f"{_rate(plan.epochs.a_second)}, {_some(plan.epochs.rows, 'record')} each",
    }


def _format_machines(plan: Plan) -> Facts:
    machine = plan.inputs.machine
    outage = format_duration(plan.inputs.outage_seconds)
    return {
        "machines": f"{plan.machines:,} of {machine.cores} cores, {_size(machine.memory_bytes)} of memory and "
        f"{_size(machine.disk_bytes)} of disk",
        "most events": f"{plan.speed.events_a_second:,.0f}/s, bound by {plan.speed.bound_by}",
        "processor time": f"{plan.speed.processor_seconds_an_event * 1e6:,.1f} µs of a core an event",
        "Kafka partitions": f"{plan.partitions:,}"
        if plan.inputs.partitions
        else f"{plan.partitions:,} or more",
        "catching up": f"with an outage of {outage} in {_time(plan.catch_up_seconds)}",
    }


def _format_memory(plan: Plan) -> Facts:
    memory = plan.memory
    return {
        "driver": f"{_size(memory.driver_bytes)}, Spark's Java included",
        "a Python worker": f"{_size(memory.worker_bytes)}, one a core",
        "one that loads": f"{_size(memory.loading_worker_bytes)} at most, one a table",
        "one that merges": _size(memory.merging_worker_bytes),
        "all processes": _size(memory.machine_bytes),
        "page cache": f"{_size(plan.index.hot_bytes)} keep look-ups off the disk",
    }


def _format_index(plan: Plan) -> Facts:
    index = plan.index
    return {
        "keys": f"{index.keys:,.0f}",
        "buckets": f"{plan.buckets:,}",
        "segments": f"up to {index.segments:,.0f}; a key is looked for in up to {index.lookups_a_key:,.0f}",
        "size": _size(index.size_bytes),
    }


def _format_disk(plan: Plan) -> Facts:
    disk = plan.disk
    packed = " (in packs)" if plan.epochs.packed else ""
    place = "in a folder of the machine" if plan.in_one_folder else "in object storage"
    return {
        f"raw records{packed}": _size(disk.raw_bytes),
        f"parts{packed}": _size(disk.part_bytes),
        "key files": _size(disk.key_file_bytes + disk.duplicate_bytes),
        "key index": _size(disk.index_bytes),
        "catalog": f"{_size(disk.catalog_bytes)}, and {_size(disk.snapshot_bytes)} of snapshots",
        "together": f"{_size(disk.total_bytes)} in {disk.files:,.0f} files, {place}",
        "on each machine": _size(plan.machine_disk_bytes),
    }


def _format_inserts(plan: Plan) -> Facts:
    tables = plan.inputs.tables
    return {
        "inserts": f"{_rate(plan.inserts.a_second)} into each of {tables} tables"
        if tables > 1
        else _rate(plan.inserts.a_second),
        "rows": f"{plan.inserts.rows:,.0f} an insert",
    }


def _format_cost(plan: Plan) -> Facts:
    kept = plan.disk.total_bytes * plan.inputs.replicas / GB
    return {
        "a month": f"{plan.cost_a_month or 0:,.2f} for {kept:,.0f} GB stored and {_some(plan.machines, 'machine')}"
    }


def _size(count: float) -> str:
    return format_bytes(round(count))


def _some(count: float, thing: str) -> str:
    shown = f"{count:,.0f}"
    return f"{shown} {thing}" if shown == "1" else f"{shown} {thing}s"


def _rate(a_second: float) -> str:
    """The unit in which there is at least one."""
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600)):
        if a_second * seconds >= 1:
            return f"{_number(a_second * seconds)} a {unit}"
    return f"{_number(a_second * 86400)} a day"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} seconds"
