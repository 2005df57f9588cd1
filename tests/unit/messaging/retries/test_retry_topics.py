"""Retry topics: where failed messages go, what they carry, and order by key whatever crashes or moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.failure_policy import FailedMessage
from oncehouse.messaging.message import (
    ATTEMPT,
    ERROR,
    FAILED_AT,
    MESSAGE_ID,
    NOT_BEFORE,
    ORIGIN,
    ORIGIN_TIME,
    Message,
    find_first_position,
)
from oncehouse.messaging.retries.kafka_retry_broker import copy_settings
from oncehouse.messaging.retries.retry_routing import due_at, route_failed
from oncehouse.messaging.retries.retry_topics import DeadLetterTopic, RetryTopics, make_retry_route
from retry_simulation import SOURCE, MemoryRetryBroker, RetrySimulation, settle_early

LADDER = make_retry_route("orders", delays_seconds=(10.0, 60.0))
NOW = 1_700_000_000.0


def message(topic="orders", *, offset=7, key=b"k", headers=(), timestamp_ms=1_600_000_000_000):
    return Message(
        topic=topic,
        partition=3,
        offset=offset,
        key=key,
        value=b"v",
        headers=headers,
        timestamp_ms=timestamp_ms,
    )


def fail(failed, error="ValueError: no", at=NOW):
    return route_failed(FailedMessage(message=failed, error=error, failed_at=at), LADDER)


def as_message(placement, offset=0):
    return Message(
        topic=placement.topic,
        partition=placement.partition,
        offset=offset,
        key=placement.key,
        value=placement.value,
        headers=placement.headers,
        timestamp_ms=round(NOW * 1000),
    )


def test_a_failed_message_climbs_with_key_value_partition_and_its_own_headers_then_goes_to_the_dead_letters():
    own = (("trace", b"1"), (MESSAGE_ID, b"id"), ("trace", None))
    first = fail(message(headers=own))
    assert (first.topic, first.partition, first.key, first.value) == ("orders.retry.1", 3, b"k", b"v")
    assert first.headers == (
        *own,
        (ORIGIN, b"orders/3/7"),
        (ORIGIN_TIME, b"1600000000000"),
        (ATTEMPT, b"1"),
        (ERROR, b"ValueError: no"),
        (FAILED_AT, b"1700000000000"),
        (NOT_BEFORE, b"1700000010000"),
    )
    second = fail(as_message(first), "KeyError: x", NOW + 10)
    assert second.topic == "orders.retry.2"
    last = fail(as_message(second), "KeyError: y", NOW + 70)
    assert last.topic == "orders.dlq"
    assert last.headers == (
        *own,
        (ORIGIN, b"orders/3/7"),
        (ORIGIN_TIME, b"1600000000000"),
        (ATTEMPT, b"3"),
        (ERROR, b"KeyError: y"),
        (FAILED_AT, b"1700000070000"),
    )
    assert as_message(last).message_id == "id"


def test_a_message_that_waits_behind_another_is_not_counted_as_an_attempt():
    climbed = fail(as_message(fail(message())), error="", at=NOW + 10)
    assert climbed.topic == "orders.retry.2"
    carried = dict(climbed.headers)
    assert (carried[ATTEMPT], carried[ERROR], carried[FAILED_AT]) == (
        b"1",
        b"ValueError: no",
        b"1700000000000",
    )
    assert carried[NOT_BEFORE] == b"1700000070000"


def test_forged_headers_do_not_travel_along():
    forged = (
        (ORIGIN, b"payments/0/1"),
        (ATTEMPT, b"99"),
        (NOT_BEFORE, b"9999999999999"),
        (ORIGIN_TIME, b"x"),
    )
    carried = dict(fail(message(headers=forged)).headers)
    assert (carried[ORIGIN], carried[NOT_BEFORE], carried[ORIGIN_TIME]) == (
        b"orders/3/7",
        b"1700000010000",
        b"1600000000000",
    )
    assert due_at(message(headers=forged), LADDER) is None


def test_a_replayed_message_that_fails_again_is_known_by_its_new_place():
    replayed = message(offset=900, headers=((ORIGIN, b"orders/3/7"),))
    assert str(find_first_position(replayed, "orders")) == "orders/3/900"
    elsewhere = message(offset=900, headers=((ORIGIN, b"orders/2/7"),))
    assert str(find_first_position(elsewhere, "orders")) == "orders/3/900"


@pytest.mark.parametrize("claimed", [b"99999999999999999", b"-1", b"soon", b"\xff", b"", "\u0661".encode()])
def test_no_header_holds_a_partition_for_longer_than_its_delay(claimed):
    due = due_at(message("orders.retry.1", headers=((NOT_BEFORE, claimed),)), LADDER)
    assert due is None or due <= 1_600_000_010


def test_a_long_error_is_cut_where_a_character_ends():
    cut = dict(fail(message(), "é" * 5000).headers)[ERROR]
    assert len(cut) <= 1000
    assert cut.decode().endswith("é…")


@given(st.binary(), st.lists(st.tuples(st.sampled_from([ORIGIN, ATTEMPT, ERROR, NOT_BEFORE]), st.binary())))
def test_any_headers_are_survived_on_any_level(key, headers):
    for topic in ("orders", "orders.retry.1", "orders.retry.2"):
        one = message(topic, key=key, headers=tuple(headers))
        due_at(one, LADDER)
        assert fail(one).partition == 3


def broker(**counts):
    return MemoryRetryBroker(topics={name: [[] for _ in range(count)] for name, count in counts.items()})


def test_missing_topics_are_made_with_the_partitions_of_the_source():
    brokers = broker(orders=3)
    RetryTopics(delays=["1s", "2s"]).open("orders", brokers)
    assert {name: len(logs) for name, logs in brokers.topics.items()} == {
        "orders": 3,
        "orders.retry.1": 3,
        "orders.retry.2": 3,
        "orders.dlq": 3,
    }


def test_two_groups_on_one_topic_have_topics_of_their_own():
    brokers = broker(orders=1)
    policy = RetryTopics(delays=[1], base="orders.billing")
    policy.open("orders", brokers)
    assert policy.topics("orders") == ("orders.billing.retry.1",)
    assert "orders.billing.dlq" in brokers.topics


@pytest.mark.parametrize(
    ("make", "topics", "said"),
    [
        (lambda: RetryTopics(delays=[1]), {}, "there is no topic orders"),
        (lambda: RetryTopics(delays=[1]), {"orders": 3, "orders.retry.1": 2}, "--partitions 3"),
        (
            lambda: RetryTopics(delays=[1], order="key"),
            {"orders": 3, "orders.retry.1": 4},
            "Delete the topic",
        ),
        (DeadLetterTopic, {"orders": 3, "orders.dlq": 1}, "orders.dlq has 1 partitions"),
        (lambda: RetryTopics(base="no/slash"), {"orders": 3}, "not a topic name"),
    ],
)
def test_topics_that_do_not_fit_are_refused_with_advice(make, topics, said):
    with pytest.raises(ConfigurationError, match=said):
        make().open("orders", broker(**topics))


@pytest.mark.parametrize("make", [lambda: RetryTopics(delays=[1]), DeadLetterTopic])
def test_levels_that_are_taken_out_while_messages_stand_there_are_refused(make):
    brokers = broker(orders=2)
    RetryTopics(delays=[1, 2, 3]).open("orders", brokers)
    make().open("orders", brokers)
    brokers.append("orders.retry.3", 1, b"k", b"v")
    with pytest.raises(
        ConfigurationError, match=r"orders\.retry\.3 holds messages that no consumer would read"
    ):
        make().open("orders", brokers)
    brokers.committed["orders.retry.3", 1] = 1
    make().open("orders", brokers)


@pytest.mark.parametrize(
    ("source", "copied"),
    [
        (
            {"retention.ms": "-1", "min.insync.replicas": "2"},
            {"retention.ms": "-1", "min.insync.replicas": "2"},
        ),
        ({"retention.ms": "60000"}, {"retention.ms": "604800000"}),
        ({"retention.ms": "2592000000"}, {"retention.ms": "2592000000"}),
    ],
)
def test_topics_beside_a_source_are_as_durable_and_keep_messages_no_shorter(source, copied):
    assert copy_settings(source) == copied | {"retention.bytes": "-1"}
    assert copy_settings({}) == {}
    assert copy_settings({"max.message.bytes": "1000"}) == {"max.message.bytes": "66536"}


def test_more_partitions_than_the_source_are_harmless_without_order():
    RetryTopics(delays=[1]).open("orders", broker(orders=3, **{"orders.retry.1": 4, "orders.dlq": 9}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delays": []}, "DeadLetterTopic"),
        ({"delays": ["soon"]}, "is not a duration"),
        ({"delays": [-1]}, "greater than or equal to 0"),
        ({"delays": [1] * 21}, "at most 20"),
        ({"delays": ["10s", "4d"]}, "at most 3 days"),
        ({"order": "partition"}, '"none" or "key"'),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        RetryTopics(**options)


def test_a_dead_letter_topic_takes_failures_at_once_and_holds_nobody():
    brokers = broker(orders=4)
    policy = DeadLetterTopic()
    policy.open("orders", brokers)
    assert policy.topics("orders") == ()
    policy.assigned({("orders", 3)})
    policy.divert([FailedMessage(message=message(), error="no", failed_at=NOW)])
    policy.committed([message()])
    policy.revoked({("orders", 3)})
    assert policy.find_blocked([message()]) == []
    assert policy.due_at(message()) is None
    assert [letter.key for letter in brokers.topics["orders.dlq"][3]] == [b"k"]


def test_later_messages_of_a_key_wait_and_other_keys_and_messages_without_a_key_go_on():
    brokers = broker(orders=4)
    policy = RetryTopics(delays=[1, 1], order="key")
    policy.open("orders", brokers)
    policy.assigned({(topic, 3) for topic in ("orders", *policy.topics("orders"))})
    policy.divert([FailedMessage(message=message(offset=0), error="no", failed_at=NOW)])
    rest = [message(offset=1), message(offset=2, key=b"other"), message(offset=3, key=None)]
    assert policy.find_blocked(rest) == [0]
    (copy,) = brokers.topics["orders.retry.1"][3]
    assert policy.find_blocked([copy]) == []
    policy.committed([copy])
    assert policy.find_blocked(rest) == []


def test_a_message_that_is_settled_before_its_sender_hears_of_it_holds_nobody():
    policy = RetryTopics(delays=[0], order="key")

    class QuickShelf(MemoryRetryBroker):
        def send(self, outgoing):
            offsets = super().send(outgoing)
            policy.committed(self.topics["orders.retry.1"][3])
            return offsets

    policy.open("orders", QuickShelf(topics={"orders": [[] for _ in range(4)]}))
    policy.assigned({("orders", 3), ("orders.retry.1", 3)})
    policy.divert([FailedMessage(message=message(offset=0), error="no", failed_at=NOW)])
    assert policy.find_blocked([message(offset=1)]) == []


def test_one_who_has_lost_a_partition_neither_tries_nor_puts_aside_its_messages():
    policy = RetryTopics(delays=[1], order="key")
    policy.open("orders", broker(orders=4))
    ours = {("orders", 3), ("orders.retry.1", 3)}
    policy.assigned(ours)
    assert policy.find_blocked([message()]) == []
    policy.revoked(ours)
    assert policy.find_blocked([message()]) == [0]
    with pytest.raises(TransientError, match="orders/3 is no longer assigned"):
        policy.divert([FailedMessage(message=message(), error="no", failed_at=NOW)])


def by_key():
    return RetryTopics(delays=[1, 5], order="key")


def run(dice, policy=by_key):
    simulation = RetrySimulation(dice, policy=policy)
    simulation.run(messages=dice.randint(1, 25), keys=dice.randint(1, 4), disturbances=dice.randint(0, 6))
    return simulation


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_by_key_holds_and_nothing_is_lost_whatever_fails_crashes_or_moves(dice):
    simulation = run(dice)
    assert not simulation.broken
    assert not simulation.lost()


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_without_order_nothing_is_lost_either(dice):
    simulation = run(dice, lambda: RetryTopics(delays=[1, 5]))
    assert not simulation.lost()


def forget_at_assignment():
    class Forgetful(MemoryRetryBroker):
        def read_uncommitted(self, topic, partition):
            return iter(())

    policy = by_key()
    open_ = policy.open
    policy.open = lambda source, broker: open_(source, Forgetful(**vars(broker)))
    return policy


def hold_nothing_that_is_put():
    policy = by_key()

    def divert(failures):
        source = policy._source_of(failures[0].message.topic)
        source.broker.send([route_failed(failure, source.route) for failure in failures])

    policy.divert = divert
    return policy


@pytest.mark.parametrize(
    "defect",
    [
        lambda: RetryTopics(delays=[1, 5]),
        forget_at_assignment,
        hold_nothing_that_is_put,
        lambda: settle_early(by_key()),
    ],
    ids=["no order asked for", "nothing rebuilt", "nothing held", "let go too early"],
)
def test_the_simulation_finds_seeded_defects(defect):
    assert any(run(random.Random(seed), defect).broken for seed in range(200))


def test_the_simulation_finds_a_lost_message():
    class Lossy(RetryTopics):
        def divert(self, failures):
            super().divert(failures[:0])

    assert any(run(random.Random(seed), lambda: Lossy(delays=[1])).lost() for seed in range(20))


def test_the_simulation_moves_messages_through_the_topics_of_the_source():
    assert run(random.Random(3)).levels == (SOURCE, f"{SOURCE}.retry.1", f"{SOURCE}.retry.2")
