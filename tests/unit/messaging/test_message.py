from dataclasses import replace

import pytest

from oncehouse.messaging.message import MESSAGE_ID, ORIGIN, Message


def message(*headers: tuple[str, bytes | None]) -> Message:
    return Message(topic="orders", partition=2, offset=7, key=b"k", value=b"v", headers=headers)


def test_the_last_of_several_headers_of_one_name_counts():
    assert message(("a", b"1"), ("b", b"2"), ("a", b"3")).header("a") == b"3"
    assert message(("a", b"1")).header("b") is None


def test_a_message_is_known_by_its_outbox_id_wherever_it_stands():
    assert message((ORIGIN, b"orders/0/1"), (MESSAGE_ID, b"42")).message_id == "42"


def test_a_message_without_an_id_is_known_by_where_it_stood_first():
    assert message().message_id == "orders/2/7"
    assert message((ORIGIN, b"orders/2/1")).message_id == "orders/2/7", (
        "any producer of the topic can claim it"
    )
    aside = replace(message((ORIGIN, b"orders/2/9")), topic="orders.billing.retry.1")
    assert (aside.message_id, aside.source_topic) == ("orders/2/9", "orders")


@pytest.mark.parametrize(
    "origin", [b"payments/2/1", b"orders/0/1", b"orders/2/7", b"orders/2/8", b"x", b"\xff"]
)
def test_an_origin_that_no_replay_writes_is_not_believed(origin):
    assert message((ORIGIN, origin)).message_id == "orders/2/7"
    assert message((ORIGIN, origin)).source_topic == "orders"


@pytest.mark.parametrize(("source", "first"), [("orders", "orders/2/9"), ("payments", "billing.retry.1/2/7")])
def test_a_consumer_knows_the_source_of_its_retry_topics_better_than_their_names(source, first):
    aside = replace(message((ORIGIN, b"orders/2/9")), topic="billing.retry.1", source=source)
    assert (str(aside.first_position), aside.source_topic) == (first, source)


def test_an_id_that_is_not_text_is_still_an_id():
    assert message((MESSAGE_ID, b"\xff")).message_id == "\\xff"
