"""What a consumer promises, on Kafka and on the broker in memory alike: users' tests in memory mean something."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from oncehouse.common.backoff import Backoff
from oncehouse.errors import ConfigurationError
from oncehouse.messaging import DeadLetterTopic
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker

PATIENCE_SECONDS = 60.0


class Memory:
    def __init__(self) -> None:
        self.broker = MemoryBroker(clock=SystemClock())

    def topic(self, partitions: int = 1) -> str:
        name = f"events-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(name, partitions)
        return name

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        for value in values:
            self.broker.send(topic, value, partition=partition)

    def consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(group=group, broker=self.broker, **settings)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        return self.broker.committed(group, topic, partition)


class Kafka:
    def __init__(self, servers: str, topic: Callable[..., str], produce: Callable[..., None]) -> None:
        self._servers, self._topic, self.send = servers, topic, produce

    def topic(self, partitions: int = 1) -> str:
        return self._topic(partitions=partitions)

    def consumer(self, group: str, **settings: Any) -> Consumer:
        # Members hear of a rebalance by their heartbeats.
        options = {"heartbeat.interval.ms": "200"}
        return Consumer(group=group, bootstrap_servers=self._servers, options=options, **settings)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        reader = KafkaConsumer({"bootstrap.servers": self._servers, "group.id": group, "log_level": 0})
        try:
            (found,) = reader.committed([TopicPartition(topic, partition)], timeout=20)
        finally:
            reader.close()
        return found.offset if found.offset >= 0 else None


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.servers)])
def setup(request) -> Memory | Kafka:
    if request.param == "memory":
        return Memory()
    kafka, topic, produce = map(request.getfixturevalue, ("kafka", "topic", "produce"))
    return Kafka(kafka.bootstrap_servers, topic, produce)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@contextmanager
def running(*consumers: Consumer) -> Iterator[None]:
    threads = [Thread(target=consumer.run) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "the consumer does not stop"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def test_records_are_handled_in_order_and_committed_and_a_second_run_goes_on(setup, group):
    topic = setup.topic(partitions=2)
    for partition in range(2):
        setup.send(topic, numbers(0, 50), partition=partition)
    seen: dict[int, list[bytes | None]] = {0: [], 1: []}
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=20, wait=0.05)
    def handle(batch: Batch) -> None:
        seen[batch.partition] += batch.values

    with running(consumer):
        wait_for(lambda: len(seen[0]) == len(seen[1]) == 50, "all records")
    assert seen == {0: numbers(0, 50), 1: numbers(0, 50)}
    assert [setup.committed(group, topic, partition) for partition in range(2)] == [50, 50]
    setup.send(topic, numbers(50, 60))
    with running(consumer):
        wait_for(lambda: len(seen[0]) == 60, "the records of the second run")
    assert seen[0] == numbers(0, 60)


def test_a_subscription_to_a_missing_topic_fails_with_advice(setup, group):
    consumer = setup.consumer(group)
    consumer.batch("nowhere-at-all")(lambda batch: None)
    with pytest.raises(ConfigurationError, match=r"no topic nowhere-at-all .*create it first"):
        consumer.run()


def test_a_panic_and_a_first_error_are_retried_and_the_consumer_goes_on(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 3))
    attempts: list[int] = []
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=3, backoff=Backoff(base_seconds=0.01, longest_seconds=0.01))
    def handle(batch: Batch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) == 1:
            raise SystemExit(1)
        if len(attempts) == 2:
            raise ValueError("first error")

    with running(consumer):
        wait_for(lambda: len(attempts) == 3, "the third attempt")
    assert attempts == [1, 2, 3]
    assert setup.committed(group, topic) == 3


def test_a_stop_ends_a_long_back_off_at_once_and_commits_nothing_of_it(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 3))
    failed = Event()
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=3, backoff=Backoff(base_seconds=10**6, longest_seconds=10**6))
    def handle(batch: Batch) -> None:
        failed.set()
        raise ValueError("never")

    with running(consumer):
        assert failed.wait(PATIENCE_SECONDS)
    assert setup.committed(group, topic) in {None, 0}


def test_a_stop_lets_what_runs_finish_and_commits_it(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 6))
    started, go = Event(), Event()
    seen: list[bytes | None] = []
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=3)
    def handle(batch: Batch) -> None:
        started.set()
        go.wait(PATIENCE_SECONDS)
        seen.extend(batch.values)

    with running(consumer):
        assert started.wait(PATIENCE_SECONDS)
        consumer.stop()
        go.set()
    assert seen
    assert setup.committed(group, topic) == len(seen)


def test_what_is_over_time_is_given_up_and_comes_again(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 3))
    started, go, told = Event(), Event(), Event()
    tokens: list[str] = []
    consumer = setup.consumer(group, drain=0.1)

    @consumer.batch(topic, size=3)
    def handle(batch: Batch) -> None:
        tokens.append(batch.token)
        started.set()
        go.wait(PATIENCE_SECONDS)
        if batch.cancelled:
            told.set()

    with running(consumer):
        assert started.wait(PATIENCE_SECONDS)
    assert setup.committed(group, topic) == 0
    go.set()
    assert told.wait(PATIENCE_SECONDS)
    with running(consumer):
        wait_for(lambda: len(tokens) == 2, "the batch again")
    assert tokens == [f"{topic}/0/0-2"] * 2


def test_async_handlers_run_in_the_callers_loop_and_cancellation_drains(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 6))
    seen: list[bytes | None] = []
    loops: set[Any] = set()
    consumer = setup.consumer(group)
    all_seen = asyncio.Event()

    @consumer.batch(topic, size=3)
    async def handle(batch: Batch) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        seen.extend(batch.values)
        if len(seen) == 6:
            all_seen.set()

    async def scenario() -> None:
        task = asyncio.create_task(consumer.run_async())
        await all_seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
    assert setup.committed(group, topic) == 6


def test_async_handlers_work_in_a_blocking_run_too(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 4))
    seen: list[bytes | None] = []
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=2)
    async def handle(batch: Batch) -> None:
        if not seen and batch.attempt == 1:
            raise KeyboardInterrupt
        seen.extend(batch.values)

    with running(consumer):
        wait_for(lambda: len(seen) == 4, "all records")
    assert setup.committed(group, topic) == 4


def test_members_that_come_and_go_share_the_work_without_repeats(setup, group):
    topic, lock = setup.topic(partitions=4), Lock()
    seen: dict[int, list[int]] = {partition: [] for partition in range(4)}
    by: list[int] = [0, 0]

    def make(which: int) -> Consumer:
        consumer = setup.consumer(group)

        @consumer.batch(topic, size=20, wait=0.02)
        def handle(batch: Batch) -> None:
            time.sleep(0.002)
            with lock:
                seen[batch.partition] += [int(value or b"") for value in batch.values]
                by[which] += len(batch)

        return consumer

    def send(start: int, end: int) -> None:
        for partition in range(4):
            setup.send(topic, numbers(start, end), partition=partition)

    first, second = make(0), make(1)
    with running(first):
        send(0, 100)
        with running(second):
            for start in range(100, 10_000, 100):
                send(start, start + 100)
                if by[1]:
                    break
                time.sleep(0.1)
        end = start + 200
        send(end - 100, end)
        wait_for(lambda: all(len(values) >= end for values in seen.values()), "all records")
    assert seen == {partition: list(range(end)) for partition in range(4)}
    assert all(by)


def test_dead_letters_of_a_bisected_batch(setup, group):
    topic = setup.topic()
    setup.send(topic, numbers(0, 8))
    seen: list[bytes | None] = []
    consumer = setup.consumer(group)

    @consumer.batch(topic, size=8, retries=DeadLetterTopic(), attempts=1)
    def handle(batch: Batch) -> None:
        if b"5" in batch.values:
            raise ValueError("poison")
        seen.extend(batch.values)

    letters = setup.consumer(f"{group}-letters")
    found: list[bytes | None] = []
    with running(consumer):
        wait_for(lambda: len(seen) == 7, "the others")
    letters.batch(f"{topic}.dlq", wait=0.05)(lambda batch: found.extend(batch.values))
    with running(letters):
        wait_for(lambda: bool(found), "the dead letter")
    assert found == [b"5"]
    assert setup.committed(group, topic) == 8
