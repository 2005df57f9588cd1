"""Is a plan enough? The least number of machines that is, and what is in the way where none is. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from oncehouse.capacity import constants
from oncehouse.capacity.index_layout import recommend_buckets
from oncehouse.capacity.inputs import CapacityInputs, refuse_senseless
from oncehouse.capacity.plan import Plan, plan_for
from oncehouse.common.formatting import format_bytes
from oncehouse.config.field_types import format_duration
from oncehouse.errors import ConfigurationError

_MOST_MACHINES = 1024
# Retention copies the catalog before it deletes files; above this it does little else.
_LARGE_CATALOG_BYTES = 4 * constants.GB
_LONG_CHECK_SECONDS = 600.0


def plan_capacity(inputs: CapacityInputs) -> Plan:
    """The plan for the machines that there are, or for as few as are enough; raises ConfigurationError for neither."""
    refuse_senseless(inputs)
    if inputs.machines is None:
        return _find_fewest(inputs)
    plan = plan_for(inputs, inputs.machines)
    if obstacles := list(find_obstacles(plan)):
        raise ConfigurationError(_describe_refusal(inputs, obstacles))
    return plan


def _find_fewest(inputs: CapacityInputs) -> Plan:
    """Doubles the machines until they are enough, then looks for the fewest between there and the half."""
    number, tried_in_vain = 1, []
    while obstacles := list(find_obstacles(plan_for(inputs, number))):
        tried_in_vain.append(obstacles)
        if number >= _MOST_MACHINES:
            # Of those that come closest: too many machines have obstacles of their own, which fewer do not have.
            raise ConfigurationError(_describe_refusal(inputs, min(tried_in_vain, key=len)))
        number *= 2
    tried = range(number // 2 + 1, number + 1)
    fewest = bisect_left(tried, 1, key=lambda count: not list(find_obstacles(plan_for(inputs, count))))
    return plan_for(inputs, tried[fewest])


def find_obstacles(plan: Plan) -> Iterator[str]:
    """What such machines cannot do; each says what would help."""
    inputs, machine = plan.inputs, plan.inputs.machine
    if plan.peak_a_second > plan.speed.events_a_second:
        yield _describe_slowness(plan)
    if inputs.new_a_second * inputs.peak > plan.inserts.most_rows_a_second:
        yield (
            f"a table can be sent {plan.inserts.most_rows_a_second:,.0f} rows/s under batch.max_rows, batch.max_bytes "
            f"and batch.min_interval, and gets {inputs.new_a_second * inputs.peak:,.0f} at the busiest time: raise "
            "batch.max_rows and batch.max_bytes"
        )
    if plan.memory.machine_bytes > machine.memory_bytes:
        yield (
            f"a machine needs {format_bytes(round(plan.memory.machine_bytes))} of memory for its processes and has "
            f"{format_bytes(machine.memory_bytes)}: take more memory, or lower epoch.part_rows"
        )
    elif plan.page_reads_a_second > machine.disk_reads_a_second:
        hot = plan.index.hot_bytes + plan.memory.machine_bytes
        yield (
            f"look-ups in the key index would read {plan.page_reads_a_second:,.0f} pages/s from a disk that gives "
            f"{machine.disk_reads_a_second:,}: machines with {format_bytes(round(hot))} of memory keep what they touch "
            "of it in memory; a shorter identity.window, or a longer epoch.max_wait, needs less"
        )
    if plan.machine_disk_bytes > machine.disk_bytes:
        size = format_bytes(round(plan.index.size_bytes))
        yield (
            f"the key index takes {size}, of which every machine should keep a copy, and a disk has "
            f"{format_bytes(machine.disk_bytes)}: take larger disks, or a shorter identity.window"
        )


def find_notes(plan: Plan) -> Iterator[str]:
    """What is no obstacle but worth knowing."""
    inputs = plan.inputs
    if not plan.in_one_folder:
        yield (
            f"put ledger.files into object storage ({format_bytes(round(plan.disk.file_bytes))}) and the catalog into "
            "PostgreSQL; let every machine keep copies of the whole key index on its disk "
            f"(spark.cache of {format_bytes(round(plan.index.size_bytes))} or more)"
        )
    if plan.page_reads_a_second:
        yield (
            f"look-ups read up to {plan.page_reads_a_second:,.0f} pages/s from disk; with "
            f"{format_bytes(round(plan.index.hot_bytes + plan.memory.machine_bytes))} of memory a machine they read "
            "none"
        )
    if plan.disk.catalog_bytes > _LARGE_CATALOG_BYTES:
        yield (
            f"the catalog has rows for every epoch of the window; epoch.max_wait above "
            f"{format_duration(inputs.epoch.max_wait)} makes fewer of them"
        )
    if plan.index_read_seconds > _LONG_CHECK_SECONDS:
        minutes = plan.index_read_seconds / 60
        yield f"a new worker reads the whole key index once, which takes {minutes:,.0f} minutes of a core"
    wanted = recommend_buckets(inputs, plan.index.keys, cores=inputs.machine.cores * plan.machines)
    if plan.buckets < wanted:
        yield f"{wanted} buckets would do better than {plan.buckets}; `oncehouse rekey` changes their number"


def _describe_slowness(plan: Plan) -> str:
    if plan.speed.bound_by == "cores":
        helps = "take more machines or cores"
    else:
        helps = "raise epoch.max_rows and the topic's partitions, or split the topic over several pipelines"
    return (
        f"{plan.speed.events_a_second:,.0f} events/s can be taken and {plan.peak_a_second:,.0f} come at the busiest "
        f"time ({plan.speed.processor_seconds_an_event * 1e6:,.1f} µs of a core an event): {helps}"
    )


def _describe_refusal(inputs: CapacityInputs, obstacles: Sequence[str]) -> str:
    machine, number = inputs.machine, inputs.machines
    memory, disk = format_bytes(machine.memory_bytes), format_bytes(machine.disk_bytes)
    kind = f"{machine.cores} cores, {memory} of memory and {disk} of disk each"
    if number is None:
        begin = f"No number of machines with {kind} is enough"
    else:
        begin = (
            f"{number} machines with {kind} are not enough"
            if number > 1
            else f"1 machine with {kind} is not enough"
        )
    return f"{begin}: {'; '.join(obstacles)}."
