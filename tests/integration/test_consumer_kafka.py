"""The consumer where only a real broker will do: rebalances under load, slow handlers, lost partitions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from threading import Event, Lock, Thread

import pytest
from confluent_kafka import Producer

from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.consumer import Batch, Consumer, MemoryMetrics
from oncehouse.messaging.consumer.runner import Runner

PATIENCE_SECONDS = 30.0
PARTITIONS = 6


class Log:
    """What handlers saw, by partition, in the order in which they succeeded."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.by: dict[str, int] = {}

    def note(self, who: str, batch: Batch) -> None:
        with self._lock:
            self.seen[batch.partition] += [int(value or b"") for value in batch.values]
            self.by[who] = self.by.get(who, 0) + len(batch)

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.seen.values()))


class Load:
    """Sends rounds of records to every partition until it is told to end."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic, self._end = topic, Event()
        self.sent = 0
        self._thread = Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._end.is_set():
            for number in range(self.sent, self.sent + 50):
                for partition in range(PARTITIONS):
                    self._producer.produce(self._topic, value=b"%d" % number, partition=partition)
            self.sent += 50
            self._producer.flush(30)
            time.sleep(0.02)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


@pytest.fixture
def start(kafka):
    """`start(name, consumer)` runs it in a thread; all are stopped in the end."""
    threads: dict[str, tuple[Consumer, Thread]] = {}

    def begin(name: str, consumer: Consumer) -> None:
        thread = Thread(target=consumer.run, name=name)
        threads[name] = consumer, thread
        thread.start()

    def end(name: str) -> None:
        consumer, thread = threads.pop(name)
        consumer.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()

    begin.end = end
    yield begin
    for name in list(threads):
        end(name)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="cooperative"),
        pytest.param({"partition.assignment.strategy": "range"}, id="eager"),
        pytest.param({"group.protocol": "consumer"}, id="new protocol"),
    ],
)
def test_three_consumers_come_and_go_under_load_and_nothing_is_lost_repeated_or_out_of_order(
    kafka, topic, start, options
):
    name, group, log = topic(partitions=PARTITIONS), uuid.uuid4().hex, Log()
    if "group.protocol" not in options:
        options = {"heartbeat.interval.ms": "200", **options}

    def make(who: str) -> Consumer:
        consumer = Consumer(bootstrap_servers=kafka.bootstrap_servers, group=group, options=options)

        @consumer.batch(name, size=100, wait=0.02, concurrency=2)
        def handle(batch: Batch) -> None:
            time.sleep(0.001)
            log.note(who, batch)

        return consumer

    load = Load(kafka.bootstrap_servers, name)
    try:
        for who in ("a", "b", "c"):
            start(who, make(who))
            wait_for(lambda who=who: log.by.get(who, 0) > 0, f"{who} gets its share")
        start.end("a")
        start("d", make("d"))
        wait_for(lambda: log.by.get("d", 0) > 0, "d gets its share")
        start.end("b")
        start.end("c")
    finally:
        load.end()
    wait_for(lambda: log.count() >= load.sent * PARTITIONS, "all records")
    assert log.seen == {partition: list(range(load.sent)) for partition in range(PARTITIONS)}


def test_a_handler_slower_than_the_poll_interval_keeps_its_partition_and_a_frozen_poll_loses_it(
    kafka, topic, produce, start, monkeypatch
):
    # The least that the broker allows; both halves wait it out side by side.
    options = {"max.poll.interval.ms": "6000", "session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    slow_topic, lost_topic = topic(), topic()
    for one in (slow_topic, lost_topic):
        produce(one, [b"%d" % number for number in range(20)])
    metrics = {"slow": MemoryMetrics(), "lost": MemoryMetrics()}
    seen: dict[str, list[str]] = {"slow": [], "lost": []}
    freeze, frozen = Event(), Event()

    slow = Consumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group=uuid.uuid4().hex,
        options=options,
        metrics=metrics["slow"],
    )

    @slow.batch(slow_topic, size=10)
    def handle_slowly(batch: Batch) -> None:
        if not seen["slow"]:
            time.sleep(7.5)
        seen["slow"].append(batch.token)

    lost = Consumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group=uuid.uuid4().hex,
        options=options,
        metrics=metrics["lost"],
    )

    @lost.batch(lost_topic, size=10)
    def handle(batch: Batch) -> None:
        seen["lost"].append(batch.token)
        if len(seen["lost"]) == 1:
            freeze.set()
            frozen.wait(PATIENCE_SECONDS)

    step = Runner.step

    def step_or_freeze(self: Runner) -> None:
        if self.core.states and freeze.is_set() and lost_topic in {key[0] for key in self.core.states}:
            freeze.clear()
            time.sleep(7.5)
            frozen.set()
        step(self)

    monkeypatch.setattr(Runner, "step", step_or_freeze)
    start("slow", slow)
    start("lost", lost)
    wait_for(lambda: len(seen["slow"]) == 2, "the slow handler's batches")
    wait_for(lambda: len(seen["lost"]) >= 3, "the lost partition again")
    start.end("slow")
    start.end("lost")
    assert seen["slow"] == [f"{slow_topic}/0/0-9", f"{slow_topic}/0/10-19"]
    assert metrics["slow"].counts["partitions.lost"] == 0
    assert metrics["lost"].counts["partitions.lost"] == 1
    # Nothing was committed of what ran while the partition was lost, and it came again under its token.
    assert seen["lost"][:2] == [f"{lost_topic}/0/0-9"] * 2
    assert seen["lost"][-1] == f"{lost_topic}/0/10-19"


def test_brokers_that_do_not_answer_are_named(monkeypatch):
    monkeypatch.setattr("oncehouse.messaging.consumer.kafka.TIMEOUT_SECONDS", 0.3)
    consumer = Consumer(bootstrap_servers="127.0.0.1:9", group="g")
    consumer.batch("events")(lambda batch: None)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9 did not answer"):
        consumer.run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable.auto.commit": "true"}, "enable.auto.commit cannot be set"),
        ({"no.such.option": "1"}, "the Kafka client refuses them.*no.such.option"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    consumer = Consumer(bootstrap_servers="127.0.0.1:9", group="g", options=options)
    consumer.batch("events")(lambda batch: None)
    with pytest.raises(ConfigurationError, match=words):
        consumer.run()
