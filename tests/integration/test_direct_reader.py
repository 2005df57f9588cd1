"""Pipelines whose tasks read Kafka themselves: the same ledger as by Spark's connector, and as exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from live_pipeline import LivePipeline, encode, make_event, wait_until
from oncehouse.devstack.kafka import KafkaServer
from oncehouse.errors import DataLossError, MissingExtraError, PermanentError
from oncehouse.ledger.catalog import epochs
from oncehouse.pipeline.ingest import range_task
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.ingest.log_history import LogEnd
from oncehouse.pipeline.kafka_reader import access
from oncehouse.pipeline.kafka_reader.access import KafkaAccess

EVENTS = [make_event(number) for number in range(600)]


def read_files(folder: Path) -> list[bytes]:
    """Parts, key files and raw bytes of a ledger, in their order; names hold what differs from attempt to attempt."""
    kinds = (".part.arrow", ".keys.arrow", ".raw.arrow")
    return sorted(path.read_bytes() for path in folder.rglob("*.arrow") if path.name.endswith(kinds))


def send_some(live_pipeline: LivePipeline, kafka: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, event in enumerate(EVENTS[:250]):
        origin = [("origin", b"%d" % (number % 7)), ("other", None)]
        producer.produce(live_pipeline.topic, encode(event), key=b"%d" % number, headers=origin, partition=0)
    producer.flush()
    live_pipeline.send(EVENTS[200:400], partition=1)
    live_pipeline.send(EVENTS[400:], topic=live_pipeline.topics[1])
    live_pipeline.send_raw([b"no JSON", b""])


@pytest.mark.parametrize("headers", [[], ["origin"]], ids=["without headers", "with headers"])
def test_both_readers_make_the_same_ledger(make_pipeline, kafka, headers):
    identity = {"fields": ["project", "event_type", "product_id"], "headers": headers}
    live_pipeline = make_pipeline(
        partitions=2,
        topics=2,
        epoch={"max_rows": 100_000},
        identity=identity,
        dead_letters={"max_share": 1.0},
    )
    send_some(live_pipeline, kafka)
    found = {}
    for reader in ("connector", "direct"):
        folder = live_pipeline.folder / reader
        live_pipeline.document["source"]["kafka"]["reader"] = reader
        live_pipeline.document["ledger"] = {"catalog": f"sqlite:///{folder}.db", "files": str(folder)}
        live_pipeline.__dict__.pop("catalog", None)
        live_pipeline.run()
        found[reader] = read_files(folder)
        live_pipeline.catalog.close()
    assert len(found["connector"]) >= 3
    assert found["direct"] == found["connector"]


def test_a_pipeline_may_change_its_reader_between_two_runs(make_pipeline):
    live_pipeline = make_pipeline(partitions=2)
    for number, reader in enumerate(("connector", "direct", "connector", "direct")):
        live_pipeline.document["source"]["kafka"]["reader"] = reader
        live_pipeline.send(EVENTS[number * 100 : number * 100 + 150], partition=number % 2)
        live_pipeline.run()
        live_pipeline.assert_exact()


@pytest.mark.parametrize("reader", ["direct"], indirect=True)
def test_events_that_come_while_it_runs_arrive_and_partitions_that_are_added_are_read(
    live_pipeline, kafka_admin
):
    with live_pipeline.start() as running:
        live_pipeline.send(EVENTS[:100])
        running.wait_for_rows(100)
        kafka_admin.create_partitions([NewPartitions(live_pipeline.topic, 3)])[live_pipeline.topic].result(30)
        live_pipeline.send(EVENTS[50:300], partition=2)
        running.wait_for_rows(300)
    live_pipeline.assert_exact()


@pytest.mark.parametrize("reader", ["direct"], indirect=True)
@pytest.mark.parametrize("point", ["parts written", "before registering", "after registering"])
def test_a_driver_that_is_killed_doubles_and_loses_nothing(live_pipeline, point):
    live_pipeline.send(EVENTS[:300])
    live_pipeline.send(EVENTS[100:], partition=1)
    live_pipeline.crash(f"{point}:2", "--once")
    live_pipeline.run()
    live_pipeline.assert_exact()
    assert len(epochs.list_epochs(live_pipeline.catalog)) > 2


def cut_while_it_runs(live_pipeline: LivePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    end = LogEnd(offset=10, leader_epoch=None)
    with live_pipeline.start() as running:
        live_pipeline.send(EVENTS[:20])
        running.wait_for_rows(20)
        monkeypatch.setattr(KafkaTopics, "stable_ends", lambda _, places: dict.fromkeys(places, end.offset))
        monkeypatch.setattr(KafkaTopics, "ends", lambda _, places: dict.fromkeys(places, end))
        wait_until(lambda: running.error is not None, "the driver to stop")


@pytest.mark.parametrize("reader", ["direct"], indirect=True)
def test_a_log_that_ends_before_what_was_read_stops_a_running_driver(live_pipeline, monkeypatch):
    """As one that was cut by an unclean election, before other records take the place of the lost ones."""
    with pytest.raises(DataLossError, match="Kafka's log ends at offset 10"):
        cut_while_it_runs(live_pipeline, monkeypatch)


def test_a_missing_package_is_named_with_its_extra_before_any_data_moves(live_pipeline, monkeypatch):
    live_pipeline.document["source"]["kafka"]["reader"] = "direct"
    monkeypatch.setattr(access, "find_spec", lambda name: None if name == "numba" else name)
    with pytest.raises(
        MissingExtraError, match=r"numba, which is not installed: pip install 'oncehouse\[direct\]'"
    ):
        live_pipeline.run()


@pytest.mark.parametrize("reader", ["direct"], indirect=True)
def test_what_no_further_try_helps_stops_the_pipeline_with_its_reason(live_pipeline, monkeypatch):
    """The error of a task comes to the driver as a text, and must be the same error there."""
    live_pipeline.send(EVENTS[:10])
    places = {"topic": live_pipeline.topic, "partition": 0}
    refused = KafkaAccess(bootstrap_servers=live_pipeline.document["source"]["kafka"]["bootstrap_servers"])

    def read_old_format(plan):
        assert plan.access == refused
        raise PermanentError(f"the records of {places} are in Kafka's message format 1")

    monkeypatch.setattr(range_task, "read_range_task", read_old_format)
    with pytest.raises(PermanentError, match="message format 1"):
        live_pipeline.run()
