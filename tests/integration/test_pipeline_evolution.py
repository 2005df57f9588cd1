"""Fields that come up while a pipeline runs, and schema versions on real tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from oncehouse.cli.app import run_command
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.batches import retry_parked
from oncehouse.ledger.catalog.learned_fields import list_fields
from oncehouse.ledger.models import BatchStatus, RequestKind
from oncehouse.pipeline.ingest import epoch
from road import Event, Road, encode, make_event

EVENTS = [make_event(number) for number in range(40)]


def send(road: Road, events, **more: object) -> None:
    for event in events:
        road.expected.setdefault(event, encode_note(event))
    road.send_raw([encode(event, **more) for event in events])


def encode_note(event) -> str:
    return json.loads(encode(event))["note"]


def values(road: Road, column: str) -> list[tuple[int, Any]]:
    return road.client.query(f"SELECT product_id, {column} FROM {road.table} ORDER BY product_id").result_rows


@pytest.mark.scenario("new fields in the stream")
def test_a_new_field_becomes_a_column_while_the_pipeline_runs_and_old_batches_go_out_as_they_were(make_road):
    road = make_road(source={"new_fields": "add"})
    road.client.command(f"ALTER TABLE {road.table} ADD CONSTRAINT no CHECK product_id >= 10")
    send(road, EVENTS[:10])
    road.run()
    assert [batch.status for batch in road.batches()] == [BatchStatus.PARKED]
    with road.start() as running:
        send(road, EVENTS[10:20])
        running.wait_for_rows(10)
        send(road, EVENTS[20:30], coupon="c", weight=1.5, nest={"a": 1})
        send(road, EVENTS[30:], coupon=None, weight=2)
        running.wait_for_rows(30)
    road.client.command(f"ALTER TABLE {road.table} DROP CONSTRAINT no")
    for batch in road.batches(statuses=[BatchStatus.PARKED]):
        retry_parked(road.catalog, batch.batch_id)
    road.run()
    assert {field.field: field.type for field in list_fields(road.catalog)} == {
        "coupon": "Nullable(String)",
        "weight": "Nullable(Float64)",
        "nest": None,
    }
    assert_coupons(road, range(20, 30))
    assert values(road, "weight") == [(n, None if n < 20 else 1.5 if n < 30 else 2.0) for n in range(40)]
    road.assert_exact()
    # Filled again from the ledger, every row has the columns that the pipeline has now.
    road.client.command(f"TRUNCATE TABLE {road.table}")
    road.request(RequestKind.REFILL_TABLE, table=road.table)
    assert [value for _, value in values(road, "coupon")].count("c") == 10
    road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("new fields in the stream")
def test_rows_that_bring_a_field_and_are_settled_without_it_are_noticed(make_road, monkeypatch):
    """The field is learnt and its column made, but the epoch is not read again with it."""
    meet = epoch.meet_new_fields
    monkeypatch.setattr(epoch, "meet_new_fields", lambda *given: bool(meet(*given)) and False)
    road = make_road(source={"new_fields": "add"})
    send(road, EVENTS[:10])
    send(road, EVENTS[10:20], coupon="c")
    road.run()
    road.assert_exact()
    with pytest.raises(AssertionError, match="the values of new fields are lost"):
        assert_coupons(road, range(10, 20))


def assert_coupons(road: Road, with_coupon: range) -> None:
    expected = [
        (event[2], "c" if event[2] in with_coupon else None) for event in sorted(road.expected, key=product)
    ]
    assert values(road, "coupon") == expected, "the values of new fields are lost"


def product(event: Event) -> int:
    return event[2]


def test_stop_settles_nothing_and_ignore_keeps_the_field_in_the_bytes(make_road):
    road = make_road(source={"new_fields": "stop"})
    send(road, EVENTS[:5])
    road.run()
    send(road, EVENTS[5:10], coupon="c")
    with pytest.raises(ConfigurationError, match=r"coupon \(Nullable\(String\)\).*oncehouse schema apply"):
        road.run()
    assert road.counts().read == 5
    road.document["source"]["new_fields"] = "ignore"
    road.run()
    road.assert_exact()
    assert list_fields(road.catalog) == ()
    # Declared later, a table that is filled for the first time gets the values out of the kept bytes.
    road.document["source"] |= {
        "new_fields": "stop",
        "fields": {**road.document["source"]["fields"], "coupon": "Nullable(String)"},
    }
    file = write(road)
    assert run_command(["schema", "apply", str(file)]) == 0
    road.document["tables"].append({"name": f"{road.database}.again"})
    road.create_tables(f"{road.database}.again")
    road.request(RequestKind.REFILL_TABLE, table=f"{road.database}.again")
    found = road.client.query(
        f"SELECT product_id, coupon FROM {road.database}.again ORDER BY product_id"
    ).result_rows
    assert found == [(n, "c" if n >= 5 else None) for n in range(10)]


def write(road: Road) -> Path:
    file = road.folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(road.document), encoding="utf-8")
    return file


AVRO_FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]


def avro_file(road: Road, version: str, *more: dict[str, object]) -> str:
    file = road.folder / f"v{version}.avsc"
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": [*AVRO_FIELDS, *more]}))
    return str(file)


def send_avro(road: Road, version: str, numbers, *more: str) -> None:
    """Longs are zigzag varints below 64, and texts stand behind their length."""
    producer = Producer({"bootstrap.servers": road.document["source"]["kafka"]["bootstrap_servers"]})
    for number in numbers:
        texts = b"".join(bytes([len(text) * 2]) + text.encode() for text in (f"n{number}", *more))
        headers = [("schema-version", version.encode())]
        producer.produce(road.topic, value=bytes([number * 2]) + texts, headers=headers, partition=0)
    assert producer.flush(60) == 0
    road.produced += len(numbers)


@pytest.mark.scenario("schema version nobody knows")
def test_a_new_avro_version_waits_is_added_by_hand_and_brings_its_column(make_road, capsys):
    road = make_road(tables=False)
    road.document["source"] |= {
        "format": "avro",
        "avro": {"version": "header", "schemas": {"1": avro_file(road, "1")}},
        "fields": {"id": "Int64", "note": "String"},
        "new_fields": "add",
    }
    road.document["identity"] = {"fields": ["id"]}
    road.create_tables()
    road.create_view()
    send_avro(road, "1", range(5))
    send_avro(road, "2", range(5, 8), "c")
    road.run()
    assert road.counts().waiting == 3
    file = write(road)
    second = avro_file(road, "2", {"name": "coupon", "type": "string"})
    assert run_command(["schema", "add", "2", str(file), "--avsc", second]) == 0
    assert run_command(["schema", "plan", str(file)]) == 0
    told = capsys.readouterr().out
    assert "field coupon Nullable(String) (add): version 2 brings it" in told
    assert "ADD COLUMN IF NOT EXISTS `coupon` Nullable(String);" in told
    road.run()
    found = road.client.query(f"SELECT id, note, coupon FROM {road.table} ORDER BY id").result_rows
    assert found == [(n, f"n{n}", "c" if n >= 5 else None) for n in range(8)]
    road.assert_settled()
