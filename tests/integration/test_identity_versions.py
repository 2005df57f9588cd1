"""Versions of a schema that rename or lack a field of the identity, through the command line to ClickHouse."""

from __future__ import annotations

import io
import json
import re
import subprocess

import fastavro
import pytest
from confluent_kafka import Producer

from live_pipeline import LivePipeline
from protobuf_examples import FOLDER, message_class

FIELDS = {"id": "Int64", "note": "String", "amount": "UInt32"}
PROTO = str(FOLDER / "versions.proto")
MESSAGES = {"1": "First", "2": "Second", "3": "Third"}
NAMES = {"1": "id", "2": "event_id"}


def command(
    live_pipeline: LivePipeline, name: str, *arguments: str, before: tuple[str, ...] = (), expect: int = 0
) -> str:
    """One command of oncehouse in a process of its own, and what it printed."""
    line = live_pipeline.command_line(name, *before)
    done = subprocess.run(
        [*line, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=live_pipeline.folder,
    )
    assert done.returncode == expect, f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def send(live_pipeline: LivePipeline, records: list[tuple[str, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": live_pipeline.document["source"]["kafka"]["bootstrap_servers"]})
    for version, value in records:
        producer.produce(
            live_pipeline.topic, value, partition=0, headers=[("schema-version", version.encode())]
        )
    assert producer.flush(60) == 0
    live_pipeline.produced += len(records)


def write_protobuf(version: str, number: int) -> bytes:
    values = {"note": f"n{number}", "amount": number}
    if version in NAMES:
        values[NAMES[version]] = number
    return message_class("versions.proto", f"versions.{MESSAGES[version]}")(**values).SerializeToString()


def protobuf_schema(version: str) -> dict[str, object]:
    return {"files": [PROTO], "message": f"versions.{MESSAGES[version]}"}


def avro_schema(version: str) -> dict[str, object]:
    fields: list[dict[str, object]] = [
        {"name": "note", "type": "string"},
        {"name": "amount", "type": "int"},
    ]
    if version in NAMES:
        fields.insert(0, {"name": NAMES[version], "type": "long", "default": 0})
    return {"type": "record", "name": "Event", "fields": fields}


def write_avro(version: str, number: int) -> bytes:
    values: dict[str, object] = {"note": f"n{number}", "amount": number}
    if version in NAMES:
        values[NAMES[version]] = number
    out = io.BytesIO()
    fastavro.schemaless_writer(out, avro_schema(version), values)
    return out.getvalue()


SEVEN = [(version, number) for number, version in enumerate(("1", "1", "1", "2", "2", "3", "3"), start=1)]


@pytest.fixture
def live_pipeline(make_pipeline) -> LivePipeline:
    live_pipeline: LivePipeline = make_pipeline(tables=False, identity={"fields": ["id"], "window": "60d"})
    live_pipeline.document["source"] |= {
        "format": "protobuf",
        "fields": FIELDS,
        "protobuf": {"version": "header", "schemas": {"1": protobuf_schema("1")}},
    }
    live_pipeline.create_tables()
    return live_pipeline


def rows(live_pipeline: LivePipeline) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for row in live_pipeline.client.query(
            f"SELECT id, amount FROM {live_pipeline.table} ORDER BY amount"
        ).result_rows
    ]


def learn_protobuf(live_pipeline: LivePipeline, *versions: str) -> None:
    for version in versions:
        told = command(
            live_pipeline, "schema", "--proto", PROTO, "--message", f"versions.{MESSAGES[version]}",
            before=("add", version),
        )  # fmt: skip
        assert f"version {version} is in the ledger" in told
        by_id = live_pipeline.document["identity"]["fields"] == ["id"]
        assert ("has no field id, which belongs to the identity" in told) is by_id


def test_seven_different_protobuf_events_are_never_four_rows(live_pipeline):
    learn_protobuf(live_pipeline, "2", "3")
    send(live_pipeline, [(version, write_protobuf(version, number)) for version, number in SEVEN])
    refused = command(live_pipeline, "check", expect=2)
    assert "version 2 has no field id, which belongs to the identity" in refused
    assert "version 3 has no field id, which belongs to the identity" in refused
    assert "source.protobuf.numbers" in refused
    assert "version 2 has no field id" in command(live_pipeline, "schema", before=("plan",), expect=2)
    command(live_pipeline, "run", "--once")
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate, counts.dead_letter) == (3, 0, 4), "events are taken for one another"
    assert rows(live_pipeline) == [(1, 1), (2, 2), (3, 3)]
    listed = command(live_pipeline, "dead-letters", before=("list",))
    assert "schema version 2 has no field id" in listed
    live_pipeline.assert_settled()

    # The renamed field keeps its number: said so, its records are replayed, and the others stay dead letters.
    live_pipeline.document["source"]["protobuf"]["match"] = "number"
    told = command(live_pipeline, "check", expect=2)
    assert "version 2" not in told
    assert "version 3 has no field id" in told
    command(live_pipeline, "dead-letters", before=("replay",))
    live_pipeline.run()
    assert rows(live_pipeline) == [(number, number) for number in range(1, 6)]
    send(
        live_pipeline,
        [("2", write_protobuf("2", 4)), ("1", write_protobuf("1", 5)), ("2", write_protobuf("2", 8))],
    )
    live_pipeline.run()
    assert rows(live_pipeline) == [(number, number) for number in (1, 2, 3, 4, 5, 8)], "a name changes no id"
    assert not live_pipeline.findings()


def test_a_version_that_the_file_lists_without_a_field_of_the_identity_is_not_run(live_pipeline):
    live_pipeline.document["source"]["protobuf"]["schemas"]["3"] = protobuf_schema("3")
    send(live_pipeline, [(version, write_protobuf(version, number)) for version, number in SEVEN])
    refused = command(live_pipeline, "run", "--once", expect=2)
    assert "version 3 has no field id, which belongs to the identity" in refused
    assert "Traceback" not in refused
    assert not rows(live_pipeline)
    # Said to be without it on purpose, all of its events count as one.
    live_pipeline.document["source"]["optional_fields"] = ["id"]
    live_pipeline.document["source"]["protobuf"]["numbers"] = {"id": 1}
    live_pipeline.document["source"]["protobuf"]["schemas"]["2"] = protobuf_schema("2")
    live_pipeline.run()
    assert rows(live_pipeline) == [*((number, number) for number in range(1, 6)), (0, 6)]


def test_seven_different_avro_events_are_never_four_rows(live_pipeline):
    live_pipeline.document["source"] |= {"format": "avro"}
    del live_pipeline.document["source"]["protobuf"]
    for version in ("1", "2", "3"):
        (live_pipeline.folder / f"{version}.avsc").write_text(json.dumps(avro_schema(version)))
    live_pipeline.document["source"]["avro"] = {
        "version": "header",
        "schemas": {"1": str(live_pipeline.folder / "1.avsc")},
    }
    for version in ("2", "3"):
        command(
            live_pipeline,
            "schema",
            "--avsc",
            str(live_pipeline.folder / f"{version}.avsc"),
            before=("add", version),
        )
    send(live_pipeline, [(version, write_avro(version, number)) for version, number in SEVEN])
    assert "version 2 has no field id" in command(live_pipeline, "check", expect=2)
    live_pipeline.run()
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate, counts.dead_letter) == (3, 0, 4), "events are taken for one another"
    live_pipeline.document["source"]["avro"]["aliases"] = {"id": ["event_id"]}
    command(live_pipeline, "dead-letters", before=("replay",))
    live_pipeline.run()
    assert rows(live_pipeline) == [(number, number) for number in range(1, 6)]
    assert not live_pipeline.findings()


# -- rules that come with the schema, or with its version -------------------------------------------------

MARKED = """
syntax = "proto3";
package marked;
import "oncehouse/options.proto";
message First {{ int64 id = 1 [(oncehouse.identity) = true]; string note = 2; uint32 amount = 3; }}
message Second {{ int64 event_id = 1 {mark}; string note = 2; uint32 amount = 3; }}
message Third {{ string note = 2; uint32 amount = 3; }}
"""


@pytest.mark.long
def test_marks_in_schemas_hold_over_versions_that_rename_or_lack_the_field(live_pipeline):
    proto = live_pipeline.folder / "marked.proto"
    proto.write_text(MARKED.format(mark="[(oncehouse.identity) = true]"))
    section = live_pipeline.document["source"]["protobuf"]
    section["schemas"] = {
        version: {"files": [str(proto)], "message": f"marked.{MESSAGES[version]}"} for version in ("1", "2")
    }
    live_pipeline.document["identity"] = {"from_schema": True, "window": "60d"}
    assert "mark different fields" in command(live_pipeline, "check", expect=2)
    section["match"] = "number"
    command(live_pipeline, "check")
    send(live_pipeline, [(version, write_protobuf(version, number)) for version, number in SEVEN[:5]])
    send(live_pipeline, [("2", write_protobuf("2", 1)), ("1", write_protobuf("1", 4))])
    command(live_pipeline, "run", "--once")
    assert rows(live_pipeline) == [(number, number) for number in range(1, 6)]
    assert live_pipeline.counts().duplicate == 2, "an event has one id in both versions"
    # A version without the mark would change the rule; the version that counts can be named.
    arguments = ("--proto", str(proto), "--message", "marked.Third")
    command(live_pipeline, "schema", *arguments, before=("add", "3"))
    send(live_pipeline, [("3", write_protobuf("3", number)) for number in (6, 7)])
    assert "mark different fields" in command(live_pipeline, "run", "--once", expect=2)
    live_pipeline.document["identity"]["from_schema"] = "1"
    command(live_pipeline, "run", "--once")
    assert rows(live_pipeline) == [(number, number) for number in range(1, 6)]
    assert live_pipeline.counts().dead_letter == 2
    live_pipeline.assert_settled()


@pytest.mark.long
def test_a_rule_with_the_version_makes_an_event_of_each_version_and_refuses_those_without_the_field(
    live_pipeline,
):
    live_pipeline.document["identity"]["schema_version"] = True
    live_pipeline.document["source"]["protobuf"] |= {"match": "number"}
    live_pipeline.document["source"]["protobuf"]["schemas"]["2"] = protobuf_schema("2")
    learn_protobuf(live_pipeline, "3")
    records = [("1", 1), ("2", 1), ("1", 1), ("2", 1), ("3", 6), ("3", 7)]
    send(live_pipeline, [(version, write_protobuf(version, number)) for version, number in records])
    command(live_pipeline, "run", "--once")
    assert rows(live_pipeline) == [(1, 1), (1, 1)]
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate, counts.dead_letter) == (2, 2, 2)
    live_pipeline.assert_settled()


# -- tables that merge rows -------------------------------------------------------------------------------


@pytest.mark.long
def test_rows_without_the_key_of_a_merging_table_are_not_merged(make_pipeline):
    live_pipeline: LivePipeline = make_pipeline(tables=False, identity={"fields": ["note"], "window": "60d"})
    live_pipeline.document["source"] |= {
        "format": "protobuf",
        "fields": FIELDS,
        "protobuf": {"version": "header", "schemas": {"1": protobuf_schema("1")}},
    }

    def merging(ddl: str) -> str:
        ddl = ddl.replace("ENGINE = MergeTree", "ENGINE = ReplacingMergeTree(amount)")
        return re.sub(r"ORDER BY [^\n]+", "ORDER BY id", ddl)

    live_pipeline.create_tables(then=merging)
    engine = f"SELECT engine_full FROM system.tables WHERE database = '{live_pipeline.database}' AND name = 'events'"
    assert "ReplacingMergeTree(amount) ORDER BY id" in live_pipeline.client.query(engine).result_rows[0][0]
    learn_protobuf(live_pipeline, "3")
    lacking = "version 3 has no field id, which decides which rows"
    assert lacking in command(live_pipeline, "check", expect=2)
    assert lacking in command(live_pipeline, "schema", before=("plan",), expect=2)
    send(
        live_pipeline,
        [(version, write_protobuf(version, number)) for version, number in SEVEN if version != "2"],
    )
    command(live_pipeline, "run", "--once")
    live_pipeline.client.command(f"OPTIMIZE TABLE {live_pipeline.table} FINAL")
    assert rows(live_pipeline) == [(1, 1), (2, 2), (3, 3)]
    assert lacking in command(live_pipeline, "dead-letters", before=("list",))
    counts = live_pipeline.counts()
    assert (counts.new, counts.dead_letter) == (3, 2)
