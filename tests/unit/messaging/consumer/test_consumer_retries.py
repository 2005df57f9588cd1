"""Consumer and retry topics together, over the broker in memory: delays, order by key, dead letters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging import Consumer, DeadLetterTopic, RetryTopics
from oncehouse.messaging.clock import ManualClock
from oncehouse.messaging.consumer import Batch, MemoryBroker
from oncehouse.messaging.message import ATTEMPT, ERROR, ORIGIN

START = ManualClock().now()


def consume(broker: MemoryBroker, handler: Callable[[Batch], None], policy, *, size: int = 10) -> None:
    consumer = Consumer(group="g", broker=broker)
    consumer.batch("orders", size=size, wait=0.1, retries=policy)(handler)
    consumer.run_until_idle()


def test_a_poison_message_of_a_batch_waits_growing_delays_and_ends_in_the_dead_letters_while_others_go_on():
    broker = MemoryBroker({"orders": 1})
    tried: list[float] = []
    handled: list[bytes | None] = []

    def handler(batch: Batch) -> None:
        if b"bad" in batch.values:
            if len(batch) == 1:
                tried.append(round(broker.clock.now() - START, 1))
            raise PermanentError("bad")
        handled.extend(batch.values)

    for value in (b"a", b"bad", b"b", b"c"):
        broker.send("orders", value, key=value)
    consume(broker, handler, RetryTopics(delays=["10s", "1m"]))
    assert handled == [b"a", b"b", b"c"]
    first, second, third = tried
    assert 10 <= second - first < 13
    assert 60 <= third - second < 63
    (letter,) = broker.messages("orders.dlq")
    assert (letter.key, letter.value) == (b"bad", b"bad")
    assert (letter.header(ORIGIN), letter.header(ATTEMPT)) == (b"orders/0/1", b"3")
    assert letter.header(ERROR) == b"PermanentError: bad"


def test_dead_letters_alone_take_the_one_record_at_once():
    broker = MemoryBroker({"orders": 1})
    handled: list[bytes | None] = []

    def handler(batch: Batch) -> None:
        if b"bad" in batch.values:
            raise PermanentError("bad")
        handled.extend(batch.values)

    for value in (b"a", b"bad", b"b"):
        broker.send("orders", value)
    consume(broker, handler, DeadLetterTopic())
    assert handled == [b"a", b"b"]
    assert [letter.value for letter in broker.messages("orders.dlq")] == [b"bad"]


def test_a_table_that_no_batch_fits_makes_no_dead_letters():
    broker = MemoryBroker({"orders": 1})

    def handler(batch: Batch) -> None:
        raise ConfigurationError("no such column")

    broker.send("orders", b"a")
    consumer = Consumer(group="g", broker=broker)
    consumer.batch("orders", retries=DeadLetterTopic())(handler)
    consumer.run_until_idle(for_seconds=60)
    assert list(broker.messages("orders.dlq")) == []
    assert broker.committed("g", "orders", 0) in {0, None}


@settings(max_examples=30, deadline=None)
@given(
    messages=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2, 9])), max_size=25),
    size=st.integers(1, 8),
)
def test_by_key_messages_are_handled_in_order_whatever_fails(messages, size):
    broker = MemoryBroker({"orders": 2})
    left: dict[bytes, int] = {}
    for at, (key, failures) in enumerate(messages):
        value = b"%d:%03d" % (key, at)
        left[value] = failures
        broker.send("orders", value, key=b"k%d" % key)
    handled: list[bytes] = []

    def handler(batch: Batch) -> None:
        values = [value or b"" for value in batch.values]
        poison = next((value for value in values if left[value] > 0), None)
        if poison is not None:
            left[poison] -= len(values) == 1
            raise PermanentError("not yet")
        handled.extend(values)

    consume(broker, handler, RetryTopics(delays=["5s", "20s"], order="key"), size=size)
    letters = {letter.value for letter in broker.messages("orders.dlq")}
    assert sorted([*handled, *letters]) == sorted(left)
    for key in range(3):
        mine = [value for value in handled if value.startswith(b"%d:" % key)]
        assert mine == sorted(mine)


def test_without_order_the_same_stream_is_handled_out_of_order():
    """The seeded defect that the test above is there to catch."""
    broker = MemoryBroker({"orders": 1})
    left = {b"1": 1, b"2": 0}
    handled: list[bytes | None] = []

    def handler(batch: Batch) -> None:
        (value,) = batch.values
        if left[value or b""]:
            left[value or b""] -= 1
            raise PermanentError("not yet")
        handled.append(value)

    for value in left:
        broker.send("orders", value, key=b"k")
    consume(broker, handler, RetryTopics(delays=["5s"]), size=1)
    assert handled == [b"2", b"1"]


def test_two_groups_on_one_topic_retry_only_their_own_failures():
    broker = MemoryBroker({"orders": 1})
    broker.send("orders", b"x")
    seen: list[str] = []

    def failing(batch: Batch) -> None:
        seen.append(batch.topic)
        raise PermanentError("no")

    for group in ("billing", "mail"):
        consumer = Consumer(group=group, broker=broker)
        consumer.batch("orders", retries=RetryTopics(delays=["1s"], base=f"orders.{group}"))(failing)
        consumer.run_until_idle()
    assert seen == ["orders", "orders.billing.retry.1", "orders", "orders.mail.retry.1"]


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_restart_goes_on_where_the_waits_were(order):
    broker = MemoryBroker({"orders": 1})
    handled: list[bytes | None] = []
    fails = [True]

    def handler(batch: Batch) -> None:
        if b"1" in batch.values and fails[0]:
            raise PermanentError("not yet")
        handled.extend(batch.values)

    broker.send("orders", b"1", key=b"k")
    first = Consumer(group="g", broker=broker)
    first.batch("orders", size=1, wait=0.1, retries=RetryTopics(delays=["1h"], order=order))(handler)
    first.run_until_idle(for_seconds=60)
    assert handled == []
    fails[0] = False
    broker.send("orders", b"2", key=b"k")
    second = Consumer(group="g", broker=broker)
    second.batch("orders", size=1, wait=0.1, retries=RetryTopics(delays=["1h"], order=order))(handler)
    second.run_until_idle(for_seconds=3 * 3600)
    assert handled == ([b"1", b"2"] if order == "key" else [b"2", b"1"])


@pytest.mark.parametrize("base", [None, "billing"])
def test_messages_of_retry_topics_say_which_topic_they_belong_to(base):
    broker = MemoryBroker({"orders": 1})
    met: list[tuple[str, str, str]] = []

    def handler(batch: Batch) -> None:
        met.extend((one.topic, one.source_topic, one.message_id) for one in batch)
        assert [batch[0], *batch[1:]] == list(batch)
        raise PermanentError("no")

    broker.send("orders", b"v", key=b"k")
    consume(broker, handler, RetryTopics(delays=["10s"], base=base))
    assert met == [
        ("orders", "orders", "orders/0/0"),
        (f"{base or 'orders'}.retry.1", "orders", "orders/0/0"),
    ]
