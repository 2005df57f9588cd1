"""What the Kafka client tells through records that are errors: which end the consumer, and which it gets over."""

from __future__ import annotations

import gc
import time

import pytest
from confluent_kafka import KafkaError, Message

from oncehouse.errors import DataLossError, PermanentError
from oncehouse.messaging.consumer import MemoryMetrics
from oncehouse.messaging.consumer.kafka import KafkaClient
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
    monkeypatch.setattr("oncehouse.messaging.consumer.kafka.time.monotonic", lambda: now + 1.0)
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
