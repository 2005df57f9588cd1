"""The search for a message in Kafka by its id: from a time on, within its limit, and it reports how far it read."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition

from oncehouse.errors import TransientError
from oncehouse.messaging.outbox.kafka_search import Scan, locate


@pytest.fixture
def find(kafka):
    def find(message_id: str, *topics: str, since: float | None = None, **limits: object) -> Scan:
        asked = {"all_copies": False, "since": time.time() - 600 if since is None else since}
        return locate(kafka.bootstrap_servers, {}, message_id=message_id, topics=topics, **(asked | limits))

    return find


def send(kafka, topic: str, ids: list[str | None], *, partition: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    if settings:
        producer.init_transactions()
        producer.begin_transaction()
    for message_id in ids:
        headers = [] if message_id is None else [("trace", b"x"), ("oncehouse-id", message_id.encode())]
        producer.produce(topic, b"v", partition=partition, headers=headers)
    if settings:
        producer.commit_transaction()
    assert producer.flush(30) == 0


def test_a_message_is_found_in_whichever_partition_and_all_its_copies_when_asked(kafka, topic, find):
    name, wanted = topic(partitions=3), str(uuid4())
    send(kafka, name, [None, str(uuid4()), wanted], partition=2)
    send(kafka, name, [str(uuid4())] * 5, partition=1)
    found = find(wanted, name)
    assert [(place.topic, place.partition, place.offset) for place in found.places] == [(name, 2, 2)]
    send(kafka, name, [wanted, None], partition=2)
    both = find(wanted, name, all_copies=True)
    assert [place.offset for place in both.places] == [2, 3]
    assert (both.scanned, both.stopped) == (10, None)


def test_the_end_of_a_topic_is_seen_also_behind_the_marks_of_transactions(kafka, topic, find):
    name = topic()
    send(kafka, name, [str(uuid4())], **{"transactional.id": str(uuid4())})
    # The broker may still be writing the mark when the producer is told that all is done.
    end = time.monotonic() + 60
    while (found := find(str(uuid4()), name, max_seconds=60)).scanned == 0:
        assert time.monotonic() < end, "the transaction never became visible"
    assert (found.places, found.scanned, found.stopped) == ((), 1, None)


def test_nothing_before_the_time_is_looked_at(kafka, topic, find):
    name, wanted = topic(), str(uuid4())
    send(kafka, name, [wanted])
    found = find(wanted, name, since=time.time() + 600)
    assert (found.places, found.scanned, found.stopped) == ((), 0, None)


def test_a_scan_that_was_cut_short_says_so(kafka, topic, find):
    name, wanted = topic(), str(uuid4())
    send(kafka, name, [wanted])
    assert find(wanted, name, max_seconds=-1).stopped == "the time for it was over"
    assert "which is the limit" in find(wanted, name, max_messages=0).stopped


def test_a_topic_that_is_not_there_is_told(find):
    with pytest.raises(TransientError, match="Unknown topic"):
        find(str(uuid4()), "no-such-topic")


def test_what_kafka_has_deleted_is_told_to_be_unseen(kafka, kafka_admin, topic, find):
    name, wanted = topic(), str(uuid4())
    send(kafka, name, [wanted, None, None])
    assert not find(wanted, name).perhaps_deleted
    for deleted in kafka_admin.delete_records([TopicPartition(name, 0, 1)]).values():
        deleted.result(timeout=30)
    found = find(wanted, name)
    assert (found.places, found.scanned, found.perhaps_deleted) == ((), 2, True)
    for deleted in kafka_admin.delete_records([TopicPartition(name, 0, 3)]).values():
        deleted.result(timeout=30)
    found = find(wanted, name)
    assert (found.places, found.scanned, found.perhaps_deleted) == ((), 0, True)
