"""The source at its edges: transactions, new partitions, lost offsets, topics made anew, lost checkpoints."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql.streaming.readwriter import DataStreamReader

from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import ConfigurationError, DataLossError, PermanentError
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.pipeline.ingest import kafka_source
from oncehouse.pipeline.ingest.kafka_source import Topics
from oncehouse.pipeline.stages import kafka_stream
from road import Road, encode, make_event, note_of, wait_until

EVENTS = [make_event(number) for number in range(60)]


def send_transactions(road: Road, kafka) -> None:
    """Every third transaction is aborted."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": road.topic})
    producer.init_transactions(30)
    for turn in range(6):
        chosen = EVENTS[turn * 10 : turn * 10 + 10]
        producer.begin_transaction()
        for event in chosen:
            producer.produce(road.topic, encode(event), partition=turn % 2)
        producer.flush(30)
        if turn % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            road.expected |= {event: note_of(event) for event in chosen}
            road.produced += len(chosen)
    assert len(road.expected) == 40


@pytest.mark.scenario("aborted transactions")
def test_transactions_that_were_aborted_are_invisible(road, kafka):
    send_transactions(road, kafka)
    road.run()
    road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("aborted transactions")
def test_a_source_that_reads_what_is_not_committed_is_noticed(road, kafka, monkeypatch):
    right = DataStreamReader.option

    def uncommitted(reader, name, value):
        return right(reader, name, "read_uncommitted" if name == "kafka.isolation.level" else value)

    monkeypatch.setattr(DataStreamReader, "option", uncommitted)
    send_transactions(road, kafka)
    road.run()
    with pytest.raises(AssertionError, match="20 events were never sent"):
        road.assert_exact()


def add_partitions(road: Road, admin: AdminClient) -> None:
    """One while the pipeline runs, one while it does not; both have records before they are looked at."""
    road.send(EVENTS[:20])
    with road.start() as running:
        running.wait_for_rows(20)
        grow_topic(road.topic, 2, admin)
        road.send(EVENTS[20:40], partition=1)
        road.send(EVENTS[30:50], partition=0)
        running.wait_for_rows(50)
    assert set(epochs.read_positions(road.catalog)) == {(road.topic, 0), (road.topic, 1)}
    grow_topic(road.topic, 3, admin)
    road.send(EVENTS[40:], partition=2)
    road.run()
    road.assert_exact()


def grow_topic(topic: str, partitions: int, admin: AdminClient) -> None:
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    wait_until(
        lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == partitions, "the new partition"
    )


@pytest.mark.long
@pytest.mark.scenario("partition added")
def test_a_partition_that_was_added_is_read_from_its_beginning(make_road, kafka_admin):
    add_partitions(make_road(partitions=1), kafka_admin)


@pytest.mark.long
@pytest.mark.defect("partition added")
def test_a_new_partition_that_is_read_from_its_end_is_noticed(make_road, kafka_admin, monkeypatch):
    road, right = make_road(partitions=1), kafka_source.starting_positions
    topics = Topics(road.pipeline.source.kafka)

    def begin_new_ones_at_their_end(facts, positions, earliest):
        return right(facts, positions, topics.latest(earliest) if positions else earliest)

    monkeypatch.setattr(kafka_source, "starting_positions", begin_new_ones_at_their_end)
    with pytest.raises(AssertionError, match="10 events are lost"):
        add_partitions(road, kafka_admin)


def lose_unread(road: Road, admin: AdminClient) -> None:
    road.send(EVENTS[:20])
    road.run()
    before = epochs.read_positions(road.catalog)
    road.send(EVENTS[20:])
    delete_to(road, 45, admin)
    demand_loud_stop(road, r"partition 0: offsets 20 to 44 .* \(25 records")
    assert epochs.read_positions(road.catalog) == before
    road.assert_table(road.table, dict(list(road.expected.items())[:20]))


def demand_loud_stop(road: Road, message: str) -> None:
    said = "nothing was said of what is lost"
    try:
        road.run()
    except DataLossError as error:
        said = str(error)
    assert re.search(message, said), f"{said}; {len(road.rows())} rows arrived"


@pytest.fixture
def skipping(monkeypatch) -> None:
    """A defect: whatever Kafka has is what there was, and the ledger takes any offset for the next one."""
    right = kafka_source.starting_positions

    def begin_where_kafka_begins(facts, positions, earliest):
        found = right(facts, positions, earliest)
        return {place: max(at, earliest[place]) for place, at in found.items()}

    for asking in (kafka_source, kafka_stream):
        monkeypatch.setattr(asking, "check_topics", lambda *_: None)
    monkeypatch.setattr(kafka_source, "starting_positions", begin_where_kafka_begins)
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    monkeypatch.setattr(registration, "_demand_same_topics", lambda *_: None)


@pytest.mark.scenario("unread offsets deleted")
def test_offsets_deleted_before_they_were_read_are_named_and_nothing_is_skipped(road, kafka_admin):
    lose_unread(road, kafka_admin)


@pytest.mark.long
@pytest.mark.defect("unread offsets deleted")
def test_deleted_offsets_that_are_skipped_without_a_word_are_noticed(road, kafka_admin, skipping):
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 35 rows arrived"):
        lose_unread(road, kafka_admin)


def lose_unread_while_running(road: Road, admin: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come and are deleted while the epoch before them is settled."""
    read_frame, begun, may_go_on = kafka_stream.read_frame, threading.Event(), threading.Event()

    def read_and_wait(frame, plan):
        manifests = read_frame(frame, plan)
        begun.set()
        assert may_go_on.wait(120)
        return manifests

    monkeypatch.setattr(kafka_stream, "read_frame", read_and_wait)
    road.send(EVENTS[:20])
    with road.start() as running:
        wait_until(lambda: begun.is_set() or running.error, "the first epoch")
        road.send(EVENTS[20:])
        delete_to(road, 45, admin)
        may_go_on.set()
        wait_until(lambda: running.error or len(road.rows()) > 20, "somebody to notice")
        found, running.error = running.error, None
    assert isinstance(found, DataLossError), (
        f"nothing was said of what is lost; {len(road.rows())} rows arrived"
    )
    assert f"Topic {road.topic} partition 0: offsets 20 to 44" in str(found)
    assert epochs.read_positions(road.catalog) == {(road.topic, 0): 20}
    road.assert_table(road.table, dict(list(road.expected.items())[:20]))


def delete_to(road: Road, offset: int, admin: AdminClient) -> None:
    for deleted in admin.delete_records([TopicPartition(road.topic, 0, offset)]).values():
        deleted.result(60)


@pytest.mark.long
@pytest.mark.scenario("unread offsets deleted")
def test_offsets_deleted_while_running_are_named_and_nothing_is_skipped(make_road, kafka_admin, monkeypatch):
    lose_unread_while_running(make_road(), kafka_admin, monkeypatch)


@pytest.mark.long
@pytest.mark.defect("unread offsets deleted")
def test_a_source_that_passes_over_what_was_deleted_while_running_is_noticed(
    make_road, kafka_admin, monkeypatch
):
    right = DataStreamReader.option

    def lose_data(reader, name, value):
        return right(reader, name, "false" if name == "failOnDataLoss" else value)

    monkeypatch.setattr(DataStreamReader, "option", lose_data)
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 35 rows arrived"):
        lose_unread_while_running(make_road(), kafka_admin, monkeypatch)


def make_anew(road: Road, admin: AdminClient) -> None:
    road.send(EVENTS[:20])
    road.run()
    admin.delete_topics([road.topic])[road.topic].result(30)
    wait_until(lambda: make_topic(admin, road.topic), "the topic to be made anew")
    road.send(EVENTS[20:50])
    demand_loud_stop(road, "deleted and made anew")
    assert road.counts().read == 20


@pytest.mark.scenario("topic made anew")
def test_a_topic_deleted_and_made_anew_stops_the_pipeline(road, kafka_admin):
    make_anew(road, kafka_admin)


@pytest.mark.long
@pytest.mark.defect("topic made anew")
def test_a_new_topic_that_is_taken_for_the_old_one_is_noticed(road, kafka_admin, skipping):
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 30 rows arrived"):
        make_anew(road, kafka_admin)


@pytest.mark.scenario("topic made anew")
def test_a_topic_made_anew_while_running_stops_the_pipeline(road, kafka_admin):
    road.send(EVENTS[:20])
    with road.start() as running:
        running.wait_for_rows(20)
        kafka_admin.delete_topics([road.topic])[road.topic].result(30)
        wait_until(lambda: make_topic(kafka_admin, road.topic), "the topic to be made anew")
        # More than it had before, so that its offsets alone look like the old topic going on.
        road.send([*EVENTS[:20], *EVENTS[20:]])
        error = running.wait_for_error()
    assert isinstance(error, PermanentError | ConfigurationError), error
    assert road.counts().read == 20, "nothing of the new topic was taken for the old one"


def make_topic(admin, name: str) -> bool:
    try:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    except KafkaException:
        return False
    return True


@pytest.mark.long
def test_a_topic_may_leave_the_pipeline_and_then_kafka(make_road, kafka_admin):
    road = make_road(topics=2)
    road.send(EVENTS[:20])
    road.send(EVENTS[10:30], topic=road.topics[1])
    road.run()
    road.document["source"]["kafka"]["topics"] = [road.topic]
    kafka_admin.delete_topics([road.topics[1]])[road.topics[1]].result(30)
    road.send(EVENTS[20:])
    assert road.run().progress.lag == 0
    assert road.counts().duplicate == 20
    road.assert_exact()


def test_a_missing_topic_is_told_before_any_data_moves(road, kafka_admin):
    kafka_admin.delete_topics([road.topic])[road.topic].result(30)
    with pytest.raises(ConfigurationError, match=f"no topic '{road.topic}'"):
        road.run()


def delete_checkpoints(road: Road) -> None:
    checkpoints = road.folder / "files" / "road" / "checkpoints"
    assert list(checkpoints.iterdir()), "the stream must have a checkpoint to lose"
    shutil.rmtree(checkpoints)


def flip_checkpoints(road: Road) -> None:
    harm_logs(road, lambda content: bytes(byte ^ 0x55 for byte in content))


def cut_checkpoints(road: Road) -> None:
    harm_logs(road, lambda content: content[:5])


def harm_logs(road: Road, change: Callable[[bytes], bytes]) -> None:
    for log in (road.folder / "files" / "road" / "checkpoints").glob("*/offsets/*"):
        if log.name.isdecimal():
            log.write_bytes(change(log.read_bytes()))


def play_lost_checkpoint(road: Road, harm: Callable[[Road], None]) -> None:
    """Records arrive while the checkpoint goes, so that they can be missed."""
    road.send(EVENTS[:20])
    with road.start() as running:
        running.wait_for_rows(20)
        harm(road)
        road.send(EVENTS[10:40], partition=1)
        running.wait_for_rows(40)
        road.send(EVENTS[40:])
        running.wait_for_rows(60)
    assert any("Starting again" in message for message in road.said), road.said


@pytest.mark.scenario("deleted checkpoint")
def test_a_checkpoint_deleted_while_running_costs_a_restart_and_nothing_else(road):
    play_lost_checkpoint(road, delete_checkpoints)
    road.assert_exact()


@pytest.mark.scenario("damaged checkpoint")
@pytest.mark.parametrize("harm", [flip_checkpoints, pytest.param(cut_checkpoints, marks=pytest.mark.long)])
def test_a_damaged_checkpoint_costs_a_restart_and_nothing_else(road, harm):
    play_lost_checkpoint(road, harm)
    road.assert_exact()


def start_again_at_the_end(monkeypatch) -> list[object]:
    """A stream that has lost its checkpoint begins where Kafka ends, and the ledger takes it; gives its starts."""
    begin, starts = kafka_stream.Ingest._starting_positions, []

    def skip(self):
        found = begin(self) if not starts else self._topics.latest(list(begin(self)))
        starts.append(found)
        return found

    monkeypatch.setattr(kafka_stream.Ingest, "_starting_positions", skip)
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    return starts


@pytest.mark.long
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(delete_checkpoints, marks=pytest.mark.defect("deleted checkpoint")),
        pytest.param(flip_checkpoints, marks=pytest.mark.defect("damaged checkpoint")),
    ],
)
def test_a_stream_that_does_not_go_back_to_the_ledgers_offsets_is_noticed(road, monkeypatch, harm):
    starts = start_again_at_the_end(monkeypatch)
    road.send(EVENTS[:20])
    with road.start() as running:
        running.wait_for_rows(20)
        harm(road)
        road.send(EVENTS[10:40], partition=1)
        wait_until(lambda: len(starts) > 1, "the stream to start again")
        road.send(EVENTS[40:])
        wait_until(lambda: road.counts().read > 20, "the ledger to go on")
    with pytest.raises(AssertionError, match="are lost"):
        road.assert_exact()
