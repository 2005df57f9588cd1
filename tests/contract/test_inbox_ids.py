"""What an inbox takes for one message: one kind of id, one topic, over retries, replays and an upgrade."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, insert, update
from sqlalchemy.orm import Session

from inbox_examples import prepare
from oncehouse.common.database import open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.header_encoding import encode_headers
from oncehouse.messaging.inbox.admin import find_entries, retry_entries
from oncehouse.messaging.inbox.once import Inbox
from oncehouse.messaging.inbox.store_messages import Receipt
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.tables import handled_ids
from oncehouse.messaging.inbox.tables import inbox as stored_messages
from oncehouse.messaging.message import MESSAGE_ID, ORIGIN, Message

CONSUMER = "billing"


def record(position: str, **headers: str) -> Message:
    topic, partition, offset = position.split("/")
    names = {"id": MESSAGE_ID, "origin": ORIGIN}
    return Message(
        topic=topic,
        partition=int(partition),
        offset=int(offset),
        key=b"k",
        value=b"v",
        headers=tuple((names[name], value.encode()) for name, value in headers.items()),
    )


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    opened = open_engine(catalog_url, setting="database")
    prepare(opened)
    yield opened
    opened.dispose()


Handle = Callable[..., list[str]]
"""Hands messages in one after the other; gives the places of those that were new."""


def handle_once(engine: Engine, *messages: Message, **options) -> list[str]:
    handled: list[str] = []
    handler = Inbox().once(consumer=CONSUMER, keep="7d", **options)(
        lambda _session, one: handled.append(one.position)
    )
    for message in messages:
        with Session(engine) as session, session.begin():
            handler(session, message)
    return handled


def store(engine: Engine, *messages: Message, **options) -> list[str]:
    stored = StoredInbox(CONSUMER, engine, **options)
    return [message.position for message in messages if stored.store([message]).new]


@pytest.fixture(params=[handle_once, store], ids=["once", "stored"])
def handle(request, engine) -> Handle:
    return lambda *messages, **options: request.param(engine, *messages, **options)


def remember_as_before(engine: Engine, *ids: str) -> None:
    """Rows as 0.1 wrote them: one kind of id, whatever the topic."""
    StoredInbox(CONSUMER, engine).store([record(f"orders/9/{at}") for at in range(len(ids))])
    with engine.begin() as connection:
        now = time.time()
        connection.execute(
            insert(handled_ids),
            [
                {"consumer": CONSUMER, "message_id": one, "seen_at": now, "keep_until": now + 900}
                for one in ids
            ],
        )
        for at, one in enumerate(ids):
            mine = (stored_messages.c.partition == 9) & (stored_messages.c.offset == at)
            connection.execute(update(stored_messages).where(mine).values(message_id=one))


def test_one_id_in_two_topics_is_two_messages(handle):
    assert handle(record("payments/0/1", id="42"), record("orders/0/1", id="42")) == [
        "payments/0/1",
        "orders/0/1",
    ]


def test_an_origin_that_another_topic_claims_makes_nothing_skipped(handle):
    forged = record("payments/0/1", origin="orders/0/7")
    assert handle(forged, record("orders/0/7")) == ["payments/0/1", "orders/0/7"]


@pytest.mark.parametrize("topic", ["payments.retry.1", "orders-mirror", "ordersretry.1", "orders.retry.1x"])
def test_an_origin_is_believed_in_no_retry_topic_of_another_source(handle, topic):
    forged = record(f"{topic}/0/1", origin="orders/0/7")
    assert handle(forged, record("orders/0/7")) == [f"{topic}/0/1", "orders/0/7"]


def test_a_claim_in_the_source_topic_makes_no_retry_skipped(handle):
    """Another producer of the topic claims the place of a message whose retry is under way."""
    forged = record("orders/0/900", origin="orders/0/7")
    retry = record("orders.retry.1/0/1", origin="orders/0/7")
    assert handle(forged, forged, retry, record("orders/0/7")) == ["orders/0/900", "orders.retry.1/0/1"]
    assert handle(record("orders/0/901", origin="orders/0/7")) == [], "what it repeats was handled"


def test_no_origin_names_a_later_place_or_another_partition_of_the_source(handle):
    forged = [record("orders/0/1", origin="orders/0/7"), record("orders/1/9", origin="orders/0/7")]
    assert handle(*forged, record("orders/0/7")) == ["orders/0/1", "orders/1/9", "orders/0/7"]


def test_a_header_that_spells_a_place_is_not_that_place(handle):
    forged = record("orders/0/1", id="orders/0/7")
    assert handle(forged, record("orders/0/7")) == ["orders/0/1", "orders/0/7"]


@pytest.mark.parametrize("spelling", ["place:orders/0/7", "header:orders/42", "inlet:orders/42"])
def test_a_header_that_spells_an_id_as_the_inbox_writes_it_reaches_nothing(handle, spelling):
    forged = [record("payments/0/1", id=spelling), record("payments/0/2", origin=spelling)]
    true = [record("orders/0/7"), record("orders/0/8", id="42")]
    assert handle(*forged, *true) == [one.position for one in (*forged, *true)]
    # Nor does what the inbox knows by now make such a record skipped.
    assert handle(record("events/0/1", id=spelling)) == ["events/0/1"]


@pytest.mark.parametrize("headers", [{"id": "42"}, {}], ids=["by header", "by place"])
@pytest.mark.parametrize("base", ["orders", "orders.billing"])
def test_a_message_stays_itself_through_retries_dead_letters_and_a_replay(handle, base, headers):
    later = {**headers, "origin": "orders/0/7"}
    assert handle(
        record("orders/0/7", **headers),
        record(f"{base}.retry.1/0/3", **later),
        record(f"{base}.retry.2/0/3", **later),
        record(f"{base}.dlq/0/3", **later),
        record("orders/0/900", **later),
    ) == ["orders/0/7"]


@pytest.mark.parametrize("headers", [{"id": "42"}, {}], ids=["by header", "by place"])
def test_a_consumer_says_whose_retry_topic_it_is_where_the_name_does_not(handle, headers):
    here = record("billing.retry.1/0/3", origin="orders/0/7", **headers)
    named = Message(**{name: getattr(here, name) for name in here.__slots__} | {"source": "orders"})
    assert handle(named, record("orders/0/7", **headers)) == ["billing.retry.1/0/3"]


def test_topics_that_carry_another_topics_messages_share_its_ids_where_that_is_said(handle):
    sources = {"orders-mirror": "orders"}
    copies = [record("orders/0/7", id="42"), record("orders-mirror/0/9", id="42")]
    assert handle(*copies, sources=sources) == ["orders/0/7"]
    assert (
        handle(record("orders-mirror.retry.1/0/1", id="42", origin="orders-mirror/0/9"), sources=sources)
        == []
    )
    assert handle(copies[1]) == ["orders-mirror/0/9"]


@pytest.mark.parametrize("sources", [{"a b": "orders"}, {"orders-2": ""}])
def test_sources_that_are_no_topics_are_refused(handle, sources):
    with pytest.raises(ConfigurationError, match="sources: "):
        handle(record("orders/0/1"), sources=sources)


def test_what_was_seen_before_the_upgrade_is_not_handled_again(handle, engine):
    remember_as_before(engine, "42", "orders/0/7", "sha256:" + 64 * "a")
    again = [
        record("orders/0/1", id="42"),
        record("orders/0/7"),
        record("orders.retry.1/0/2", id="42", origin="orders/0/1"),
        record("orders.retry.1/0/3", origin="orders/0/7"),
        record("orders/0/900", origin="orders/0/7"),
    ]
    assert handle(*again) == []
    assert handle(record("orders/0/8", id="43"), record("orders/0/9")) == ["orders/0/8", "orders/0/9"]


def test_what_is_remembered_after_the_upgrade_is_not_taken_for_what_was_before_it(handle):
    assert handle(record("orders/0/7"), record("payments/0/1", id="orders/0/7")) == [
        "orders/0/7",
        "payments/0/1",
    ]


def test_a_batch_skips_what_was_seen_before_the_upgrade_and_keeps_its_order(engine):
    remember_as_before(engine, "2", "4")
    batch = [record(f"orders/0/{at}", id=str(at)) for at in (5, 4, 3, 2, 1)]
    assert StoredInbox(CONSUMER, engine).store(batch).new == 3
    handled: list[str] = []
    handler = Inbox().once(consumer=CONSUMER, keep="7d")(lambda _session, given: handled.extend(given))
    with Session(engine) as session, session.begin():
        handler(session, batch)
    assert [one.message_id for one in handled] == ["5", "3", "1"]
    arrived: list[str] = []
    StoredInbox(CONSUMER, engine).worker(lambda _session, one: arrived.append(one.message_id)).run(once=True)
    assert [one for one in arrived if one in {"1", "3", "5"}] == ["5", "3", "1"]


def post(key: str, body: bytes = b"v") -> Message:
    return Message(
        topic=CONSUMER, partition=-1, offset=-1, key=None, value=body, headers=((MESSAGE_ID, key.encode()),)
    )


def test_an_idempotency_key_and_a_header_of_kafka_are_two_kinds_of_id(engine):
    stored = StoredInbox(CONSUMER, engine)
    assert stored.store_one(post("42")) is Receipt.NEW
    assert stored.store([record(f"{CONSUMER}/0/1", id="42")]).new == 1
    assert stored.store_one(post("42")) is Receipt.REPEATED
    assert stored.store_one(post("42", b"other")) is Receipt.CONFLICT


def test_a_caller_whose_key_was_taken_before_the_upgrade_is_answered_as_before(engine):
    stored = StoredInbox(CONSUMER, engine)
    remember_as_before(engine, "42")
    assert stored.store_one(post("42")) is Receipt.REPEATED
    assert stored.store_one(post("42", b"other")) is Receipt.CONFLICT


def test_what_a_consumer_knows_of_the_source_is_kept_with_the_message(engine):
    stored = StoredInbox(CONSUMER, engine)
    here = record("billing.retry.1/0/3", origin="orders/0/7")
    given = Message(**{name: getattr(here, name) for name in here.__slots__} | {"source": "orders"})
    stored.store([given])
    handled: list[Message] = []
    stored.worker(lambda _session, one: handled.append(one)).run(once=True)
    assert handled == [given]


@pytest.mark.parametrize("source", [b"payments", b"\xff"])
def test_a_producers_own_header_in_a_row_of_before_the_upgrade_says_nothing_of_the_source(engine, source):
    remember_as_before(engine, "42")
    headers = encode_headers([("oncehouse-source", source)])
    with engine.begin() as connection:
        connection.execute(update(stored_messages).values(headers=headers))
    handled: list[Message] = []
    StoredInbox(CONSUMER, engine).worker(lambda _session, one: handled.append(one)).run(once=True)
    assert [(one.source, one.source_topic) for one in handled] == [(None, "orders")]


def test_a_person_names_a_stored_message_by_its_producers_id_or_by_the_inboxs(engine):
    StoredInbox(CONSUMER, engine).store(
        [
            record("orders/0/1", id="42"),
            record("payments/0/1", id="42"),
            record("orders/0/2", id="43"),
            record("orders/0/3", id="1/43"),
            record("orders/0/4"),
        ]
    )
    with engine.begin() as connection:
        found = {given: find_entries(connection, given, name=None) for given in ("42", "43", "orders/0/4")}
        assert [one.message_id for one in found["42"]] == ["header:orders/42", "header:payments/42"]
        assert [one.message_id for one in found["43"]] == ["header:orders/43"]
        assert [one.message_id for one in found["orders/0/4"]] == ["place:orders/0/4"]
        assert len(find_entries(connection, "header:orders/42", name=CONSUMER)) == 1
        connection.execute(update(stored_messages).values(state="parked"))
        assert retry_entries(connection, CONSUMER, ["43"]) == ["header:orders/43"]
        with pytest.raises(ConfigurationError, match="use one of header:orders/42, header:payments/42"):
            retry_entries(connection, CONSUMER, ["42"])
        assert retry_entries(connection, CONSUMER, ["header:payments/42"]) == ["header:payments/42"]
