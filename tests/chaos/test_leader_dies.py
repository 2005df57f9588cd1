"""A Kafka leader dies and another broker in step with it leads: read on, exactly, whatever was half read.

Three real brokers. Reading may also be throttled by a quota of the brokers, which makes it slow and nothing else.
"""

from __future__ import annotations

import threading

import pytest

from broker_cluster import BrokerCluster
from broker_fixtures import cluster, kafka, produce, topic
from live_pipeline import LivePipeline, both_readers, make_event, wait_until
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.pipeline.ingest import kafka_log, kafka_source
from oncehouse.pipeline.stages import kafka_stream
from read_jobs import wrap_reads

__all__ = ["cluster", "kafka", "produce", "topic"]

EVENTS = [make_event(number) for number in range(150)]
MANY = [make_event(number) for number in range(600)]
BYTES_A_SECOND = 8_000


@pytest.fixture
def live_pipeline(make_pipeline, monkeypatch) -> LivePipeline:
    monkeypatch.setattr(kafka_source, "TIMEOUT_SECONDS", 3.0)  # a client may ask a dead broker first
    return make_pipeline(epoch={"max_rows": 30})


def kill_the_leader(
    live_pipeline: LivePipeline, cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when the records of the second epoch were read and nothing of them is settled."""
    reads, dead = [], threading.Event()

    def read_and_kill(read, plan):
        manifests = read()
        reads.append(plan.epoch)
        if len(reads) == 2:
            cluster.kill_leader()
            dead.set()
        return manifests

    live_pipeline.send(EVENTS[:90])
    with monkeypatch.context() as patched, live_pipeline.start() as running:
        wrap_reads(patched, read_and_kill)
        wait_until(dead.is_set, "the leader's death")
        cluster.wait_for_leader(live_pipeline.topic, 2)
        live_pipeline.send(EVENTS[60:])
        wait_until(lambda: running.error is not None or settled(live_pipeline) == 180, "all records")
    assert reads.count(2) > 1, "what was read from two leaders was not read again"
    live_pipeline.run()
    live_pipeline.assert_exact()


def settled(live_pipeline: LivePipeline) -> int:
    return epochs.read_positions(live_pipeline.catalog).get((live_pipeline.topic, 0), 0)


@pytest.mark.scenario("Kafka leader dies")
@both_readers
def test_a_leader_that_dies_costs_nothing(live_pipeline, cluster, monkeypatch):
    kill_the_leader(live_pipeline, cluster, monkeypatch)


@pytest.mark.defect("Kafka leader dies")
def test_a_driver_that_goes_on_at_the_end_of_the_topic_is_noticed(live_pipeline, cluster, monkeypatch):
    """As a consumer does whose offsets were forgotten, with a ledger that takes any offset for the next one."""
    right = kafka_source.starting_positions

    def begin_at_the_end(*facts):
        again = any("Starting again" in said for said in live_pipeline.said)
        return {place: max(at, 90 * again) for place, at in right(*facts).items()}

    monkeypatch.setattr(kafka_source, "starting_positions", begin_at_the_end)
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    with pytest.raises(AssertionError, match=r"events are lost|was not read again"):
        kill_the_leader(live_pipeline, cluster, monkeypatch)


@pytest.fixture
def slow_pipeline(make_pipeline, cluster, monkeypatch) -> LivePipeline:
    """Its range of 600 records takes many requests and, throttled, about ten seconds."""
    monkeypatch.setattr(kafka_source, "TIMEOUT_SECONDS", 3.0)
    few = {"max.partition.fetch.bytes": "4096", "fetch.max.bytes": "4096"}
    live_pipeline = make_pipeline(epoch={"max_rows": 1000})
    live_pipeline.document["source"]["kafka"]["options"] = few
    monkeypatch.setattr(kafka_source, "_POLLED_RECORDS", 20)
    return live_pipeline


def kill_the_leader_half_way(
    live_pipeline: LivePipeline, cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()

    def read_and_tell(read, _plan):
        begun.set()
        manifests = read()
        done.set()
        return manifests

    for first in range(0, len(MANY), 20):
        live_pipeline.send(MANY[first : first + 20])
    cluster.throttle(BYTES_A_SECOND)
    try:
        with monkeypatch.context() as patched, live_pipeline.start() as running:
            wrap_reads(patched, read_and_tell)
            wait_until(begun.is_set, "a range that is being read")
            done.wait(3)
            assert not done.is_set(), "the range was read before its leader died"
            cluster.kill_leader()
            cluster.wait_for_leader(live_pipeline.topic, 2)
            wait_until(
                lambda: running.error is not None or settled(live_pipeline) == len(MANY), "all records"
            )
    finally:
        cluster.throttle(None)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("leader dies in a throttled read")
@both_readers
def test_a_range_whose_leader_dies_half_way_is_read_whole_however_slowly(slow_pipeline, cluster, monkeypatch):
    kill_the_leader_half_way(slow_pipeline, cluster, monkeypatch)


@pytest.mark.defect("leader dies in a throttled read")
def test_half_a_range_that_is_taken_for_the_whole_is_noticed(slow_pipeline, cluster, monkeypatch):
    read_dataframe = kafka_stream.read_dataframe
    monkeypatch.setattr(
        kafka_stream, "read_dataframe", lambda frame, plan: read_dataframe(frame.where("offset < 300"), plan)
    )
    monkeypatch.setattr(kafka_log, "check_leaders", lambda *_: None)
    with pytest.raises(AssertionError, match="events are lost"):
        kill_the_leader_half_way(slow_pipeline, cluster, monkeypatch)
