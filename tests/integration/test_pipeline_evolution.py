"""Fields that come up while a pipeline runs, and schema versions on real tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from live_pipeline import Event, LivePipeline, encode, make_event
from oncehouse.cli.app import run_command
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.batches import retry_parked
from oncehouse.ledger.catalog.learned_fields import list_fields
from oncehouse.ledger.models import BatchStatus, RequestKind
from oncehouse.pipeline.ingest import epoch

EVENTS = [make_event(number) for number in range(40)]


def send(live_pipeline: LivePipeline, events, **more: object) -> None:
    for event in events:
        live_pipeline.expected.setdefault(event, encode_note(event))
    live_pipeline.send_raw([encode(event, **more) for event in events])


def encode_note(event) -> str:
    return json.loads(encode(event))["note"]


def values(live_pipeline: LivePipeline, column: str) -> list[tuple[int, Any]]:
    return live_pipeline.client.query(
        f"SELECT product_id, {column} FROM {live_pipeline.table} ORDER BY product_id"
    ).result_rows


@pytest.mark.scenario("new fields in the stream")
def test_a_new_field_becomes_a_column_while_the_pipeline_runs_and_old_batches_go_out_as_they_were(
    make_pipeline,
):
    live_pipeline = make_pipeline(source={"new_fields": "add"})
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD CONSTRAINT no CHECK product_id >= 10"
    )
    send(live_pipeline, EVENTS[:10])
    live_pipeline.run()
    assert [batch.status for batch in live_pipeline.batches()] == [BatchStatus.PARKED]
    with live_pipeline.start() as running:
        send(live_pipeline, EVENTS[10:20])
        running.wait_for_rows(10)
        send(live_pipeline, EVENTS[20:30], coupon="c", weight=1.5, nest={"a": 1})
        send(live_pipeline, EVENTS[30:], coupon=None, weight=2)
        running.wait_for_rows(30)
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP CONSTRAINT no")
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.run()
    assert {field.field: field.type for field in list_fields(live_pipeline.catalog)} == {
        "coupon": "Nullable(String)",
        "weight": "Nullable(Float64)",
        "nest": None,
    }
    assert_coupons(live_pipeline, range(20, 30))
    assert values(live_pipeline, "weight") == [
        (n, None if n < 20 else 1.5 if n < 30 else 2.0) for n in range(40)
    ]
    live_pipeline.assert_exact()
    # Filled again from the ledger, every row has the columns that the pipeline has now.
    live_pipeline.client.command(f"TRUNCATE TABLE {live_pipeline.table}")
    live_pipeline.request(RequestKind.REFILL_TABLE, table=live_pipeline.table)
    assert [value for _, value in values(live_pipeline, "coupon")].count("c") == 10
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("new fields in the stream")
def test_rows_that_bring_a_field_and_are_settled_without_it_are_noticed(make_pipeline, monkeypatch):
    """The field is learnt and its column made, but the epoch is not read again with it."""
    meet = epoch.learn_new_fields
    monkeypatch.setattr(epoch, "learn_new_fields", lambda *given: bool(meet(*given)) and False)
    live_pipeline = make_pipeline(source={"new_fields": "add"})
    send(live_pipeline, EVENTS[:10])
    send(live_pipeline, EVENTS[10:20], coupon="c")
    live_pipeline.run()
    live_pipeline.assert_exact()
    with pytest.raises(AssertionError, match="the values of new fields are lost"):
        assert_coupons(live_pipeline, range(10, 20))


def assert_coupons(live_pipeline: LivePipeline, with_coupon: range) -> None:
    expected = [
        (event[2], "c" if event[2] in with_coupon else None)
        for event in sorted(live_pipeline.expected, key=product)
    ]
    assert values(live_pipeline, "coupon") == expected, "the values of new fields are lost"


def product(event: Event) -> int:
    return event[2]


def test_stop_settles_nothing_and_ignore_keeps_the_field_in_the_bytes(make_pipeline):
    live_pipeline = make_pipeline(source={"new_fields": "stop"})
    send(live_pipeline, EVENTS[:5])
    live_pipeline.run()
    send(live_pipeline, EVENTS[5:10], coupon="c")
    with pytest.raises(ConfigurationError, match=r"coupon \(Nullable\(String\)\).*oncehouse schema apply"):
        live_pipeline.run()
    assert live_pipeline.counts().read == 5
    live_pipeline.document["source"]["new_fields"] = "ignore"
    live_pipeline.run()
    live_pipeline.assert_exact()
    assert list_fields(live_pipeline.catalog) == ()
    # Declared later, a table that is filled for the first time gets the values out of the kept bytes.
    live_pipeline.document["source"] |= {
        "new_fields": "stop",
        "fields": {**live_pipeline.document["source"]["fields"], "coupon": "Nullable(String)"},
    }
    file = write(live_pipeline)
    assert run_command(["schema", "apply", str(file)]) == 0
    live_pipeline.document["tables"].append({"name": f"{live_pipeline.database}.again"})
    live_pipeline.create_tables(f"{live_pipeline.database}.again")
    live_pipeline.request(RequestKind.REFILL_TABLE, table=f"{live_pipeline.database}.again")
    found = live_pipeline.client.query(
        f"SELECT product_id, coupon FROM {live_pipeline.database}.again ORDER BY product_id"
    ).result_rows
    assert found == [(n, "c" if n >= 5 else None) for n in range(10)]


def write(live_pipeline: LivePipeline) -> Path:
    file = live_pipeline.folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(live_pipeline.document), encoding="utf-8")
    return file


AVRO_FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]


def avro_file(live_pipeline: LivePipeline, version: str, *more: dict[str, object]) -> str:
    file = live_pipeline.folder / f"v{version}.avsc"
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": [*AVRO_FIELDS, *more]}))
    return str(file)


def send_avro(live_pipeline: LivePipeline, version: str, numbers, *more: str) -> None:
    """Longs are zigzag varints below 64, and texts stand behind their length."""
    producer = Producer({"bootstrap.servers": live_pipeline.document["source"]["kafka"]["bootstrap_servers"]})
    for number in numbers:
        texts = b"".join(bytes([len(text) * 2]) + text.encode() for text in (f"n{number}", *more))
        headers = [("schema-version", version.encode())]
        producer.produce(live_pipeline.topic, value=bytes([number * 2]) + texts, headers=headers, partition=0)
    assert producer.flush(60) == 0
    live_pipeline.produced += len(numbers)


@pytest.mark.scenario("schema version nobody knows")
def test_a_new_avro_version_waits_is_added_by_hand_and_brings_its_column(make_pipeline, capsys):
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["source"] |= {
        "format": "avro",
        "avro": {"version": "header", "schemas": {"1": avro_file(live_pipeline, "1")}},
        "fields": {"id": "Int64", "note": "String"},
        "new_fields": "add",
    }
    live_pipeline.document["identity"] = {"fields": ["id"]}
    live_pipeline.create_tables()
    live_pipeline.create_view()
    send_avro(live_pipeline, "1", range(5))
    send_avro(live_pipeline, "2", range(5, 8), "c")
    live_pipeline.run()
    assert live_pipeline.counts().waiting == 3
    file = write(live_pipeline)
    second = avro_file(live_pipeline, "2", {"name": "coupon", "type": "string"})
    assert run_command(["schema", "add", "2", str(file), "--avsc", second]) == 0
    assert run_command(["schema", "plan", str(file)]) == 0
    told = capsys.readouterr().out
    assert "field coupon Nullable(String) (add): version 2 brings it" in told
    assert "ADD COLUMN IF NOT EXISTS `coupon` Nullable(String);" in told
    live_pipeline.run()
    found = live_pipeline.client.query(
        f"SELECT id, note, coupon FROM {live_pipeline.table} ORDER BY id"
    ).result_rows
    assert found == [(n, f"n{n}", "c" if n >= 5 else None) for n in range(8)]
    live_pipeline.assert_settled()
