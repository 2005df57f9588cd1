"""Identity rules on the real road: headers, key and paths, and a rule that is changed under a ledger."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from oncehouse.errors import ConfigurationError
from oncehouse.ledger import epochs, requests
from oncehouse.ledger.records import LetterKind, RequestKind
from oncehouse.pipeline.adopting import identity_of
from road import Road, encode, make_event

EVENTS = [make_event(number) for number in range(40)]


def send(road: Road, records) -> None:
    """(value, key, headers) of each record."""
    producer = Producer({"bootstrap.servers": road.document["source"]["kafka"]["bootstrap_servers"]})
    for value, key, headers in records:
        producer.produce(road.topic, value=value, key=key, headers=headers, partition=0)
    assert producer.flush(60) == 0
    road.produced += len(records)


def ask_for_rule(road: Road, **identity: object) -> None:
    road.document["identity"] = {"window": "60d", **identity}
    asked = identity_of(road.pipeline, road.catalog)
    arguments: dict[str, object] = {"fingerprint": asked.fingerprint, "buckets": asked.buckets}
    requests.add_request(road.catalog, RequestKind.REKEY, arguments)


def test_a_header_and_the_key_make_an_event_and_without_them_it_is_a_dead_letter(make_road):
    road = make_road(tables=False)
    road.document["source"]["fields"]["user"] = "Tuple(id UInt32, name String)"
    road.document["identity"] = {"fields": ["user.id"], "headers": ["outbox-id"], "key": True}
    road.create_tables()
    value = encode(EVENTS[0], user={"id": 7, "name": "Ada"})
    renamed = encode(EVENTS[0], user={"id": 7, "name": "Eve"})
    other = encode(EVENTS[0], user={"id": 8, "name": "Ada"})
    first = [("trace", b"1"), ("outbox-id", b"a")]
    send(
        road,
        [
            (value, b"k", first),
            (renamed, b"k", [("outbox-id", b"a")]),
            (other, b"k", first),
            (value, b"l", first),
            (value, b"k", [("outbox-id", b"a"), ("outbox-id", b"b")]),
            (value, b"k", [("trace", b"1")]),
            (value, None, first),
        ],
    )
    road.run()
    counts = road.counts()
    assert (counts.new, counts.duplicate, counts.dead_letter) == (4, 1, 2)
    letters = epochs.list_dead_letter_files(road.catalog, kind=LetterKind.DEAD)
    assert [found.reasons for found in letters] == [{"missing_field": 2}]
    assert road.client.query(f"SELECT count(), uniqExact(_unique_id) FROM {road.table}").result_rows == [
        (4, 4)
    ]
    road.assert_settled()


@pytest.mark.long
def test_a_rule_is_changed_under_a_ledger_and_what_is_loaded_stays(make_road):
    road = make_road(epoch={"max_rows": 25})
    road.send(EVENTS)
    road.send(EVENTS[:5])
    road.run()
    old = dict(road.document["identity"])
    # Three kinds of events a product: by this rule many of those that are there are one.
    ask_for_rule(road, fields=["project", "event_type"])
    road.send_raw([encode(make_event(100, kind="view")), encode(make_event(101, kind="refund"))])
    road.expected[make_event(101, kind="refund")] = f"note of 101 {'x' * (101 % 17)}"
    # The old file is not let in while the change is asked for.
    new, road.document["identity"] = road.document["identity"], old
    with pytest.raises(ConfigurationError, match="Start with the file that has the new rule"):
        road.run()
    road.document["identity"] = new
    road.run()
    assert road.catalog.identity() == identity_of(road.pipeline)
    assert any("45 events were made anew; the key index holds 3 keys" in said for said in road.said), (
        road.said
    )
    counts = road.counts()
    assert (counts.new, counts.duplicate) == (41, 6), "a view is known by the new rule, a refund is not"
    road.assert_exact()


@pytest.mark.long
def test_a_running_pipeline_with_the_old_rule_stops_when_another_is_asked_for(make_road):
    road = make_road()
    with road.start() as running:
        road.send(EVENTS[:5])
        running.wait_for_rows(5)
        ask_for_rule(road, fields=["product_id"])
        assert "has asked for another identity rule" in str(running.wait_for_error())
    road.send(EVENTS[:10])
    road.run()
    assert road.counts().duplicate == 5
    road.assert_exact()
