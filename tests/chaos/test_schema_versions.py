"""A schema version lacks or renames a field of the identity: its events wait, are dead letters, and come in later."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from live_pipeline import LivePipeline
from oncehouse.ledger.catalog.epochs import list_dead_letter_files
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.models import DeadLetterKind, RequestKind
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema
from oncehouse.pipeline.ingest import read_plan
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters
from protobuf_examples import FOLDER, message_class

MESSAGES = {"1": ("First", "id"), "2": ("Second", "event_id"), "3": ("Third", None)}
PROTO = str(FOLDER / "versions.proto")


def write(version: str, number: int) -> bytes:
    message, name = MESSAGES[version]
    values = {"note": f"note of {number}", "amount": number} | ({name: number + 1} if name else {})
    return message_class("versions.proto", f"versions.{message}")(**values).SerializeToString()


def of(number: int) -> tuple[str, bytes]:
    """The version and the bytes of an event."""
    version = str(number % 3 + 1)
    return version, write(version, number)


def send(live_pipeline: LivePipeline, numbers: range) -> None:
    """Events of the three versions in turns; the amount tells which one an event is."""
    producer = Producer({"bootstrap.servers": live_pipeline.document["source"]["kafka"]["bootstrap_servers"]})
    for number in numbers:
        version, value = of(number)
        headers = [("schema-version", version.encode())]
        producer.produce(live_pipeline.topic, value, partition=number % 2, headers=headers)
    assert producer.flush(60) == 0
    live_pipeline.produced += len(numbers)


def make_versions_pipeline(make_pipeline) -> LivePipeline:
    live_pipeline: LivePipeline = make_pipeline(
        tables=False, partitions=2, identity={"fields": ["id"], "window": "60d"}
    )
    live_pipeline.document["source"] |= {
        "format": "protobuf",
        "fields": {"id": "Int64", "note": "String", "amount": "UInt32"},
        "protobuf": {
            "version": "header",
            "schemas": {"1": {"files": [PROTO], "message": "versions.First"}},
        },
    }
    live_pipeline.create_tables()
    live_pipeline.create_view()
    return live_pipeline


def learn(live_pipeline: LivePipeline) -> None:
    add_schemas(
        live_pipeline.catalog,
        [make_schema(version, files=[PROTO], message=f"versions.{MESSAGES[version][0]}") for version in "23"],
    )


def assert_each_event_is_told_apart(live_pipeline: LivePipeline, sent: range, versions: str) -> None:
    """Events of these versions are rows of their own ids; all others are kept as dead letters with their reason."""
    wanted = {number for number in sent if str(number % 3 + 1) in versions}
    found = live_pipeline.client.query(f"SELECT amount, _unique_id FROM {live_pipeline.table}").result_rows
    ids = {unique_id for _, unique_id in found}
    lost = wanted - {number for number, _ in found}
    assert not lost, f"{len(lost)} events are lost, among them {sorted(lost)[:3]}"
    assert {number for number, _ in found} == wanted, "different events have one id"
    assert len(found) == len(wanted) == len(ids), "rows are doubled"
    files = [kept.file for kept in list_dead_letter_files(live_pipeline.catalog, kind=DeadLetterKind.DEAD)]
    letters = read_dead_letters(live_pipeline.store, files).to_pylist()
    kept = {letter["value"] for letter in letters}
    assert kept == {of(number)[1] for number in set(sent) - wanted}, "a record is neither row nor dead letter"
    for letter in letters:
        assert letter["reason"] == "missing_field"
        assert "has no field id, which belongs to the identity" in letter["detail"]
    assert not list_dead_letter_files(live_pipeline.catalog, kind=DeadLetterKind.WAITING)
    assert not live_pipeline.findings()
    live_pipeline.assert_view()


def play(live_pipeline: LivePipeline) -> None:
    send(live_pipeline, range(90))
    live_pipeline.run()
    assert live_pipeline.counts().waiting == 60, "nobody knows their versions yet"
    learn(live_pipeline)
    send(live_pipeline, range(90, 120))
    send(live_pipeline, range(30))
    live_pipeline.run()


@pytest.mark.scenario("version without the identity")
def test_events_of_versions_without_the_identity_are_never_taken_for_one_another(make_pipeline):
    live_pipeline = make_versions_pipeline(make_pipeline)
    play(live_pipeline)
    assert_each_event_is_told_apart(live_pipeline, range(120), "1")
    # By its number the renamed field is found, and what was sent twice is one event.
    live_pipeline.document["source"]["protobuf"]["match"] = "number"
    live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)
    live_pipeline.run()
    assert_each_event_is_told_apart(live_pipeline, range(120), "12")


@pytest.mark.defect("version without the identity")
def test_a_default_in_place_of_a_lacking_field_is_noticed(make_pipeline, monkeypatch):
    """A seeded defect: what a version lacks counts with its default."""
    monkeypatch.setattr(read_plan, "refused_versions", lambda *_: {})
    live_pipeline = make_versions_pipeline(make_pipeline)
    play(live_pipeline)
    with pytest.raises(AssertionError, match="different events have one id"):
        assert_each_event_is_told_apart(live_pipeline, range(120), "1")
