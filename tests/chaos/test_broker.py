"""A broker killed in the middle of an epoch: the stream starts again where the ledger ends, whatever was read."""

from __future__ import annotations

import threading

import pytest

from live_pipeline import LivePipeline, both_readers, make_event, wait_until
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.pipeline.ingest import kafka_source
from read_jobs import wrap_reads

EVENTS = [make_event(number) for number in range(150)]


@pytest.fixture
def busy_pipeline(make_pipeline, monkeypatch) -> LivePipeline:
    monkeypatch.setattr(
        kafka_source, "TIMEOUT_SECONDS", 3.0
    )  # so that nobody waits long for a broker that is dead
    return make_pipeline(epoch={"max_rows": 30})


def kill_broker(live_pipeline: LivePipeline, stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies when the records of the second epoch were read and nothing of them is settled."""
    reads, dead = [], threading.Event()

    def read_and_kill(read, plan):
        manifests = read()
        reads.append(plan.epoch)
        if len(reads) == 2:
            stack.kill("kafka")
            dead.set()
        return manifests

    live_pipeline.send(EVENTS[:90])
    with monkeypatch.context() as patched, live_pipeline.start():
        wrap_reads(patched, read_and_kill)
        wait_until(dead.is_set, "the broker's death")
        wait_until(
            lambda: any("Starting again" in said for said in live_pipeline.said), "the stream to notice"
        )
        stack.start("kafka")
        live_pipeline.send(EVENTS[60:])
        wait_until(
            lambda: epochs.read_positions(live_pipeline.catalog)[live_pipeline.topic, 0] == 180, "all records"
        )
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("broker killed")
@both_readers
def test_a_broker_killed_and_started_again_loses_nothing(busy_pipeline, stack, monkeypatch):
    kill_broker(busy_pipeline, stack, monkeypatch)


@pytest.mark.defect("broker killed")
def test_a_stream_that_goes_on_at_the_end_of_the_topic_is_noticed(busy_pipeline, stack, monkeypatch):
    """As a consumer does whose offsets were forgotten, with a ledger that takes any offset for the next one."""
    right = kafka_source.starting_positions

    def begin_at_the_end(*facts):
        again = any("Starting again" in said for said in busy_pipeline.said)
        return {place: max(at, 90 * again) for place, at in right(*facts).items()}

    monkeypatch.setattr(kafka_source, "starting_positions", begin_at_the_end)
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    with pytest.raises(AssertionError, match="events are lost"):
        kill_broker(busy_pipeline, stack, monkeypatch)
