"""What the Kafka client tells through records that are errors: which end the consumer, and which it gets over."""

from __future__ import annotations

import gc
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from oncehouse.errors import DataLossError, PermanentError, TransientError
from oncehouse.messaging.consumer import MemoryMetrics, kafka_client
from oncehouse.messaging.consumer.kafka_client import KafkaClient
from oncehouse.messaging.consumer.records import split_errors


class Told:
    """A consumer that gives out one error."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def consume(self, count: int, timeout: float) -> list[Message]:
        return [Message(topic="t", partition=0, offset=1, value=b"v"), Message(topic="t", error=self._error)]


def consume(code: int) -> tuple[list[Message], MemoryMetrics]:
    metrics = MemoryMetrics()
    client = KafkaClient(bootstrap_servers="127.0.0.1:9", group="g", options={}, metrics=metrics)
    client._consumer = Told(KafkaError(code))
    return client.consume(10, 0.0), metrics


def test_errors_are_told_from_records_by_identity():
    record, error = (
        Message(topic="t", value=b"v"),
        Message(topic="t", error=KafkaError(KafkaError._TRANSPORT)),
    )
    assert split_errors([record, error]) == ([record], [error])


@pytest.mark.parametrize(
    "code", [KafkaError._MAX_POLL_EXCEEDED, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT]
)
def test_what_the_client_gets_over_is_counted_and_the_records_come_through(code):
    records, metrics = consume(code)
    assert [record.value() for record in records] == [b"v"]
    assert metrics.counts["client.errors"] == 1


def test_the_end_of_a_partition_is_no_error():
    assert consume(KafkaError._PARTITION_EOF)[1].counts["client.errors"] == 0


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PermanentError, "grant Read on the topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, PermanentError, "grant Read on the group"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, PermanentError, "create the topic again"),
        (KafkaError._AUTO_OFFSET_RESET, DataLossError, "deleted what was not read yet"),
    ],
)
def test_what_nobody_gets_over_ends_the_consumer_with_advice(code, kind, words):
    with pytest.raises(kind, match=words):
        consume(code)


class Stream:
    """A consumer that gives out so many records at once."""

    def __init__(self, records: int) -> None:
        self._records = [Message(topic="t", partition=0, offset=number) for number in range(records)]

    def consume(self, count: int, timeout: float) -> list[Message]:
        assert not gc.isenabled()
        return self._records

    def close(self) -> None:
        pass


def test_the_cycle_collector_rests_in_a_full_stream_and_always_comes_back(monkeypatch):
    client = KafkaClient(bootstrap_servers="127.0.0.1:9", group="g", options={}, metrics=MemoryMetrics())
    client._consumer = Stream(1)
    client.consume(10, 0.0)
    assert gc.isenabled()
    client._consumer = Stream(5_000)
    client.consume(5_000, 0.0)
    assert not gc.isenabled()
    client.close()
    assert gc.isenabled()
    client.consume(5_000, 0.0)
    now = time.monotonic()
    monkeypatch.setattr("oncehouse.messaging.consumer.kafka_client.time.monotonic", lambda: now + 1.0)
    client.consume(5_000, 0.0)
    assert gc.isenabled()


def test_a_collector_that_the_program_turned_off_stays_off():
    client = KafkaClient(bootstrap_servers="127.0.0.1:9", group="g", options={}, metrics=MemoryMetrics())
    client._consumer = Stream(1)
    gc.disable()
    try:
        client.consume(10, 0.0)
        assert not gc.isenabled()
    finally:
        gc.enable()


class Answering:
    """A consumer that says of one partition that it cannot tell its offset, as often as asked; and refuses a seek."""

    def __init__(self, code: int, times: int = 1) -> None:
        self._code, self.times = code, times

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        answers = [TopicPartition("t", 0, 7), TopicPartition("t.retry.1", 0, -1001)]
        if self.times:
            self.times -= 1
            return [answers[0], Untold(self._code)]
        return [answers[0], TopicPartition("t.retry.1", 0, 3)]

    def seek(self, place: TopicPartition) -> None:
        raise KafkaException(KafkaError(self._code))


class Untold:
    """As TopicPartition, whose error nobody can set."""

    topic, partition, offset, metadata = "t.retry.1", 0, -1001, None

    def __init__(self, code: int) -> None:
        self.error = KafkaError(code)


def make_client() -> KafkaClient:
    return KafkaClient(bootstrap_servers="127.0.0.1:9", group="g", options={}, metrics=MemoryMetrics())


def test_an_offset_that_kafka_cannot_tell_is_asked_for_again_and_never_taken_for_none():
    asked = Answering(KafkaError.UNSTABLE_OFFSET_COMMIT)
    found = make_client()._read_positions(asked, [TopicPartition("t", 0), TopicPartition("t.retry.1", 0)])
    assert {key: position.offset for key, position in found.items()} == {("t", 0): 7, ("t.retry.1", 0): 3}


def test_an_offset_that_kafka_never_tells_is_an_outage(monkeypatch):
    monkeypatch.setattr(kafka_client, "_READ_POSITIONS_SECONDS", 0.0)
    asked = Answering(KafkaError.UNSTABLE_OFFSET_COMMIT, times=100)
    with pytest.raises(TransientError, match="where to begin"):
        make_client()._read_positions(asked, [TopicPartition("t", 0)])


def test_a_partition_that_has_not_begun_need_not_be_set_back():
    client = make_client()
    client._consumer = Answering(KafkaError._STATE)
    client._seek(TopicPartition("t", 0, 7))
    client._consumer = Answering(KafkaError._TIMED_OUT)
    with pytest.raises(TransientError, match="t/0 could not be set back"):
        client._seek(TopicPartition("t", 0, 7))
