"""The consumer over the broker in memory, without threads: what users' own tests see."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

from oncehouse.common.backoff import Backoff
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker, MemoryMetrics
from oncehouse.messaging.consumer.process_workers import pack, unpack
from oncehouse.messaging.failure_policy import FailedMessage, RetryBroker
from oncehouse.messaging.retries.retry_topics import RetryTopics

GROUP = "g"


class ListAside:
    """Dead letters in a list."""

    def __init__(self, failing: int = 0, blocked: Callable[[bytes | None], bool] = lambda _: False) -> None:
        self.put_aside: list[FailedMessage] = []
        self.calls: list[str] = []
        self._failing = failing
        self._behind = blocked

    def open(self, source: str, broker: RetryBroker) -> None:
        self.calls.append(f"open {source}")

    def topics(self, source: str) -> tuple[str, ...]:
        return ()

    def assigned(self, partitions: Any) -> None:
        self.calls += [f"assigned {topic}/{partition}" for topic, partition in partitions]

    def revoked(self, partitions: Any) -> None:
        self.calls += [f"revoked {topic}/{partition}" for topic, partition in partitions]

    def due_at(self, message: Any) -> float | None:
        return None

    def find_blocked(self, messages: Any) -> list[int]:
        return [place for place, message in enumerate(messages) if self._behind(message.key)]

    def divert(self, failures: Any) -> None:
        if self._failing:
            self._failing -= 1
            raise TransientError("the dead letters are out of reach")
        self.put_aside += failures

    def committed(self, messages: Any) -> None:
        self.calls.append(f"settled {messages[0].offset}-{messages[-1].offset}")


def fill(broker: MemoryBroker, count: int, topic: str = "events") -> None:
    for number in range(count):
        broker.send(topic, b"%d" % number)


def test_batches_are_of_one_partition_in_order_and_all_is_committed():
    broker = MemoryBroker({"events": 3})
    consumer = Consumer(group=GROUP, broker=broker)
    seen: list[Batch] = []
    consumer.batch("events", size=4)(seen.append)
    fill(broker, 20)
    consumer.run_until_idle()
    for partition in range(3):
        values = [
            int(value or b"") for batch in seen if batch.partition == partition for value in batch.values
        ]
        assert values == list(range(partition, 20, 3))
    assert [broker.committed(GROUP, "events", partition) for partition in range(3)] == [7, 7, 6]
    assert seen[0].token == "events/0/0-3"
    assert [message.value for message in seen[0]] == seen[0].values


def test_a_first_error_is_retried_with_the_same_token():
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker)
    tokens: list[tuple[str, int]] = []

    @consumer.batch("events", size=10)
    def handle(batch: Batch) -> None:
        tokens.append((batch.token, batch.attempt))
        if len(tokens) == 1:
            raise RuntimeError("not yet")

    fill(broker, 10)
    consumer.run_until_idle()
    assert tokens == [("events/0/0-9", 1), ("events/0/0-9", 2)]
    assert broker.committed(GROUP, "events") == 10


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), ValueError()]
)
def test_whatever_a_handler_raises_is_a_failed_attempt(error):
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker)
    calls = []

    @consumer.batch("events")
    def handle(batch: Batch) -> None:
        calls.append(batch.attempt)
        if len(calls) == 1:
            raise error

    fill(broker, 3)
    consumer.run_until_idle()
    assert calls == [1, 2]
    assert broker.committed(GROUP, "events") == 3


@pytest.mark.parametrize("place", range(8))
def test_poison_is_found_at_each_place_of_a_batch_and_nothing_else_is_put_aside(place):
    broker, policy = MemoryBroker({"events": 1}), ListAside()
    consumer = Consumer(group=GROUP, broker=broker)
    handled: list[bytes | None] = []

    @consumer.batch("events", size=8, retries=policy)
    def handle(batch: Batch) -> None:
        if b"%d" % place in batch.values:
            raise ValueError("poison")
        handled.extend(batch.values)

    fill(broker, 8)
    consumer.run_until_idle()
    assert [failure.message.value for failure in policy.put_aside] == [b"%d" % place]
    assert policy.put_aside[0].error == "ValueError: poison"
    assert handled == [b"%d" % number for number in range(8) if number != place]
    assert broker.committed(GROUP, "events") == 8


def test_a_transient_error_is_never_bisected():
    broker, policy = MemoryBroker({"events": 1}), ListAside()
    consumer = Consumer(group=GROUP, broker=broker)
    sizes: list[int] = []

    @consumer.batch("events", size=8, retries=policy)
    def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        if len(sizes) < 10:
            raise TransientError("the table is away")

    fill(broker, 8)
    consumer.run_until_idle()
    assert sizes == [8] * 10
    assert not policy.put_aside


def test_a_permanent_error_is_bisected_at_once():
    broker, policy = MemoryBroker({"events": 1}), ListAside()
    consumer = Consumer(group=GROUP, broker=broker)
    sizes: list[int] = []

    @consumer.batch("events", size=4, retries=policy)
    def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        if b"3" in batch.values:
            raise PermanentError("refused")

    fill(broker, 4)
    consumer.run_until_idle()
    assert sizes == [4, 2, 2, 1, 1]
    assert len(policy.put_aside) == 1


def test_a_configuration_error_stops_the_partition_and_puts_nothing_aside():
    broker, policy, metrics = MemoryBroker({"events": 1}), ListAside(), MemoryMetrics()
    consumer = Consumer(group=GROUP, broker=broker, metrics=metrics)
    allowed = []

    @consumer.batch("events", size=4, retries=policy, backoff=Backoff(base_seconds=1, longest_seconds=10))
    def handle(batch: Batch) -> None:
        if not allowed:
            raise ConfigurationError("no such table")

    fill(broker, 4)
    consumer.run_until_idle(for_seconds=60)
    assert broker.committed(GROUP, "events") == 0
    assert not policy.put_aside
    assert metrics.counts["partitions.stopped"] == 1
    allowed.append(True)
    consumer.run_until_idle()
    assert broker.committed(GROUP, "events") == 4


def test_a_failed_put_stops_the_partition_until_it_succeeds():
    broker, policy, metrics = MemoryBroker({"events": 2}), ListAside(failing=3), MemoryMetrics()
    consumer = Consumer(group=GROUP, broker=broker, metrics=metrics)

    @consumer.batch("events", size=1, retries=policy)
    def handle(batch: Batch) -> None:
        if batch.values == [b"0"]:
            raise PermanentError("refused")

    fill(broker, 10)
    consumer.run_until_idle()
    assert metrics.counts["partitions.stopped"] == 1
    assert [failure.message.value for failure in policy.put_aside] == [b"0"]
    assert [broker.committed(GROUP, "events", partition) for partition in (0, 1)] == [5, 5]


def test_what_waits_behind_another_is_put_aside_untried_before_the_rest_is_handled():
    broker, policy = MemoryBroker({"events": 1}), ListAside(blocked=lambda key: key == b"held")
    consumer = Consumer(group=GROUP, broker=broker)
    handled: list[bytes | None] = []

    @consumer.batch("events", size=6, retries=policy)
    def handle(batch: Batch) -> None:
        assert len(policy.put_aside) == 3
        assert batch.token == "events/0/0-5"
        handled.extend(batch.values)
        if len(handled) == 3:
            raise TransientError("once more")

    for number in range(6):
        broker.send("events", b"%d" % number, key=b"held" if number % 2 else b"free")
    consumer.run_until_idle()
    assert handled == [b"0", b"2", b"4"] * 2
    assert [(failure.message.value, failure.error) for failure in policy.put_aside] == [
        (b"1", ""),
        (b"3", ""),
        (b"5", ""),
    ]
    assert broker.committed(GROUP, "events") == 6


def test_a_batch_of_which_all_waits_behind_others_never_meets_the_handler():
    broker, policy = MemoryBroker({"events": 1}), ListAside(blocked=lambda _: True)
    consumer = Consumer(group=GROUP, broker=broker)
    seen: list[Batch] = []
    consumer.batch("events", retries=policy)(seen.append)
    fill(broker, 3)
    consumer.run_until_idle()
    assert not seen
    assert len(policy.put_aside) == 3
    assert broker.committed(GROUP, "events") == 3


def test_an_aside_hears_of_partitions_and_of_what_is_settled():
    broker, policy = MemoryBroker({"events": 1}), ListAside()
    consumer = Consumer(group=GROUP, broker=broker)
    consumer.batch("events", size=2, retries=policy)(lambda batch: None)
    fill(broker, 4)
    consumer.run_until_idle()
    assert policy.calls[:4] == ["open events", "assigned events/0", "settled 0-1", "settled 2-3"]


def test_async_handlers_are_awaited():
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker)
    seen: list[str] = []

    @consumer.batch("events")
    async def handle(batch: Batch) -> None:
        seen.append(batch.token)

    fill(broker, 3)
    consumer.run_until_idle()
    assert seen == ["events/0/0-2"]


def test_a_missing_topic_is_named():
    consumer = Consumer(group=GROUP, broker=MemoryBroker())
    consumer.batch("nowhere")(lambda batch: None)
    with pytest.raises(ConfigurationError, match="no topic nowhere"):
        consumer.run_until_idle()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "size: 0 is not a whole number"),
        ({"bytes": "lots"}, "bytes: 'lots' is not a size"),
        ({"wait": "soon"}, "wait: 'soon' is not a duration"),
        ({"wait": -1}, "wait: -1 is not a duration"),
        ({"order": "key"}, "order: 'key' is not known"),
        ({"isolation": "vm"}, "isolation: 'vm' is not known"),
        ({"concurrency": True}, "concurrency: True is not a whole number"),
    ],
)
def test_wrong_settings_are_told_at_once(wrong, words):
    consumer = Consumer(group=GROUP, broker=MemoryBroker({"events": 1}))
    with pytest.raises(ConfigurationError, match=words):
        consumer.batch("events", **wrong)


def test_wrong_consumers_are_told_at_once():
    with pytest.raises(ConfigurationError, match="bootstrap_servers, or a broker"):
        Consumer(group=GROUP)
    with pytest.raises(ConfigurationError, match="needs a group name"):
        Consumer(group="", broker=MemoryBroker())
    with pytest.raises(ConfigurationError, match="not a server"):
        Consumer(group=GROUP, bootstrap_servers="nonsense")
    consumer = Consumer(group=GROUP, broker=MemoryBroker({"events": 1}))
    with pytest.raises(ConfigurationError, match="no handlers"):
        consumer.run()
    with pytest.raises(ConfigurationError, match="has not been started"):
        consumer.report()
    consumer.batch("events")(lambda batch: None)
    with pytest.raises(ConfigurationError, match="has a handler already"):
        consumer.batch("events")(lambda batch: None)
    with pytest.raises(ConfigurationError, match="not a topic name"):
        consumer.batch("no topic")


class WordlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_even_say_what_it_is_fails_its_attempt():
    broker, policy = MemoryBroker({"events": 1}), ListAside()
    consumer = Consumer(group=GROUP, broker=broker)

    @consumer.batch("events", size=1, attempts=1, retries=policy)
    def handle(batch: Batch) -> None:
        if batch.values == [b"0"]:
            raise WordlessError

    fill(broker, 2)
    consumer.run_until_idle()
    assert [failure.error for failure in policy.put_aside] == ["WordlessError: (its text cannot be read)"]
    assert broker.committed(GROUP, "events") == 2


class BrokenMetrics:
    def increment(self, name: str, count: float = 1, **tags: str | int) -> None:
        raise OSError("no route to the metrics")

    gauge = timing = increment


def test_metrics_that_raise_cost_nobody_a_partition(caplog):
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker, metrics=BrokenMetrics())
    consumer.batch("events", size=1)(lambda batch: None)
    fill(broker, 2)
    consumer.run_until_idle()
    assert broker.committed(GROUP, "events") == 2
    assert "no route to the metrics" in caplog.text


def test_offsets_that_kafka_deleted_unread_are_counted():
    broker, metrics = MemoryBroker({"events": 1}), MemoryMetrics()
    consumer = Consumer(group=GROUP, broker=broker, metrics=metrics)
    consumer.batch("events")(lambda batch: None)
    fill(broker, 2)
    consumer.run_until_idle()
    fill(broker, 8)
    broker.delete_before("events", 0, 5)
    consumer.run_until_idle()
    assert metrics.counts["records.gone"] == 3
    assert broker.committed(GROUP, "events") == 10


def test_offsets_that_kafka_deletes_before_a_slow_consumer_comes_to_them_are_counted(caplog):
    broker, metrics = MemoryBroker({"events": 1}), MemoryMetrics()
    consumer = Consumer(group=GROUP, broker=broker, metrics=metrics)

    @consumer.batch("events", size=2)
    def handle(batch: Batch) -> None:
        if batch.first_offset == 0:
            fill(broker, 8)
            broker.delete_before("events", 0, 5)

    fill(broker, 2)
    consumer.run_until_idle()
    assert metrics.counts["records.gone"] == 3
    assert "was to go on at offset 2, but Kafka has deleted all before 5" in caplog.text
    assert broker.committed(GROUP, "events") == 10


def test_the_report_says_where_time_went():
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker)

    @consumer.batch("events", size=5)
    def handle(batch: Batch) -> None:
        broker.clock.advance(2.0)  # type: ignore[attr-defined]
        if batch.attempt == 1:
            raise TransientError("later")

    fill(broker, 5)
    consumer.run_until_idle()
    report = consumer.report()
    assert (report.records, report.batches, report.handler_seconds) == (5, 1, 4.0)
    assert report.backoff_seconds > 0
    assert "handler" in str(report)


def test_a_rebalance_waits_for_a_handler_no_longer_than_it_may_and_the_batch_comes_again_under_its_token():
    broker = MemoryBroker({"events": 2}, clock=SystemClock())
    tokens: list[str] = []
    blocked, go = Event(), Event()

    def make(*, blocks: bool) -> Consumer:
        consumer = Consumer(group=GROUP, broker=broker, revoke=0.05)

        @consumer.batch("events", size=1)
        def handle(batch: Batch) -> None:
            tokens.append(batch.token)
            if blocks:
                blocked.set()
                go.wait(30)

        return consumer

    broker.send("events", b"x", partition=1)
    consumers = make(blocks=True), make(blocks=False)
    threads = [Thread(target=consumer.run) for consumer in consumers]
    threads[0].start()
    assert blocked.wait(30)
    threads[1].start()
    deadline = time.monotonic() + 30
    while broker.committed(GROUP, "events", 1) != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    go.set()
    for consumer, thread in zip(consumers, threads, strict=True):
        consumer.stop()
        thread.join(30)
    assert broker.committed(GROUP, "events", 1) == 1
    assert tokens == ["events/1/0-0"] * 2


def test_adaptive_batches_shrink_for_a_slow_handler_and_all_is_handled():
    broker, metrics = MemoryBroker({"events": 1}), MemoryMetrics()
    consumer = Consumer(group=GROUP, broker=broker, metrics=metrics)
    sizes: list[int] = []

    @consumer.batch("events", size=500, adaptive=True, target="1s")
    def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        broker.clock.advance(0.01 * len(batch))  # type: ignore[attr-defined]

    fill(broker, 5_000)
    consumer.run_until_idle()
    assert sum(sizes) == 5_000
    assert sizes[0] == 500
    assert sizes[-2] < 300


def test_records_are_free_when_their_batch_is_done_without_the_cycle_collector():
    broker = MemoryBroker({"events": 1})
    consumer = Consumer(group=GROUP, broker=broker)
    alive: list[weakref.ref[Batch]] = []
    consumer.batch("events", size=2)(lambda batch: alive.append(weakref.ref(batch)))
    fill(broker, 6)
    gc.disable()
    try:
        consumer.run_until_idle()
        assert [found() for found in alive] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("handler", [lambda: None, lambda batch, session: None, "store"])
def test_a_handler_that_cannot_take_a_batch_is_refused_when_it_is_declared(handler):
    consumer = Consumer(broker=MemoryBroker({"events": 1}), group="g")
    with pytest.raises(ConfigurationError, match=r"topic events: .*one batch"):
        consumer.batch("events")(handler)


@pytest.mark.parametrize("retries", [RetryTopics, "events.dlq"])
def test_retries_that_are_none_are_refused(retries):
    consumer = Consumer(broker=MemoryBroker({"events": 1}), group="g")
    with pytest.raises(ConfigurationError, match=r"give RetryTopics\(delays"):
        consumer.batch("events", retries=retries)


# Tokens that name the group.


def read_insert_tokens(broker: MemoryBroker, group: str, *, fails: bool = False) -> list[str]:
    tokens: list[str] = []
    consumer = Consumer(group=group, broker=broker)

    @consumer.batch("events", size=5)
    def handle(batch: Batch) -> None:
        tokens.append(batch.insert_token)
        if fails:
            raise TransientError("away")

    if fails:
        consumer.run_until_idle(for_seconds=0.01)
    else:
        consumer.run_until_idle()
    return tokens


def test_two_groups_have_tokens_of_their_own_which_come_again():
    broker = MemoryBroker({"events": 1})
    fill(broker, 10)
    failed = read_insert_tokens(broker, "a", fails=True)
    assert set(failed) == {"a/events/0/0-4"}
    assert read_insert_tokens(broker, "a") == ["a/events/0/0-4", "a/events/0/5-9"]
    assert read_insert_tokens(broker, "b") == ["b/events/0/0-4", "b/events/0/5-9"]
    fill(broker, 10)
    assert read_insert_tokens(broker, "a") == ["a/events/0/10-14", "a/events/0/15-19"]


def test_a_partition_that_a_group_began_with_an_older_version_keeps_its_tokens():
    broker = MemoryBroker({"events": 1})
    fill(broker, 10)
    broker._group("a").committed["events", 0] = (0, "oncehouse:2,3")  # as 0.1.0 wrote it
    assert read_insert_tokens(broker, "a") == ["events/0/0-2", "events/0/3-5", "events/0/6-9"]
    fill(broker, 10)
    assert read_insert_tokens(broker, "a") == ["events/0/10-14", "events/0/15-19"]


def test_a_batch_in_a_process_of_its_own_has_the_token_of_its_group():
    broker = MemoryBroker({"events": 1})
    fill(broker, 5)
    seen: list[Batch] = []
    consumer = Consumer(group="a", broker=broker)
    consumer.batch("events")(seen.append)
    consumer.run_until_idle()
    packed, told = pack(seen[0], {"sent before": 1}), []
    batch = unpack(packed, lambda *change: told.append(change))
    assert batch.insert_token == seen[0].insert_token == "a/events/0/0-4"
    assert batch.sent is not None
    assert batch.sent.find("sent before") == 1
    batch.sent.keep("sent now", 2)
    batch.sent.drop("sent before")
    batch.sent.drop("never sent")
    assert told == [("sent now", 2), ("sent before", None)]
    assert seen[0].sent is None, "a handler in the consumer's process knows by itself"
