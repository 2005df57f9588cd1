"""The source at its edges: transactions, new partitions, lost offsets, topics made anew, lost checkpoints."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from live_pipeline import LivePipeline, both_readers, encode, make_event, note_of, wait_until
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import ConfigurationError, DataLossError, PermanentError
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.pipeline.ingest import epoch_sizing, kafka_source
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.stages import kafka_stream

EVENTS = [make_event(number) for number in range(60)]


def send_transactions(live_pipeline: LivePipeline, kafka) -> None:
    """Every third transaction is aborted."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": live_pipeline.topic}
    )
    producer.init_transactions(30)
    for turn in range(6):
        chosen = EVENTS[turn * 10 : turn * 10 + 10]
        producer.begin_transaction()
        for event in chosen:
            producer.produce(live_pipeline.topic, encode(event), partition=turn % 2)
        producer.flush(30)
        if turn % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            live_pipeline.expected |= {event: note_of(event) for event in chosen}
            live_pipeline.produced += len(chosen)
    assert len(live_pipeline.expected) == 40


@pytest.mark.scenario("aborted transactions")
@both_readers
def test_transactions_that_were_aborted_are_invisible(live_pipeline, kafka):
    send_transactions(live_pipeline, kafka)
    live_pipeline.run()
    live_pipeline.assert_exact()


def change_source_options(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    right = kafka_source._source_options
    monkeypatch.setattr(
        kafka_source, "_source_options", lambda *given, **named: right(*given, **named) | changes
    )


@pytest.mark.long
@pytest.mark.defect("aborted transactions")
def test_a_source_that_reads_what_is_not_committed_is_noticed(live_pipeline, kafka, monkeypatch):
    change_source_options(monkeypatch, **{"kafka.isolation.level": "read_uncommitted"})
    send_transactions(live_pipeline, kafka)
    live_pipeline.run()
    with pytest.raises(AssertionError, match="20 events were never sent"):
        live_pipeline.assert_exact()


def add_partitions(live_pipeline: LivePipeline, admin: AdminClient) -> None:
    """One while the pipeline runs, one while it does not; both have records before they are looked at."""
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        running.wait_for_rows(20)
        grow_topic(live_pipeline.topic, 2, admin)
        live_pipeline.send(EVENTS[20:40], partition=1)
        live_pipeline.send(EVENTS[30:50], partition=0)
        running.wait_for_rows(50)
    assert set(epochs.read_positions(live_pipeline.catalog)) == {
        (live_pipeline.topic, 0),
        (live_pipeline.topic, 1),
    }
    grow_topic(live_pipeline.topic, 3, admin)
    live_pipeline.send(EVENTS[40:], partition=2)
    live_pipeline.run()
    live_pipeline.assert_exact()


def grow_topic(topic: str, partitions: int, admin: AdminClient) -> None:
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    wait_until(
        lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == partitions, "the new partition"
    )


@pytest.mark.long
@pytest.mark.scenario("partition added")
@both_readers
def test_a_partition_that_was_added_is_read_from_its_beginning(make_pipeline, kafka_admin):
    add_partitions(make_pipeline(partitions=1), kafka_admin)


@pytest.mark.long
@pytest.mark.defect("partition added")
def test_a_new_partition_that_is_read_from_its_end_is_noticed(make_pipeline, kafka_admin, monkeypatch):
    live_pipeline, right = make_pipeline(partitions=1), kafka_source.starting_positions
    topics = KafkaTopics(live_pipeline.pipeline.source.kafka)

    def begin_new_ones_at_their_end(facts, positions, earliest):
        return right(facts, positions, topics.latest(earliest) if positions else earliest)

    monkeypatch.setattr(kafka_source, "starting_positions", begin_new_ones_at_their_end)
    with pytest.raises(AssertionError, match="10 events are lost"):
        add_partitions(live_pipeline, kafka_admin)


def lose_unread(live_pipeline: LivePipeline, admin: AdminClient) -> None:
    live_pipeline.send(EVENTS[:20])
    live_pipeline.run()
    before = epochs.read_positions(live_pipeline.catalog)
    live_pipeline.send(EVENTS[20:])
    delete_to(live_pipeline, 45, admin)
    demand_loud_stop(live_pipeline, r"partition 0: offsets 20 to 44 .* \(25 records")
    assert epochs.read_positions(live_pipeline.catalog) == before
    live_pipeline.assert_table(live_pipeline.table, dict(list(live_pipeline.expected.items())[:20]))


def demand_loud_stop(live_pipeline: LivePipeline, message: str) -> None:
    said = "nothing was said of what is lost"
    try:
        live_pipeline.run()
    except DataLossError as error:
        said = str(error)
    assert re.search(message, said), f"{said}; {len(live_pipeline.rows())} rows arrived"


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
    monkeypatch.setattr(registration, "_require_same_topics", lambda *_: None)


@pytest.mark.scenario("unread offsets deleted")
@both_readers
def test_offsets_deleted_before_they_were_read_are_named_and_nothing_is_skipped(live_pipeline, kafka_admin):
    lose_unread(live_pipeline, kafka_admin)


@pytest.mark.long
@pytest.mark.defect("unread offsets deleted")
def test_deleted_offsets_that_are_skipped_without_a_word_are_noticed(live_pipeline, kafka_admin, skipping):
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 35 rows arrived"):
        lose_unread(live_pipeline, kafka_admin)


def lose_unread_while_running(
    live_pipeline: LivePipeline, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come and are deleted while the epoch before them is settled."""
    read_dataframe, begun, may_go_on = kafka_stream.read_dataframe, threading.Event(), threading.Event()

    def read_and_wait(frame, plan):
        manifests = read_dataframe(frame, plan)
        begun.set()
        assert may_go_on.wait(120)
        return manifests

    monkeypatch.setattr(kafka_stream, "read_dataframe", read_and_wait)
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        wait_until(lambda: begun.is_set() or running.error, "the first epoch")
        live_pipeline.send(EVENTS[20:])
        delete_to(live_pipeline, 45, admin)
        may_go_on.set()
        wait_until(lambda: running.error or len(live_pipeline.rows()) > 20, "somebody to notice")
        found, running.error = running.error, None
    assert isinstance(found, DataLossError), (
        f"nothing was said of what is lost; {len(live_pipeline.rows())} rows arrived"
    )
    assert f"Topic {live_pipeline.topic} partition 0: offsets 20 to 44" in str(found)
    assert epochs.read_positions(live_pipeline.catalog) == {(live_pipeline.topic, 0): 20}
    live_pipeline.assert_table(live_pipeline.table, dict(list(live_pipeline.expected.items())[:20]))


def delete_to(live_pipeline: LivePipeline, offset: int, admin: AdminClient) -> None:
    for deleted in admin.delete_records([TopicPartition(live_pipeline.topic, 0, offset)]).values():
        deleted.result(60)


@pytest.mark.long
@pytest.mark.scenario("unread offsets deleted")
@both_readers
def test_offsets_deleted_while_running_are_named_and_nothing_is_skipped(
    make_pipeline, kafka_admin, monkeypatch
):
    lose_unread_while_running(make_pipeline(), kafka_admin, monkeypatch)


@pytest.mark.long
@pytest.mark.defect("unread offsets deleted")
def test_a_source_that_passes_over_what_was_deleted_while_running_is_noticed(
    make_pipeline, kafka_admin, monkeypatch
):
    change_source_options(monkeypatch, failOnDataLoss="false")
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 35 rows arrived"):
        lose_unread_while_running(make_pipeline(), kafka_admin, monkeypatch)


def make_anew(live_pipeline: LivePipeline, admin: AdminClient) -> None:
    live_pipeline.send(EVENTS[:20])
    live_pipeline.run()
    admin.delete_topics([live_pipeline.topic])[live_pipeline.topic].result(30)
    wait_until(lambda: make_topic(admin, live_pipeline.topic), "the topic to be made anew")
    live_pipeline.send(EVENTS[20:50])
    demand_loud_stop(live_pipeline, "deleted and created again")
    assert live_pipeline.counts().read == 20


@pytest.mark.scenario("topic made anew")
@both_readers
def test_a_topic_deleted_and_made_anew_stops_the_pipeline(live_pipeline, kafka_admin):
    make_anew(live_pipeline, kafka_admin)


@pytest.mark.long
@pytest.mark.defect("topic made anew")
def test_a_new_topic_that_is_taken_for_the_old_one_is_noticed(live_pipeline, kafka_admin, skipping):
    with pytest.raises(AssertionError, match="nothing was said of what is lost; 30 rows arrived"):
        make_anew(live_pipeline, kafka_admin)


@pytest.mark.scenario("topic made anew")
@both_readers
def test_a_topic_made_anew_while_running_stops_the_pipeline(live_pipeline, kafka_admin):
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        running.wait_for_rows(20)
        kafka_admin.delete_topics([live_pipeline.topic])[live_pipeline.topic].result(30)
        wait_until(lambda: make_topic(kafka_admin, live_pipeline.topic), "the topic to be made anew")
        # More than it had before, so that its offsets alone look like the old topic going on.
        live_pipeline.send([*EVENTS[:20], *EVENTS[20:]])
        error = running.wait_for_error()
    assert isinstance(error, PermanentError | ConfigurationError), error
    assert live_pipeline.counts().read == 20, "nothing of the new topic was taken for the old one"


def make_topic(admin, name: str) -> bool:
    try:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    except KafkaException:
        return False
    return True


@pytest.mark.long
@both_readers
def test_a_topic_may_leave_the_pipeline_and_then_kafka(make_pipeline, kafka_admin):
    live_pipeline = make_pipeline(topics=2)
    live_pipeline.send(EVENTS[:20])
    live_pipeline.send(EVENTS[10:30], topic=live_pipeline.topics[1])
    live_pipeline.run()
    live_pipeline.document["source"]["kafka"]["topics"] = [live_pipeline.topic]
    kafka_admin.delete_topics([live_pipeline.topics[1]])[live_pipeline.topics[1]].result(30)
    live_pipeline.send(EVENTS[20:])
    assert live_pipeline.run().progress.lag == 0
    assert live_pipeline.counts().duplicate == 20
    live_pipeline.assert_exact()


@both_readers
def test_a_missing_topic_is_told_before_any_data_moves(live_pipeline, kafka_admin):
    kafka_admin.delete_topics([live_pipeline.topic])[live_pipeline.topic].result(30)
    with pytest.raises(ConfigurationError, match=f"no topic '{live_pipeline.topic}'"):
        live_pipeline.run()


def delete_checkpoints(live_pipeline: LivePipeline) -> None:
    checkpoints = live_pipeline.folder / "files" / "live" / "checkpoints"
    assert list(checkpoints.iterdir()), "the stream must have a checkpoint to lose"
    shutil.rmtree(checkpoints)


def flip_checkpoints(live_pipeline: LivePipeline) -> None:
    harm_logs(live_pipeline, lambda content: bytes(byte ^ 0x55 for byte in content))


def cut_checkpoints(live_pipeline: LivePipeline) -> None:
    harm_logs(live_pipeline, lambda content: content[:5])


def harm_logs(live_pipeline: LivePipeline, change: Callable[[bytes], bytes]) -> None:
    for log in (live_pipeline.folder / "files" / "live" / "checkpoints").glob("*/offsets/*"):
        if log.name.isdecimal():
            log.write_bytes(change(log.read_bytes()))


def play_lost_checkpoint(live_pipeline: LivePipeline, harm: Callable[[LivePipeline], None]) -> None:
    """Records arrive while the checkpoint goes, so that they can be missed."""
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        running.wait_for_rows(20)
        harm(live_pipeline)
        live_pipeline.send(EVENTS[10:40], partition=1)
        running.wait_for_rows(40)
        live_pipeline.send(EVENTS[40:])
        running.wait_for_rows(60)
    assert any("Starting again" in message for message in live_pipeline.said), live_pipeline.said


@pytest.mark.scenario("deleted checkpoint")
def test_a_checkpoint_deleted_while_running_costs_a_restart_and_nothing_else(live_pipeline):
    play_lost_checkpoint(live_pipeline, delete_checkpoints)
    live_pipeline.assert_exact()


@pytest.mark.scenario("damaged checkpoint")
@pytest.mark.parametrize("harm", [flip_checkpoints, pytest.param(cut_checkpoints, marks=pytest.mark.long)])
def test_a_damaged_checkpoint_costs_a_restart_and_nothing_else(live_pipeline, harm):
    play_lost_checkpoint(live_pipeline, harm)
    live_pipeline.assert_exact()


def start_again_at_the_end(monkeypatch) -> list[object]:
    """A stream that has lost its checkpoint begins where Kafka ends, and the ledger takes it; gives its starts."""
    begin, starts = kafka_stream.KafkaIngestStage._starting_positions, []

    def skip(self):
        found = begin(self) if not starts else self._topics.latest(list(begin(self)))
        starts.append(found)
        return found

    monkeypatch.setattr(kafka_stream.KafkaIngestStage, "_starting_positions", skip)
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
def test_a_stream_that_does_not_go_back_to_the_ledgers_offsets_is_noticed(live_pipeline, monkeypatch, harm):
    starts = start_again_at_the_end(monkeypatch)
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        running.wait_for_rows(20)
        harm(live_pipeline)
        live_pipeline.send(EVENTS[10:40], partition=1)
        wait_until(lambda: len(starts) > 1, "the stream to start again")
        live_pipeline.send(EVENTS[40:])
        wait_until(lambda: live_pipeline.counts().read > 20, "the ledger to go on")
    with pytest.raises(AssertionError, match="are lost"):
        live_pipeline.assert_exact()


@both_readers
def test_a_driver_that_is_killed_soon_has_settled_some_of_a_backlog(make_pipeline):
    """Its first epoch is small, however much waits: a sixteenth of the bytes; then they grow."""
    live_pipeline = make_pipeline(epoch={"max_rows": 100_000, "max_bytes": "1MB"})
    live_pipeline.send([make_event(number) for number in range(6_000)])
    live_pipeline.crash("before registering:2", "--once")
    begun = live_pipeline.counts().read
    assert 100 <= begun <= 1_000
    live_pipeline.run()
    *_, largest = sorted(epoch.counts.read for epoch in epochs.list_epochs(live_pipeline.catalog))
    assert largest > 2 * begun
    live_pipeline.assert_exact()


def drain_in_small_epochs(live_pipeline: LivePipeline, monkeypatch) -> list[int]:
    """A backlog of several partitions with duplicates, from a first epoch of 100 records; the bounds of its streams."""
    bounds, open_stream = [], kafka_stream.open_stream

    def count_start(*arguments, max_rows: int, **options):
        bounds.append(max_rows)
        return open_stream(*arguments, max_rows=max_rows, **options)

    monkeypatch.setattr(epoch_sizing, "FIRST_RECORDS", 100)
    monkeypatch.setattr(kafka_stream, "open_stream", count_start)
    backlog = [make_event(number) for number in range(2_000)]
    live_pipeline.send(backlog[:1_500])
    live_pipeline.send(backlog[1_000:], partition=1)
    live_pipeline.run()
    live_pipeline.assert_exact()
    return bounds


def test_epochs_grow_without_another_start_of_the_stream(make_pipeline, monkeypatch):
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 10_000})
    assert drain_in_small_epochs(live_pipeline, monkeypatch) == [10_000]
    *grown, first = [epoch.counts.read for epoch in epochs.list_epochs(live_pipeline.catalog)]
    assert first == 100
    assert sum(grown) == 2_400
    assert len(grown) < 10


def test_epochs_that_do_not_grow_have_a_stream_of_their_own_bound(make_pipeline, monkeypatch):
    monkeypatch.setattr(kafka_stream, "adjust_size", lambda size, *_: size)
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 10_000})
    assert drain_in_small_epochs(live_pipeline, monkeypatch) == [10_000, 100]
    assert len(epochs.list_epochs(live_pipeline.catalog)) >= 25
