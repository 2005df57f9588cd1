"""A schema version lacks or renames a field of the identity: its events wait, are dead letters, and come in later."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from oncehouse.ledger.catalog.epochs import list_dead_letter_files
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.models import LetterKind, RequestKind
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema
from oncehouse.pipeline.ingest import read_plan
from oncehouse.pipeline.requests.dead_letter_replay import read_letters
from protobuf_examples import FOLDER, message_class
from road import Road

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


def send(road: Road, numbers: range) -> None:
    """Events of the three versions in turns; the amount tells which one an event is."""
    producer = Producer({"bootstrap.servers": road.document["source"]["kafka"]["bootstrap_servers"]})
    for number in numbers:
        version, value = of(number)
        headers = [("schema-version", version.encode())]
        producer.produce(road.topic, value, partition=number % 2, headers=headers)
    assert producer.flush(60) == 0
    road.produced += len(numbers)


def make_versions_road(make_road) -> Road:
    road: Road = make_road(tables=False, partitions=2, identity={"fields": ["id"], "window": "60d"})
    road.document["source"] |= {
        "format": "protobuf",
        "fields": {"id": "Int64", "note": "String", "amount": "UInt32"},
        "protobuf": {
            "version": "header",
            "schemas": {"1": {"files": [PROTO], "message": "versions.First"}},
        },
    }
    road.create_tables()
    road.create_view()
    return road


def learn(road: Road) -> None:
    add_schemas(
        road.catalog,
        [make_schema(version, files=[PROTO], message=f"versions.{MESSAGES[version][0]}") for version in "23"],
    )


def assert_each_event_is_told_apart(road: Road, sent: range, versions: str) -> None:
    """Events of these versions are rows of their own ids; all others are kept as dead letters with their reason."""
    wanted = {number for number in sent if str(number % 3 + 1) in versions}
    found = road.client.query(f"SELECT amount, _unique_id FROM {road.table}").result_rows
    ids = {unique_id for _, unique_id in found}
    lost = wanted - {number for number, _ in found}
    assert not lost, f"{len(lost)} events are lost, among them {sorted(lost)[:3]}"
    assert {number for number, _ in found} == wanted, "different events have one id"
    assert len(found) == len(wanted) == len(ids), "rows are doubled"
    files = [kept.file for kept in list_dead_letter_files(road.catalog, kind=LetterKind.DEAD)]
    letters = read_letters(road.store, files).to_pylist()
    kept = {letter["value"] for letter in letters}
    assert kept == {of(number)[1] for number in set(sent) - wanted}, "a record is neither row nor dead letter"
    for letter in letters:
        assert letter["reason"] == "missing_field"
        assert "has no field id, which belongs to the identity" in letter["detail"]
    assert not list_dead_letter_files(road.catalog, kind=LetterKind.WAITING)
    assert not road.findings()
    road.assert_view()


def play(road: Road) -> None:
    send(road, range(90))
    road.run()
    assert road.counts().waiting == 60, "nobody knows their versions yet"
    learn(road)
    send(road, range(90, 120))
    send(road, range(30))
    road.run()


@pytest.mark.scenario("version without the identity")
def test_events_of_versions_without_the_identity_are_never_taken_for_one_another(make_road):
    road = make_versions_road(make_road)
    play(road)
    assert_each_event_is_told_apart(road, range(120), "1")
    # By its number the renamed field is found, and what was sent twice is one event.
    road.document["source"]["protobuf"]["match"] = "number"
    road.request(RequestKind.REPLAY_DEAD_LETTERS)
    road.run()
    assert_each_event_is_told_apart(road, range(120), "12")


@pytest.mark.defect("version without the identity")
def test_a_default_in_place_of_a_lacking_field_is_noticed(make_road, monkeypatch):
    """A seeded defect: what a version lacks counts with its default."""
    monkeypatch.setattr(read_plan, "refused_versions", lambda *_: {})
    road = make_versions_road(make_road)
    play(road)
    with pytest.raises(AssertionError, match="different events have one id"):
        assert_each_event_is_told_apart(road, range(120), "1")
