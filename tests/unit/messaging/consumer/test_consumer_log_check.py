"""Partitions are held until their leaders say that the log is the one that was read, each for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from oncehouse.common.leader_epochs import EpochEnd
from oncehouse.errors import DataLossError
from oncehouse.messaging.consumer import MemoryMetrics, log_check
from oncehouse.messaging.consumer import kafka_client as consumer_kafka
from oncehouse.messaging.consumer.commit_plan import CommittedPosition
from oncehouse.messaging.consumer.kafka_client import KafkaClient

ONE, OTHER = ("t", 0), ("t", 1)


class Leaders:
    """What each says when it is asked; those that are not here have no leader."""

    def __init__(self, **ends: EpochEnd) -> None:
        self.ends = {("t", int(name.removeprefix("p"))): end for name, end in ends.items()}
        self.rounds = 0

    def hear(
        self, _settings, asked, *, group: str, timeout_seconds: float, stop: Callable[[], bool]
    ) -> Iterator[tuple[tuple[str, int], EpochEnd | KafkaError]]:
        assert group == "g"
        self.rounds += 1
        for place in [place for place in asked if place in self.ends]:
            yield place, self.ends[place]
        for place in [place for place in asked if place not in self.ends]:
            yield place, KafkaError(KafkaError._TIMED_OUT)


class Members:
    """A consumer of the client, which is assigned and paused, and gives out what is not paused."""

    def __init__(self, committed: Mapping[tuple[str, int], tuple[int, str, int]]) -> None:
        self._committed = committed
        self.paused: set[tuple[str, int]] = set()
        self.sought: list[tuple[str, int, int]] = []
        self.leaks = False

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [
            TopicPartition(
                at.topic,
                at.partition,
                self._committed[at.topic, at.partition][0],
                self._committed[at.topic, at.partition][1],
                self._committed[at.topic, at.partition][2],
            )
            for at in partitions
        ]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        pass

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {(at.topic, at.partition) for at in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(at.topic, at.partition) for at in partitions}

    def seek(self, place: TopicPartition) -> None:
        self.sought.append((place.topic, place.partition, place.offset))

    def consume(self, count: int, timeout: float) -> list[Message]:
        return [
            Message(topic=at.topic, partition=at.partition, offset=at.offset, value=b"v")
            for at in self.assigned
            if self.leaks or (at.topic, at.partition) not in self.paused
        ]

    def close(self) -> None:
        pass


class Listening:
    def on_assigned(self, positions: Mapping[tuple[str, int], CommittedPosition]) -> None:
        self.positions = positions

    def on_revoked(self, partitions: object) -> None:
        pass


@pytest.fixture
def opened(monkeypatch) -> Iterator[Callable[..., tuple[KafkaClient, Members]]]:
    monkeypatch.setattr(log_check, "_RETRY_SECONDS", 0.01)
    clients = []

    def open_client(leaders: Leaders, committed: Mapping[tuple[str, int], tuple[int, str, int]]):
        monkeypatch.setattr(consumer_kafka, "receive_epoch_ends", leaders.hear)
        client = KafkaClient(bootstrap_servers="127.0.0.1:9", group="g", options={}, metrics=MemoryMetrics())
        members = Members(committed)
        client._consumer, client._listener, client._incremental = members, Listening(), True
        clients.append(client)
        client._on_assign(members, [TopicPartition(*place) for place in committed])
        return client, members

    yield open_client
    for client in clients:
        client.close()


def places(records: list[Message]) -> set[tuple[str, int]]:
    return {(record.topic(), record.partition()) for record in records}


def poll_until(client: KafkaClient, done: Callable[[list[Message]], bool]) -> list[Message]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        records = client.consume(10, 0.0)
        if done(records):
            return records
        time.sleep(0.005)
    raise AssertionError("not within 20 s")


OURS = (40, "oncehouse:", 3)


def test_a_partition_without_a_leader_holds_up_itself_alone_and_is_asked_about_again(opened):
    leaders = Leaders(p0=EpochEnd(epoch=3, end=40))
    client, _ = opened(leaders, {ONE: OURS, OTHER: OURS})
    poll_until(client, lambda records: places(records) == {ONE} and leaders.rounds > 3)
    leaders.ends[OTHER] = EpochEnd(epoch=3, end=50)
    poll_until(client, lambda records: places(records) == {ONE, OTHER})


def test_a_rebalance_does_not_wait_for_the_leaders(monkeypatch, opened):
    asked, go_on = threading.Event(), threading.Event()

    class Silent(Leaders):
        def hear(self, *_, stop: Callable[[], bool], **__):
            asked.set()
            while not stop():
                go_on.wait(0.01)
            yield from ()

    client, members = opened(Silent(), {ONE: OURS})  # comes back though nobody answers
    assert asked.wait(20)
    assert members.paused == {ONE}
    assert client.consume(10, 0.0) == []
    thread = client._log_check._thread
    client.close()
    assert not thread.is_alive()


def test_a_log_that_was_cut_ends_the_consumer_before_a_record_is_given_out(opened):
    client, members = opened(Leaders(p0=EpochEnd(epoch=2, end=30)), {ONE: OURS})
    with pytest.raises(DataLossError, match=r"t/0: .* at offsets 30 to 39"):
        poll_until(client, bool)
    assert members.paused == {ONE}


def test_of_a_commit_of_another_client_only_the_length_of_the_log_is_compared(opened):
    """Kafka's Java client commits the leader's epoch after a reset to the latest offset: no record need have it."""
    theirs = (40, "", 3)
    client, _ = opened(Leaders(p0=EpochEnd(epoch=2, end=40)), {ONE: theirs})
    poll_until(client, lambda records: places(records) == {ONE})
    client, _ = opened(Leaders(p0=EpochEnd(epoch=2, end=39)), {ONE: theirs})
    with pytest.raises(DataLossError, match="at offsets 39 to 39"):
        poll_until(client, bool)


def test_our_own_commit_demands_the_very_epoch(opened):
    client, _ = opened(Leaders(p0=EpochEnd(epoch=2, end=40)), {ONE: OURS})
    with pytest.raises(DataLossError):
        poll_until(client, bool)


def test_what_the_consumer_pauses_meanwhile_stays_paused(opened):
    leaders = Leaders()
    client, members = opened(leaders, {ONE: OURS, OTHER: OURS})
    client.pause(ONE)
    client.resume(OTHER)
    assert members.paused == {ONE, OTHER}
    leaders.ends = dict.fromkeys((ONE, OTHER), EpochEnd(epoch=3, end=40))
    poll_until(client, lambda records: places(records) == {OTHER})
    assert not client._held
    client.resume(ONE)
    assert not members.paused


def test_a_record_that_comes_from_a_held_partition_all_the_same_is_fetched_again(opened):
    client, members = opened(Leaders(), {ONE: OURS})
    members.leaks = True
    assert client.consume(10, 0.0) == []
    assert members.sought == [("t", 0, 40)]


def test_a_partition_that_went_is_asked_about_no_more(opened):
    client, members = opened(Leaders(), {ONE: OURS})
    client._on_revoke(members, [TopicPartition(*ONE)])
    thread = client._log_check._thread
    assert thread is None or not thread.join(20)
    assert not client._held


def test_commits_without_a_leader_epoch_are_not_held(opened):
    leaders = Leaders()
    client, _ = opened(leaders, {ONE: (40, "oncehouse:", -1)})
    assert places(client.consume(10, 0.0)) == {ONE}
    assert not leaders.rounds
