"""The consumer where only a real broker will do: rebalances under load, slow handlers, lost partitions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from threading import Event

import pytest

from consumer_load import PARTITIONS, Running, come_and_go_under_load, running, wait_for
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.consumer import Batch, Consumer, MemoryMetrics
from oncehouse.messaging.consumer.runner import ConsumerRunner


@pytest.fixture
def consumers() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_three_consumers_come_and_go_under_load_and_nothing_is_lost_repeated_or_out_of_order(
    kafka, topic, assignor
):
    options = {"heartbeat.interval.ms": "200", "partition.assignment.strategy": assignor}
    come_and_go_under_load(kafka.bootstrap_servers, topic(partitions=PARTITIONS), options)


def test_a_handler_slower_than_the_poll_interval_keeps_its_partition_and_a_frozen_poll_loses_it(
    kafka, topic, produce, consumers, monkeypatch
):
    # The least that the broker allows; both halves wait it out side by side.
    options = {"max.poll.interval.ms": "6000", "session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    slow_topic, lost_topic = topic(), topic()
    for one in (slow_topic, lost_topic):
        produce(one, [b"%d" % number for number in range(20)])
    metrics = {"slow": MemoryMetrics(), "lost": MemoryMetrics()}
    seen: dict[str, list[str]] = {"slow": [], "lost": []}
    freeze = Event()

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
            wait_for(lambda: metrics["lost"].counts["partitions.lost"] == 1, "the loss")

    step = ConsumerRunner.step

    def step_or_freeze(self: ConsumerRunner) -> None:
        if (
            self.state_machine.states
            and freeze.is_set()
            and lost_topic in {key[0] for key in self.state_machine.states}
        ):
            freeze.clear()
            time.sleep(7.5)
        step(self)

    monkeypatch.setattr(ConsumerRunner, "step", step_or_freeze)
    consumers.begin("slow", slow)
    consumers.begin("lost", lost)
    wait_for(lambda: len(seen["slow"]) == 2, "the slow handler's batches")
    wait_for(lambda: len(seen["lost"]) == 3, "the lost partition again")
    consumers.end("slow")
    consumers.end("lost")
    assert seen["slow"] == [f"{slow_topic}/0/0-9", f"{slow_topic}/0/10-19"]
    assert metrics["slow"].counts["partitions.lost"] == 0
    assert metrics["lost"].counts["partitions.lost"] == 1
    # Nothing was committed of what ran while the partition was lost, and it came again under its token.
    assert seen["lost"] == [f"{lost_topic}/0/0-9", f"{lost_topic}/0/0-9", f"{lost_topic}/0/10-19"]


def test_brokers_that_do_not_answer_are_named(monkeypatch):
    monkeypatch.setattr("oncehouse.messaging.consumer.kafka_client.TIMEOUT_SECONDS", 0.3)
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
