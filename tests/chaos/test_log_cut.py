"""Kafka's log is cut by an unclean election and filled again: what took the place of what was read is never skipped.

Three real brokers. The follower is stopped, the leader takes records that it alone has and that are read, the leader
dies, the follower leads without them, and other records are written over their offsets and beyond.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_cluster import BrokerCluster
from broker_fixtures import cluster, kafka, produce, topic
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import DataLossError
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.ledger.models import Stage
from oncehouse.messaging.consumer import Batch, Consumer
from oncehouse.messaging.consumer import kafka_client as consumer_kafka
from oncehouse.messaging.consumer.log_order import LogOrder
from oncehouse.pipeline.ingest import kafka_log, kafka_source
from oncehouse.pipeline.repair.repair import apply_repair

__all__ = ["cluster", "kafka", "produce", "topic"]

FIRST = [make_event(number) for number in range(40)]
LOST = [make_event(number) for number in range(100, 120)]
OTHERS = [make_event(number) for number in range(200, 260)]


@pytest.fixture
def live_pipeline(make_pipeline) -> LivePipeline:
    return make_pipeline(epoch={"max_rows": 30})


def read_what_will_be_lost(live_pipeline: LivePipeline, cluster: BrokerCluster) -> None:
    """Offsets 0 to 39 are on both brokers, 40 to 59 on the leader alone; all of them are read."""
    live_pipeline.send(FIRST)
    cluster.leave_follower_behind(live_pipeline.topic)
    live_pipeline.send(LOST)
    live_pipeline.run()
    live_pipeline.assert_exact()


def cut_and_fill(live_pipeline: LivePipeline, cluster: BrokerCluster) -> None:
    """Offsets 40 to 99 hold other records than the ones that were read."""
    cluster.elect_the_one_behind(live_pipeline.topic)
    live_pipeline.send(OTHERS)
    cluster.bring_back(live_pipeline.topic)


def cut_while_away(live_pipeline: LivePipeline, cluster: BrokerCluster) -> None:
    read_what_will_be_lost(live_pipeline, cluster)
    cut_and_fill(live_pipeline, cluster)
    live_pipeline.run()
    live_pipeline.assert_exact()


def cut_and_look_before_it_is_filled(live_pipeline: LivePipeline, cluster: BrokerCluster) -> None:
    """The driver starts while the log is shorter than what it read, and again when others have written beyond."""
    read_what_will_be_lost(live_pipeline, cluster)
    cluster.elect_the_one_behind(live_pipeline.topic)
    live_pipeline.run()
    live_pipeline.send(OTHERS)
    live_pipeline.run()
    live_pipeline.assert_exact()


def cut_while_it_runs(live_pipeline: LivePipeline, cluster: BrokerCluster) -> None:
    """Whatever ends the driver is raised; if nothing does, the oracle judges what it made of the new log."""
    live_pipeline.send(FIRST)
    with live_pipeline.start() as running:
        running.wait_for_rows(len(FIRST))
        cluster.leave_follower_behind(live_pipeline.topic)
        live_pipeline.send(LOST)
        wait_until(lambda: running.error is not None or settled(live_pipeline) == 60, "what will be lost")
        cut_and_fill(live_pipeline, cluster)
        wait_until(
            lambda: running.error is not None or settled(live_pipeline) == 100,
            "an error, or all offsets settled",
        )
    live_pipeline.run()
    live_pipeline.assert_exact()


def settled(live_pipeline: LivePipeline) -> int:
    return epochs.read_positions(live_pipeline.catalog)[live_pipeline.topic, 0]


def ignore_leader_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "find_doubtful", lambda *_: {})
    monkeypatch.setattr(kafka_log, "check_leaders", lambda *_: None)


def demand_named(live_pipeline: LivePipeline, error: DataLossError) -> None:
    said = str(error)
    assert f"Topic {live_pipeline.topic} partition 0" in said, f"no offsets are named: {said}"
    assert "offsets 40 to 59" in said, f"no offsets are named: {said}"


@pytest.mark.scenario("log cut while the driver is away")
def test_a_log_that_was_cut_and_filled_while_the_driver_was_away_stops_it(live_pipeline, cluster):
    with pytest.raises(DataLossError) as stopped:
        cut_while_away(live_pipeline, cluster)
    demand_named(live_pipeline, stopped.value)
    assert settled(live_pipeline) == 60


@pytest.mark.scenario("log cut while the driver is away")
def test_repair_from_a_snapshot_before_the_cut_loads_what_took_the_place_of_the_lost(live_pipeline, cluster):
    live_pipeline.send(FIRST)
    live_pipeline.run()
    live_pipeline.retain()  # writes the snapshot
    cluster.leave_follower_behind(live_pipeline.topic)
    live_pipeline.send(LOST)
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.run(only=[Stage.LOAD])
    cut_and_fill(live_pipeline, cluster)
    with pytest.raises(DataLossError):
        live_pipeline.run()
    live_pipeline.catalog.close()
    for file in live_pipeline.folder.glob("catalog.db*"):
        file.rename(file.with_name(f"before-the-cut-{file.name}"))
    live_pipeline.age_marks()
    result = apply_repair(live_pipeline.pipeline, live_pipeline.said.append)
    assert result.catalog is not None
    assert not result.catalog.refused
    live_pipeline.run()
    # Those of the lost log too: they had arrived.
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    assert not live_pipeline.findings()


@pytest.mark.defect("log cut while the driver is away")
def test_a_driver_that_does_not_compare_leader_epochs_is_noticed(live_pipeline, cluster, monkeypatch):
    ignore_leader_epochs(monkeypatch)
    with pytest.raises(AssertionError, match="events are lost"):
        cut_while_away(live_pipeline, cluster)


@pytest.mark.scenario("log cut and not filled yet")
def test_a_log_that_is_shorter_than_what_was_read_stops_the_driver(live_pipeline, cluster):
    with pytest.raises(DataLossError, match="Kafka's log ends at offset 40") as stopped:
        cut_and_look_before_it_is_filled(live_pipeline, cluster)
    demand_named(live_pipeline, stopped.value)


@pytest.mark.defect("log cut and not filled yet")
def test_a_driver_that_leaves_a_shorter_log_to_spark_is_noticed(live_pipeline, cluster, monkeypatch):
    """Spark's source stops at it, and names nothing."""
    ignore_leader_epochs(monkeypatch)
    monkeypatch.setattr(kafka_log, "check_ends", lambda *_: None)
    with pytest.raises(DataLossError) as stopped:
        cut_and_look_before_it_is_filled(live_pipeline, cluster)
    with pytest.raises(AssertionError, match="no offsets are named"):
        demand_named(live_pipeline, stopped.value)


@pytest.mark.scenario("log cut under a running driver")
def test_a_log_that_is_cut_and_filled_under_a_running_driver_stops_it(live_pipeline, cluster):
    with pytest.raises(DataLossError) as stopped:
        cut_while_it_runs(live_pipeline, cluster)
    demand_named(live_pipeline, stopped.value)
    assert settled(live_pipeline) == 60


@pytest.mark.defect("log cut under a running driver")
def test_a_running_driver_that_does_not_compare_leader_epochs_is_noticed(live_pipeline, cluster, monkeypatch):
    """And passes over an end of the log that is behind its own, as if it were about to move on."""
    ignore_leader_epochs(monkeypatch)
    monkeypatch.setattr(kafka_log, "check_ends", lambda *_: None)
    right = kafka_source._source_options
    monkeypatch.setattr(
        kafka_source,
        "_source_options",
        lambda *given, **named: right(*given, **named) | {"failOnDataLoss": "false"},
    )
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    with pytest.raises(AssertionError, match="events are lost"):
        cut_while_it_runs(live_pipeline, cluster)


# A consumer of a group, which goes by the offsets that the group has committed


def handle_all(servers: str, topic: str, group: str, handled: list[bytes], end: bytes) -> None:
    consumer = Consumer(bootstrap_servers=servers, group=group)

    @consumer.batch(topic, size=10, wait=0.1)
    def handle(batch: Batch) -> None:
        handled.extend(value or b"" for value in batch.values)
        if end in handled:
            consumer.stop()

    consumer.run()


def cut_while_a_consumer_is_away(cluster: BrokerCluster) -> None:
    topic, group, handled = cluster.make_topic(), uuid.uuid4().hex, []
    cluster.produce(topic, [b"first"] * 40)
    cluster.leave_follower_behind(topic)
    cluster.produce(topic, [b"lost"] * 19 + [b"the last of the lost"])
    handle_all(cluster.servers, topic, group, handled, b"the last of the lost")
    cluster.elect_the_one_behind(topic)
    cluster.produce(topic, [b"other"] * 39 + [b"the last"])
    cluster.bring_back(topic)
    handle_all(cluster.servers, topic, group, handled, b"the last")
    missing = 39 - handled.count(b"other")
    assert not missing, f"{missing} records were never handled"


@pytest.mark.scenario("log cut while a consumer is away")
def test_a_consumer_stops_at_records_that_took_the_place_of_handled_ones(cluster):
    with pytest.raises(
        DataLossError, match="other records stand or will stand at offsets 40 to 59 than those that were read"
    ):
        cut_while_a_consumer_is_away(cluster)


@pytest.mark.defect("log cut while a consumer is away")
def test_a_consumer_that_commits_offsets_without_leader_epochs_is_noticed(cluster, monkeypatch):
    monkeypatch.setattr(consumer_kafka, "_client_epoch", lambda _: -1)
    with pytest.raises(AssertionError, match="20 records were never handled"):
        cut_while_a_consumer_is_away(cluster)


def cut_while_a_consumer_runs(cluster: BrokerCluster) -> None:
    """Whatever ends the consumer is raised."""
    topic, handled = cluster.make_topic(), []
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(handle_all, cluster.servers, topic, uuid.uuid4().hex, handled, b"the last")
        cluster.produce(topic, [b"first"] * 40)
        cluster.leave_follower_behind(topic)
        cluster.produce(topic, [b"lost"] * 20)
        wait_until(lambda: ended.done() or len(handled) == 60, "what will be lost")
        cluster.elect_the_one_behind(topic)
        cluster.produce(topic, [b"other"] * 39 + [b"the last"])
        cluster.bring_back(topic)
        ended.result()
    missing = 39 - handled.count(b"other")
    assert not missing, f"{missing} records were never handled"


@pytest.mark.scenario("log cut under a running consumer")
def test_a_running_consumer_stops_at_records_that_took_the_place_of_handled_ones(cluster):
    with pytest.raises(DataLossError, match="other records stand or will stand at offsets 40 to 59 than"):
        cut_while_a_consumer_runs(cluster)


@pytest.mark.defect("log cut under a running consumer")
def test_a_consumer_that_takes_other_records_for_those_given_again_is_noticed(cluster, monkeypatch):
    monkeypatch.setattr(LogOrder, "_refuse_others", lambda *_: None)
    with pytest.raises(AssertionError, match="20 records were never handled"):
        cut_while_a_consumer_runs(cluster)
