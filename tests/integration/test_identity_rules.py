"""Identity rules on the real road: headers, key and paths, and a rule that is changed under a ledger."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import epochs, requests, segments
from oncehouse.ledger.models import LetterKind, RequestKind
from oncehouse.pipeline.requests import rekey
from oncehouse.pipeline.schema.identity_guard import identity_of, spell_section
from road import Road, encode, make_event, wait_until

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
    arguments: dict[str, object] = {
        "fingerprint": asked.fingerprint,
        "buckets": asked.buckets,
        "rule": spell_section(road.pipeline),
    }
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
    road.run()
    # From then on the old file is not let in.
    new, road.document["identity"] = road.document["identity"], old
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        road.run()
    road.document["identity"] = new
    assert road.catalog.identity() == identity_of(road.pipeline)
    assert any("45 events were made anew; the key index holds 3 keys" in said for said in road.said), (
        road.said
    )
    counts = road.counts()
    assert (counts.new, counts.duplicate) == (41, 6), "a view is known by the new rule, a refund is not"
    road.assert_exact()


@pytest.mark.long
def test_a_rule_is_changed_while_the_pipeline_runs(make_road, monkeypatch):
    # So that there are several rounds over few events.
    monkeypatch.setattr(rekey, "NEAR_EVENTS", 0)
    monkeypatch.setattr(rekey, "ROUND_EVENTS", 30)
    road = make_road(epoch={"max_rows": 10}, partitions=2)
    with road.start() as running:
        road.send(EVENTS)
        running.wait_for_rows(len(EVENTS))
        ask_for_rule(road, fields=["product_id"], buckets=32)
        wanted, number = identity_of(road.pipeline), len(EVENTS)
        while road.catalog.identity() != wanted and running.error is None:
            road.send([make_event(number), make_event(number - 7)], partition=number % 2)
            number += 1
            time.sleep(0.1)
        road.send(EVENTS)
        road.send([make_event(more) for more in range(number - 5, number + 5)])
        running.wait_for_rows(number + 5)
    road.assert_exact()
    assert len({epoch.token for epoch in epochs.list_epochs(road.catalog)}) == 1, "nobody had to start again"
    assert any("while events come in under the old one" in said for said in road.said)
    assert not [said for said in road.said if "events wait meanwhile" in said]
    assert {found.result is None for found in requests.list_requests(road.catalog)} == {False}
    assert max(found.bucket_to for found in segments.list_segments(road.catalog)) == 31


@pytest.mark.long
def test_a_change_goes_on_after_kills_with_the_old_rule_or_the_new(make_road):
    road = make_road(partitions=2)
    road.send(EVENTS)
    road.run()
    ask_for_rule(road, fields=["product_id"])
    road.send(EVENTS[:5])
    road.crash("keys written anew")
    assert road.catalog.identity() != identity_of(road.pipeline)
    road.crash("before changing the rule")
    assert road.catalog.identity() != identity_of(road.pipeline)
    road.crash("after changing the rule")
    assert road.catalog.identity() == identity_of(road.pipeline)
    road.send([*EVENTS, make_event(99)], partition=1)
    road.run()
    road.assert_exact()


@pytest.mark.long
def test_a_rule_that_kept_events_do_not_fit_is_refused_and_the_pipeline_goes_on(make_road):
    road = make_road()
    with road.start() as running:
        road.send(EVENTS[:5])
        running.wait_for_rows(5)
        old = dict(road.document["identity"])
        ask_for_rule(road, fields=["product_id"], headers=["outbox-id"])
        wait_until(
            lambda: running.error is not None or not requests.open_requests(road.catalog),
            "the request is refused",
        )
        road.document["identity"] = old
        road.send(EVENTS[:10])
        running.wait_for_rows(10)
    (refused,) = requests.list_requests(road.catalog)
    assert "refused: " in str(refused.result)
    assert "outbox-id" in str(refused.result)
    road.assert_exact()


@pytest.mark.long
def test_a_running_pipeline_that_lacks_the_fields_of_another_rule_stops(make_road):
    road = make_road()
    with road.start() as running:
        road.send(EVENTS[:5])
        running.wait_for_rows(5)
        road.document["source"]["fields"]["product_id"] = "Decimal(20, 0)"
        ask_for_rule(road, fields=["product_id"])
        assert "Start with the file that has the new rule" in str(running.wait_for_error())
