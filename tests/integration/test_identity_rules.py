"""Identity rules on the real pipeline: headers, key and paths, and a rule that is changed under a ledger."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from live_pipeline import LivePipeline, encode, make_event, wait_until
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import epochs, requests, segments
from oncehouse.ledger.models import DeadLetterKind, RequestKind
from oncehouse.pipeline.requests import rekey
from oncehouse.pipeline.schema.identity_guard import format_section, identity_of

EVENTS = [make_event(number) for number in range(40)]


def send(live_pipeline: LivePipeline, records) -> None:
    """(value, key, headers) of each record."""
    producer = Producer({"bootstrap.servers": live_pipeline.document["source"]["kafka"]["bootstrap_servers"]})
    for value, key, headers in records:
        producer.produce(live_pipeline.topic, value=value, key=key, headers=headers, partition=0)
    assert producer.flush(60) == 0
    live_pipeline.produced += len(records)


def ask_for_rule(live_pipeline: LivePipeline, **identity: object) -> None:
    live_pipeline.document["identity"] = {"window": "60d", **identity}
    asked = identity_of(live_pipeline.pipeline, live_pipeline.catalog)
    arguments: dict[str, object] = {
        "fingerprint": asked.fingerprint,
        "buckets": asked.buckets,
        "rule": format_section(live_pipeline.pipeline),
    }
    requests.add_request(live_pipeline.catalog, RequestKind.REKEY, arguments)


def test_a_header_and_the_key_make_an_event_and_without_them_it_is_a_dead_letter(make_pipeline):
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["source"]["fields"]["user"] = "Tuple(id UInt32, name String)"
    live_pipeline.document["identity"] = {"fields": ["user.id"], "headers": ["outbox-id"], "key": True}
    live_pipeline.create_tables()
    value = encode(EVENTS[0], user={"id": 7, "name": "Ada"})
    renamed = encode(EVENTS[0], user={"id": 7, "name": "Eve"})
    other = encode(EVENTS[0], user={"id": 8, "name": "Ada"})
    first = [("trace", b"1"), ("outbox-id", b"a")]
    send(
        live_pipeline,
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
    live_pipeline.run()
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate, counts.dead_letter) == (4, 1, 2)
    letters = epochs.list_dead_letter_files(live_pipeline.catalog, kind=DeadLetterKind.DEAD)
    assert [found.reasons for found in letters] == [{"missing_field": 2}]
    assert live_pipeline.client.query(
        f"SELECT count(), uniqExact(_unique_id) FROM {live_pipeline.table}"
    ).result_rows == [(4, 4)]
    live_pipeline.assert_settled()


@pytest.mark.long
def test_a_rule_is_changed_under_a_ledger_and_what_is_loaded_stays(make_pipeline):
    live_pipeline = make_pipeline(epoch={"max_rows": 25})
    live_pipeline.send(EVENTS)
    live_pipeline.send(EVENTS[:5])
    live_pipeline.run()
    old = dict(live_pipeline.document["identity"])
    # Three kinds of events a product: by this rule many of those that are there are one.
    ask_for_rule(live_pipeline, fields=["project", "event_type"])
    live_pipeline.send_raw([encode(make_event(100, kind="view")), encode(make_event(101, kind="refund"))])
    live_pipeline.expected[make_event(101, kind="refund")] = f"note of 101 {'x' * (101 % 17)}"
    live_pipeline.run()
    # From then on the old file is not let in.
    new, live_pipeline.document["identity"] = live_pipeline.document["identity"], old
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        live_pipeline.run()
    live_pipeline.document["identity"] = new
    assert live_pipeline.catalog.identity() == identity_of(live_pipeline.pipeline)
    assert any(
        "45 events were computed again; the key index holds 3 keys" in said for said in live_pipeline.said
    ), live_pipeline.said
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate) == (41, 6), "a view is known by the new rule, a refund is not"
    live_pipeline.assert_exact()


@pytest.mark.long
def test_a_rule_is_changed_while_the_pipeline_runs(make_pipeline, monkeypatch):
    # So that there are several rounds over few events.
    monkeypatch.setattr(rekey, "NEAR_EVENTS", 0)
    monkeypatch.setattr(rekey, "ROUND_EVENTS", 30)
    live_pipeline = make_pipeline(epoch={"max_rows": 10}, partitions=2)
    with live_pipeline.start() as running:
        live_pipeline.send(EVENTS)
        running.wait_for_rows(len(EVENTS))
        ask_for_rule(live_pipeline, fields=["product_id"], buckets=32)
        wanted, number = identity_of(live_pipeline.pipeline), len(EVENTS)
        while live_pipeline.catalog.identity() != wanted and running.error is None:
            live_pipeline.send([make_event(number), make_event(number - 7)], partition=number % 2)
            number += 1
            time.sleep(0.1)
        live_pipeline.send(EVENTS)
        live_pipeline.send([make_event(more) for more in range(number - 5, number + 5)])
        running.wait_for_rows(number + 5)
    live_pipeline.assert_exact()
    assert len({epoch.token for epoch in epochs.list_epochs(live_pipeline.catalog)}) == 1, (
        "nobody had to start again"
    )
    assert any("while events come in under the old one" in said for said in live_pipeline.said)
    assert not [said for said in live_pipeline.said if "events wait meanwhile" in said]
    assert {found.result is None for found in requests.list_requests(live_pipeline.catalog)} == {False}
    assert max(found.bucket_to for found in segments.list_segments(live_pipeline.catalog)) == 31


@pytest.mark.long
def test_a_change_goes_on_after_kills_with_the_old_rule_or_the_new(make_pipeline):
    live_pipeline = make_pipeline(partitions=2)
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    ask_for_rule(live_pipeline, fields=["product_id"])
    live_pipeline.send(EVENTS[:5])
    live_pipeline.crash("keys written anew")
    assert live_pipeline.catalog.identity() != identity_of(live_pipeline.pipeline)
    live_pipeline.crash("before changing the rule")
    assert live_pipeline.catalog.identity() != identity_of(live_pipeline.pipeline)
    live_pipeline.crash("after changing the rule")
    assert live_pipeline.catalog.identity() == identity_of(live_pipeline.pipeline)
    live_pipeline.send([*EVENTS, make_event(99)], partition=1)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.long
def test_a_rule_that_kept_events_do_not_fit_is_refused_and_the_pipeline_goes_on(make_pipeline):
    live_pipeline = make_pipeline()
    with live_pipeline.start() as running:
        live_pipeline.send(EVENTS[:5])
        running.wait_for_rows(5)
        old = dict(live_pipeline.document["identity"])
        ask_for_rule(live_pipeline, fields=["product_id"], headers=["outbox-id"])
        wait_until(
            lambda: running.error is not None or not requests.open_requests(live_pipeline.catalog),
            "the request is refused",
        )
        live_pipeline.document["identity"] = old
        live_pipeline.send(EVENTS[:10])
        running.wait_for_rows(10)
    (refused,) = requests.list_requests(live_pipeline.catalog)
    assert "refused: " in str(refused.result)
    assert "outbox-id" in str(refused.result)
    live_pipeline.assert_exact()


@pytest.mark.long
def test_a_running_pipeline_that_lacks_the_fields_of_another_rule_stops(make_pipeline):
    live_pipeline = make_pipeline()
    with live_pipeline.start() as running:
        live_pipeline.send(EVENTS[:5])
        running.wait_for_rows(5)
        live_pipeline.document["source"]["fields"]["product_id"] = "Decimal(20, 0)"
        ask_for_rule(live_pipeline, fields=["product_id"])
        assert "Start with the file that has the new rule" in str(running.wait_for_error())
