"""Dead letters of a topic without any server: what they say of themselves, which are meant, what a purge takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.failure_policy import Failure
from oncehouse.messaging.message import ATTEMPT, ERROR, FAILED_AT, ORIGIN, ORIGIN_TIME, Message
from oncehouse.messaging.retries.dead_letters import (
    Choice,
    Letter,
    Tally,
    collect_marks,
    count_letters,
    dead_letters_of,
    is_mark,
    kind_of_error,
    parse_span,
    pick_letters,
    plan_purge,
)
from oncehouse.messaging.retries.retry_routing import REPLAYED, decide
from oncehouse.messaging.retries.retry_topics import make_ladder


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
    return [one.message.offset for one in pick_letters(messages, choice)]


def test_letters_are_chosen_by_error_time_and_either_position():
    messages = [letter(0), letter(1, "KeyError: x", failed_at=200), mark(2, b"0"), letter(3, failed_at=300)]
    assert offsets(Choice(), messages) == [0, 1, 3]
    assert offsets(Choice(error="KeyE"), messages) == [1]
    assert offsets(Choice(since=200.0), messages) == [1, 3]
    assert offsets(Choice(spans=(parse_span("orders.dlq/0/1-3"),)), messages) == [1, 3]
    assert offsets(Choice(spans=(parse_span("orders/0/1000"),)), messages) == [0]
    assert offsets(Choice(error="Value", spans=(parse_span("orders.dlq/0/1-3"),)), messages) == [3]


@pytest.mark.parametrize(
    "text", ["", "orders", "orders/0", "orders/x/1", "orders/0/1-", "orders/0/1-2-3", "a/0/\u0663"]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(ConfigurationError, match="is not a position"):
        parse_span(text)


def test_letters_are_counted_by_the_class_of_their_error_with_those_that_were_replayed():
    messages = [letter(0), letter(1, "ValueError: other"), letter(2, "it is\nbroken: 7"), letter(3, "")]
    counted = count_letters(pick_letters(messages, Choice()), {0: {1, 2}})
    assert counted == {
        "ValueError": Tally(letters=2, replayed=1),
        "it is": Tally(letters=1, replayed=1),
        "(no error named)": Tally(letters=1, replayed=0),
    }
    assert len(kind_of_error("x y" * 1000)) == 80


def test_marks_name_what_was_replayed_and_nothing_else_does():
    messages = [mark(5, b"0,3"), mark(6, b"4", partition=1), mark(7, b"3,9"), mark(8, b"x"), mark(9, b"")]
    assert collect_marks(messages) == {0: {0, 3, 9}, 1: {4}}


def test_no_message_of_a_source_can_pass_for_a_mark():
    forged = Message(
        topic="orders", partition=0, offset=1, key=None, value=None, headers=((REPLAYED, b"1,2,3"),)
    )
    put = decide(Failure(message=forged, error="no", failed_at=1.0), make_ladder("orders"))
    assert not is_mark(
        Message(topic=put.topic, partition=0, offset=9, key=put.key, value=put.value, headers=put.headers)
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
    assert dead_letters_of("orders", named=False) == "orders.dlq"
    assert dead_letters_of("orders.dlq", named=False) == "orders.dlq"
    assert dead_letters_of("orders.DLT", named=True) == "orders.DLT"


@pytest.mark.parametrize("claimed", [b"999999999999999999", b"253402300799001", b"-5", b"soon"])
def test_a_time_that_no_calendar_has_is_none(claimed):
    headers = ((FAILED_AT, claimed), (ORIGIN_TIME, claimed))
    one = Letter(message=Message(topic="t", partition=0, offset=0, key=None, value=b"", headers=headers))
    assert (one.failed_at, one.origin_time) == (None, None)


@given(st.lists(st.tuples(st.sampled_from([ORIGIN, ORIGIN_TIME, ATTEMPT, ERROR, FAILED_AT]), st.binary())))
def test_any_headers_of_a_letter_are_survived(headers):
    one = Letter(
        message=Message(topic="t", partition=0, offset=0, key=None, value=b"", headers=tuple(headers))
    )
    assert one.origin is None or one.origin.offset >= 0
    assert one.attempts is None or one.attempts >= 0
    assert (one.failed_at or 0, one.origin_time or 0) >= (0, 0)
    kind_of_error(one.error)
