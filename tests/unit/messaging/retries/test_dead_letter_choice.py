"""Dead letters of a topic without any server: what they say of themselves, which are meant, what a purge takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.failure_policy import FailedMessage
from oncehouse.messaging.message import ATTEMPT, ERROR, FAILED_AT, ORIGIN, ORIGIN_TIME, Message
from oncehouse.messaging.retries.dead_letters import (
    DeadLetterSelection,
    ErrorCount,
    TopicDeadLetter,
    collect_marks,
    count_by_error,
    dead_letter_topic_of,
    is_replay_mark,
    kind_of_error,
    parse_offset_span,
    plan_purge,
    select_dead_letters,
)
from oncehouse.messaging.retries.retry_routing import REPLAYED, route_failed
from oncehouse.messaging.retries.retry_topics import make_retry_route


def letter(offset, error="ValueError: no", *, failed_at=100.0, partition=0, origin=None):
    headers = (
        (ORIGIN, (origin or f"orders/{partition}/{offset + 1000}").encode()),
        (ERROR, error.encode()),
        (ATTEMPT, b"3"),
        (FAILED_AT, str(round(failed_at * 1000)).encode()),
    )
    return Message(
        topic="orders.dlq",
        partition=partition,
        offset=offset,
        key=b"k",
        value=b"v",
        headers=headers,
        timestamp_ms=5,
    )


def mark(offset, named, partition=0):
    headers = ((REPLAYED, named),)
    return Message(
        topic="orders.dlq", partition=partition, offset=offset, key=None, value=None, headers=headers
    )


def offsets(choice, messages):
    return [one.message.offset for one in select_dead_letters(messages, choice)]


def test_letters_are_chosen_by_error_time_and_either_position():
    messages = [letter(0), letter(1, "KeyError: x", failed_at=200), mark(2, b"0"), letter(3, failed_at=300)]
    assert offsets(DeadLetterSelection(), messages) == [0, 1, 3]
    assert offsets(DeadLetterSelection(error="KeyE"), messages) == [1]
    assert offsets(DeadLetterSelection(since=200.0), messages) == [1, 3]
    assert offsets(DeadLetterSelection(spans=(parse_offset_span("orders.dlq/0/1-3"),)), messages) == [1, 3]
    assert offsets(DeadLetterSelection(spans=(parse_offset_span("orders/0/1000"),)), messages) == [0]
    assert offsets(
        DeadLetterSelection(error="Value", spans=(parse_offset_span("orders.dlq/0/1-3"),)), messages
    ) == [3]


@pytest.mark.parametrize(
    "text", ["", "orders", "orders/0", "orders/x/1", "orders/0/1-", "orders/0/1-2-3", "a/0/\u0663"]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(ConfigurationError, match="is not a position"):
        parse_offset_span(text)


def test_letters_are_counted_by_the_class_of_their_error_with_those_that_were_replayed():
    messages = [letter(0), letter(1, "ValueError: other"), letter(2, "it is\nbroken: 7"), letter(3, "")]
    counted = count_by_error(select_dead_letters(messages, DeadLetterSelection()), {0: {1, 2}})
    assert counted == {
        "ValueError": ErrorCount(letters=2, replayed=1),
        "it is": ErrorCount(letters=1, replayed=1),
        "(no error named)": ErrorCount(letters=1, replayed=0),
    }
    assert len(kind_of_error("x y" * 1000)) == 80


def test_marks_name_what_was_replayed_and_nothing_else_does():
    messages = [mark(5, b"0,3"), mark(6, b"4", partition=1), mark(7, b"3,9"), mark(8, b"x"), mark(9, b"")]
    assert collect_marks(messages) == {0: {0, 3, 9}, 1: {4}}


def test_no_message_of_a_source_can_pass_for_a_mark():
    forged = Message(
        topic="orders", partition=0, offset=1, key=None, value=None, headers=((REPLAYED, b"1,2,3"),)
    )
    divert = route_failed(
        FailedMessage(message=forged, error="no", failed_at=1.0), make_retry_route("orders")
    )
    assert not is_replay_mark(
        Message(
            topic=divert.topic,
            partition=0,
            offset=9,
            key=divert.key,
            value=divert.value,
            headers=divert.headers,
        )
    )


def test_a_purge_ends_in_each_partition_at_the_first_letter_that_is_to_stay():
    messages = [
        letter(4, failed_at=1),
        letter(7, failed_at=9, partition=1),
        mark(5, b"4"),
        letter(6, failed_at=50),
        letter(7, failed_at=2),
    ]
    ends, gone = plan_purge(messages, 10.0)
    assert (ends, [one.message.offset for one in gone]) == ({0: 6, 1: 8}, [4, 7])
    assert plan_purge(messages, None)[0] == {0: 8, 1: 8}


def test_a_topic_stands_for_its_dead_letters_unless_it_is_named_as_such():
    assert dead_letter_topic_of("orders", named=False) == "orders.dlq"
    assert dead_letter_topic_of("orders.dlq", named=False) == "orders.dlq"
    assert dead_letter_topic_of("orders.DLT", named=True) == "orders.DLT"


@pytest.mark.parametrize("claimed", [b"999999999999999999", b"253402300799001", b"-5", b"soon"])
def test_a_time_that_no_calendar_has_is_none(claimed):
    headers = ((FAILED_AT, claimed), (ORIGIN_TIME, claimed))
    one = TopicDeadLetter(
        message=Message(topic="t", partition=0, offset=0, key=None, value=b"", headers=headers)
    )
    assert (one.failed_at, one.origin_time) == (None, None)


@given(st.lists(st.tuples(st.sampled_from([ORIGIN, ORIGIN_TIME, ATTEMPT, ERROR, FAILED_AT]), st.binary())))
def test_any_headers_of_a_letter_are_survived(headers):
    one = TopicDeadLetter(
        message=Message(topic="t", partition=0, offset=0, key=None, value=b"", headers=tuple(headers))
    )
    assert one.origin is None or one.origin.offset >= 0
    assert one.attempts is None or one.attempts >= 0
    assert (one.failed_at or 0, one.origin_time or 0) >= (0, 0)
    kind_of_error(one.error)
