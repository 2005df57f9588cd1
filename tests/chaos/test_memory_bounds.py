"""The processes of a run keep to the memory that `oncehouse plan-capacity` reckons for them, however large an epoch."""

from __future__ import annotations

import pytest

from live_pipeline import encode, make_event
from oncehouse.capacity import constants
from oncehouse.capacity.inputs import CapacityInputs
from oncehouse.capacity.plan import plan_for
from oncehouse.config.pipeline import BatchLimits, Epoch
from oncehouse.ledger.catalog import epochs
from process_memory import Peaks

# Up to this many records an epoch is a small one, read by one task.
USUAL_EPOCH = 50_000
MEGABYTE = 1_000_000
PATIENCE_SECONDS = 600


def run_watched(live_pipeline) -> Peaks:
    """All that is in the topic, by a process of its own with the default sizes."""
    live_pipeline.document["epoch"], live_pipeline.document["batch"] = {}, {}
    process = live_pipeline.spawn("--once")
    try:
        with Peaks(process.pid) as peaks:
            code = process.wait(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert code == 0, live_pipeline.log()[-3000:]
    return peaks


def assert_bounded(peaks: Peaks, *, event_bytes: float) -> None:
    inputs = CapacityInputs(
        events_a_day=1e6,
        event_bytes=event_bytes,
        window_seconds=86_400,
        epoch=Epoch(),
        batch=BatchLimits(),
    )
    memory = plan_for(inputs, 1).memory
    java = constants.JAVA_HEAP_BYTES + constants.JAVA_BYTES_BEYOND_HEAP.value
    told = {name: f"{getattr(peaks, name) / 1e6:.0f} MB" for name in ("driver", "java", "worker")}
    assert 0 < peaks.worker <= max(memory.worker_bytes, memory.loading_worker_bytes), told
    assert 0 < peaks.java <= java, told
    assert 0 < peaks.driver <= memory.driver_bytes - java, told


@pytest.mark.long
def test_an_epoch_ten_times_the_usual_size_takes_no_more_memory(make_pipeline):
    live_pipeline = make_pipeline(partitions=2)
    values = [encode(make_event(number)) for number in range(10 * USUAL_EPOCH)]
    for partition in range(2):
        live_pipeline.send_raw(values[partition::2], partition=partition)
    peaks = run_watched(live_pipeline)
    assert max(epoch.counts.read for epoch in epochs.list_epochs(live_pipeline.catalog)) == len(values)
    assert_bounded(peaks, event_bytes=len(values[0]))


@pytest.mark.long
def test_events_of_a_megabyte_take_no_more_memory_than_is_stated_and_no_epoch_holds_more_than_its_bytes(
    make_pipeline,
):
    live_pipeline = make_pipeline(partitions=2)
    note = "x" * (MEGABYTE - 200)
    for number in range(400):
        live_pipeline.send_raw([encode(make_event(number), note)], partition=number % 2)
    peaks = run_watched(live_pipeline)
    assert live_pipeline.counts().new == 400
    assert_bounded(peaks, event_bytes=MEGABYTE)


@pytest.mark.long
def test_a_backlog_of_large_events_is_cut_into_epochs_by_its_bytes(make_pipeline):
    """From the first epoch on, before anything was read: by a look at the records that wait."""
    live_pipeline = make_pipeline(epoch={"max_rows": 1_500_000, "max_bytes": 20 * MEGABYTE})
    note = "x" * 50_000
    live_pipeline.send_raw([encode(make_event(number), note) for number in range(1200)])
    live_pipeline.run()
    read = [epoch.counts.read for epoch in epochs.list_epochs(live_pipeline.catalog)]
    assert sum(read) == 1200
    assert max(read) <= 450, read


@pytest.mark.long
def test_events_that_turn_out_to_be_large_make_the_next_epochs_smaller_and_none_is_lost(make_pipeline):
    """The look at the start sees small ones only; the stream starts again with another bound."""
    live_pipeline = make_pipeline(epoch={"max_rows": 400, "max_bytes": 2 * MEGABYTE})
    live_pipeline.send([make_event(number) for number in range(300)])
    live_pipeline.send([make_event(number) for number in range(300, 1000)], note="x" * 50_000)
    live_pipeline.run()
    read = [epoch.counts.read for epoch in reversed(epochs.list_epochs(live_pipeline.catalog))]
    assert read[0] == 400
    assert max(read[1:]) <= 160, read
    live_pipeline.assert_exact()
