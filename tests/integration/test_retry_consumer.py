"""Consumers with retry topics on real Kafka: order by key while they come and go, partitions that stay together."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging import Consumer, RetryTopics
from oncehouse.messaging.retries.dead_letter_store import DeadLetterStore
from oncehouse.messaging.retries.dead_letters import TopicDeadLetter

KEYS, MESSAGES = 8, 160


class Bench:
    """What all consumers of a test share: which messages fail how often, and what was handled when."""

    def __init__(self, kafka, source):
        self.servers, self.source, self.group = kafka.bootstrap_servers, source, uuid.uuid4().hex
        self.left: dict[bytes, int] = {}
        self.handled: list[bytes] = []
        self.lock = threading.Lock()

    def produce(self):
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for at in range(MESSAGES):
            key = at % KEYS
            value = b"%d:%04d" % (key, at)
            self.left[value] = {0: 1, 7: 2, 31: 99}.get(at % 40, 0)
            producer.produce(self.source, value=value, key=b"k%d" % key, partition=key % 3)
        assert producer.flush(60) == 0

    def handle(self, batch):
        with self.lock:
            poison = next((value for value in batch.values if self.left[value] > 0), None)
            if poison is not None:
                self.left[poison] -= len(batch) == 1
                raise PermanentError(f"{poison!r} is not ready")
            self.handled += batch.values

    @contextmanager
    def consumer(self):
        consumer = Consumer(group=self.group, bootstrap_servers=self.servers)
        retries = RetryTopics(delays=["200ms", "400ms"], order="key")
        consumer.batch(self.source, size=10, wait=0.05, retries=retries)(self.handle)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join(60)
            assert not thread.is_alive()

    def letters(self):
        topic = DeadLetterStore(f"{self.source}.dlq", bootstrap_servers=self.servers)
        return [TopicDeadLetter(message=message) for message in topic.read()]

    def wait_until_all_are_somewhere(self):
        deadline = time.monotonic() + 120
        while missing := self.left.keys() - set(self.handled) - {one.message.value for one in self.letters()}:
            assert time.monotonic() < deadline, sorted(missing)[:5]
            time.sleep(0.2)


@pytest.mark.long
def test_order_by_key_holds_on_kafka_while_consumers_join_and_leave(kafka, topic):
    bench = Bench(kafka, topic(partitions=3))
    bench.produce()
    failing = {value for value, left in bench.left.items() if left}
    with bench.consumer():
        while len(bench.handled) < 20:
            time.sleep(0.05)
        with bench.consumer():
            while len(bench.handled) < 60:
                time.sleep(0.05)
        bench.wait_until_all_are_somewhere()
    given_up = {one.message.value for one in bench.letters()}
    assert {value for value, left in bench.left.items() if left > 50} <= given_up <= failing
    for key in range(KEYS):
        mine = [value for value in dict.fromkeys(bench.handled) if value.startswith(b"%d:" % key)]
        assert mine == sorted(mine)
    for one in bench.letters():
        assert one.attempts in {1, 2, 3}
        assert one.origin.topic == bench.source
        assert one.error.startswith("PermanentError")


def test_partitions_of_one_number_go_to_the_same_consumer(kafka, topic):
    bench = Bench(kafka, topic(partitions=3))
    with bench.consumer() as first, bench.consumer() as second:
        deadline = time.monotonic() + 60
        while {len(partitions_of(first)), len(partitions_of(second))} != {3, 6}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for one in (first, second):
            numbers = Counter(state.partition for state in partitions_of(one))
            assert set(numbers.values()) == {3}  # the source and both of its retry topics


def partitions_of(consumer):
    try:
        return consumer.health().partitions
    except ConfigurationError:  # not started yet
        return ()
