"""More is never cheaper, a plan is as small as it can be, and what cannot be done is told with what would help."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oncehouse.capacity.find_machines import find_notes, find_obstacles, plan_capacity
from oncehouse.capacity.index_layout import count_ranges, recommend_buckets
from oncehouse.capacity.inputs import CapacityInputs, Machine
from oncehouse.capacity.plan import Plan, plan_for
from oncehouse.config.pipeline import BatchLimits, Epoch
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.dedup.deduplicate import plan_ranges

DAY = 86_400.0
GB = 1 << 30
LARGE = Machine(cores=16, memory_bytes=1 << 50, disk_bytes=1 << 60)

input_sets = st.builds(
    CapacityInputs,
    events_a_day=st.floats(1, 1e11),
    event_bytes=st.floats(1, 20_000),
    window_seconds=st.floats(60, 365 * DAY),
    duplicate_share=st.floats(0, 0.9),
    peak=st.floats(1, 10),
    tables=st.integers(1, 4),
    outage_seconds=st.floats(0, 3 * DAY),
    machine=st.builds(
        Machine,
        cores=st.integers(1, 64),
        memory_bytes=st.integers(8 * GB, 1024 * GB),
        disk_bytes=st.integers(GB, 1 << 50),
    ),
)
more = st.floats(1.0, 20.0)


def needs(plan: Plan) -> dict[str, float]:
    """What may not become less."""
    return {
        "disk": plan.disk.total_bytes,
        "parts": plan.disk.part_bytes,
        "index": plan.disk.index_bytes,
        "catalog": plan.disk.catalog_bytes,
        "files": plan.disk.file_bytes,
        "memory": plan.memory.machine_bytes,
        "page cache": plan.index.hot_bytes,
        "keys": plan.index.keys,
        "buckets": plan.buckets,
    }


def demand_no_less(less: Plan, much: Plan) -> None:
    before, after = needs(less), needs(much)
    assert not {name for name in before if after[name] < before[name] * (1 - 1e-9)}


def count_machines(inputs: CapacityInputs) -> float:
    try:
        return plan_capacity(inputs).machines
    except ConfigurationError:
        return float("inf")


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets, factor=more)
def test_more_events_never_need_less(inputs, factor):
    busier = dataclasses.replace(inputs, events_a_day=inputs.events_a_day * factor)
    demand_no_less(plan_for(inputs, 3), plan_for(busier, 3))


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets, factor=more)
def test_more_events_never_need_fewer_machines(inputs, factor):
    busier = dataclasses.replace(inputs, events_a_day=inputs.events_a_day * factor)
    assert count_machines(inputs) <= count_machines(busier)


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets, factor=more)
def test_larger_events_never_need_less(inputs, factor):
    larger = dataclasses.replace(inputs, event_bytes=inputs.event_bytes * factor)
    small, large = plan_for(inputs, 2), plan_for(larger, 2)
    # Larger events make parts roll over earlier, so a worker may hold less of them, never more than a part.
    assert large.disk.total_bytes >= small.disk.total_bytes * (1 - 1e-9)
    assert large.speed.events_a_second <= small.speed.events_a_second * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets, factor=more)
def test_a_longer_window_never_needs_less(inputs, factor):
    longer = dataclasses.replace(inputs, window_seconds=inputs.window_seconds * factor)
    demand_no_less(plan_for(inputs, 2), plan_for(longer, 2))
    assert count_machines(inputs) <= count_machines(longer)


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets, share=st.floats(0, 0.9))
def test_more_duplicates_need_no_larger_index(inputs, share):
    assume(share >= inputs.duplicate_share)
    repeated = dataclasses.replace(inputs, duplicate_share=share)
    assert plan_for(repeated, 2).index.keys <= plan_for(inputs, 2).index.keys
    assert plan_for(repeated, 2).inserts.a_second <= plan_for(inputs, 2).inserts.a_second * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets)
def test_more_machines_take_more_and_catch_up_sooner(inputs):
    one, two = plan_for(inputs, 2), plan_for(inputs, 3)
    assert two.speed.events_a_second >= one.speed.events_a_second * (1 - 1e-9)
    assert two.catch_up_seconds <= one.catch_up_seconds * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(events_a_day=st.floats(1e9, 2e10), cores=st.integers(1, 8), days=st.floats(0.1, 3))
def test_a_plan_is_enough_and_a_machine_less_is_not(events_a_day, cores, days):
    machine = dataclasses.replace(LARGE, cores=cores)
    inputs = CapacityInputs(
        events_a_day=events_a_day, event_bytes=213, window_seconds=days * DAY, peak=1.0, machine=machine
    )
    plan = plan_capacity(inputs)
    assert not list(find_obstacles(plan))
    assert plan.speed.events_a_second >= plan.peak_a_second
    if plan.machines > 1:
        with pytest.raises(ConfigurationError, match="not enough"):
            plan_capacity(dataclasses.replace(inputs, machines=plan.machines - 1))
    assert plan_capacity(dataclasses.replace(inputs, machines=plan.machines)).machines == plan.machines


@settings(deadline=None, max_examples=50)
@given(inputs=input_sets)
def test_inserts_keep_to_the_limits_of_a_batch(inputs):
    inserts = plan_for(inputs, 1).inserts
    assert inserts.rows <= inputs.batch.max_rows
    assert inserts.rows * inserts.a_second == pytest.approx(inputs.new_a_second)
    if inputs.new_a_second <= inserts.most_rows_a_second:
        assert inserts.a_second <= 1 / inputs.batch.min_interval * (1 + 1e-9)


@given(
    keys=st.integers(1, 10_000_000),
    buckets=st.sampled_from([1, 2, 16, 128, 4096]),
    cores=st.integers(1, 300),
)
def test_never_more_ranges_are_reckoned_with_than_epochs_are_cut_into(keys, buckets, cores):
    assert count_ranges(keys, buckets=buckets, cores=cores) <= len(
        plan_ranges(keys=keys, buckets=buckets, cores=cores)
    )


@given(keys=st.floats(1, 1e12), cores=st.integers(1, 5000))
def test_buckets_are_such_as_a_pipeline_file_may_hold(keys, cores):
    inputs = CapacityInputs(events_a_day=1, event_bytes=1, window_seconds=1, epoch=Epoch(max_rows=10**9))
    buckets = recommend_buckets(inputs, keys, cores=cores)
    assert 16 <= buckets <= 4096
    assert not buckets & (buckets - 1)


def test_ten_billion_keys_fit_machines_with_memory_for_the_index():
    inputs = CapacityInputs(
        events_a_day=1e10 / 60, event_bytes=213, window_seconds=60 * DAY, machine=LARGE, buckets=128
    )
    plan = plan_capacity(inputs)
    assert plan.index.keys == pytest.approx(1e10 * 13 / 12)
    assert plan.index.size_bytes == pytest.approx(24 * plan.index.keys)
    assert plan.machines == 1
    assert plan.page_reads_a_second == 0


def test_an_index_that_does_not_fit_memory_is_read_from_disk_and_a_slow_disk_is_refused():
    inputs = CapacityInputs(events_a_day=1e9, event_bytes=213, window_seconds=60 * DAY)
    with pytest.raises(ConfigurationError, match="pages/s from a disk that gives 20,000: machines with"):
        plan_capacity(inputs)
    quick = dataclasses.replace(
        inputs, machine=Machine(memory_bytes=32 * GB, disk_bytes=1 << 42, disk_reads_a_second=10**8)
    )
    assert any("pages/s from disk" in note for note in find_notes(plan_capacity(quick)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"machines": 1, "events_a_day": 1e12},
            "1 machine with .* is not enough: .*come at the busiest time",
        ),
        ({"events_a_day": 1e14}, "No number of machines .*split the topic over several pipelines"),
        ({"machine": Machine(memory_bytes=GB)}, "of memory for its processes and has 1GB"),
        (
            {"machine": dataclasses.replace(LARGE, disk_bytes=GB)},
            "key index takes .* a disk has 1GB: take larger disks",
        ),
        (
            {"machine": LARGE, "batch": BatchLimits(max_rows=10, min_rows=1), "events_a_day": 1e8},
            "a table can be sent 10 rows/s .* raise batch.max_rows",
        ),
    ],
)
def test_what_cannot_be_done_is_told_with_what_would_help(changes, told):
    inputs = CapacityInputs(events_a_day=1e8, event_bytes=213, window_seconds=60 * DAY)
    with pytest.raises(ConfigurationError, match=told):
        plan_capacity(dataclasses.replace(inputs, **changes))


def test_numbers_without_a_meaning_are_refused_all_at_once():
    inputs = CapacityInputs(
        events_a_day=0, event_bytes=-1, window_seconds=float("nan"), duplicate_share=1.0, buckets=100
    )
    with pytest.raises(ConfigurationError) as refused:
        plan_capacity(inputs)
    for word in ("events a day", "size of an event", "window", "share of duplicates", "power of two"):
        assert word in str(refused.value)


def test_too_few_buckets_of_a_file_are_told():
    inputs = CapacityInputs(
        events_a_day=2e8, event_bytes=213, window_seconds=60 * DAY, machine=LARGE, buckets=4
    )
    assert any("64 buckets would do better than 4" in note for note in find_notes(plan_capacity(inputs)))


def test_longer_epochs_make_a_smaller_catalog_and_fewer_files():
    inputs = CapacityInputs(events_a_day=1e8, event_bytes=213, window_seconds=60 * DAY)
    seldom = dataclasses.replace(inputs, epoch=Epoch(max_wait=10.0))
    assert plan_for(seldom, 1).disk.catalog_bytes < plan_for(inputs, 1).disk.catalog_bytes / 5
    assert any("epoch.max_wait" in note for note in find_notes(plan_for(inputs, 1)))


def test_cost_counts_replicas_and_machines():
    inputs = CapacityInputs(
        events_a_day=1e6,
        event_bytes=213,
        window_seconds=60 * DAY,
        replicas=3,
        price_a_gigabyte=0.02,
        price_a_machine=100.0,
    )
    plan = plan_capacity(inputs)
    assert plan.cost_a_month == pytest.approx(100 + 3 * 0.02 * plan.disk.total_bytes / GB)
    assert (
        plan_capacity(dataclasses.replace(inputs, price_a_gigabyte=None, price_a_machine=None)).cost_a_month
        is None
    )


def test_a_measured_share_takes_the_place_of_the_benchmarks():
    inputs = CapacityInputs(events_a_day=1e10, event_bytes=1000, window_seconds=DAY, machine=LARGE)
    disk = plan_for(dataclasses.replace(inputs, stored_share=1.0), 1).disk
    assert disk.raw_bytes + disk.part_bytes == pytest.approx(1e13)
