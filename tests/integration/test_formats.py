"""Each format from a real producer to rows in ClickHouse, with exact values at the edges of its types."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from oncehouse.monitoring.overview import read_overview
from registry import running_registry

RECORDED = Path(__file__).parent.parent / "recordings" / "debezium-postgres.jsonl"
EVERY_LETTER = "".join(
    map(chr, [0, 9, 10, 34, 92, 127, 233, 0x2028, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x1F600, 0x10FFFF])
)
DIGITS = Decimal((1, (9,) * 38, -10))


def read(
    live_pipeline, columns: str, order: str = "1", table: str | None = None, *, final: bool = False
) -> list[tuple]:
    told = f"SELECT {columns} FROM {table or live_pipeline.table} {'FINAL' if final else ''} ORDER BY {order}"
    return live_pipeline.client.query(told).result_rows


def section(format_: str, fields: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"format": format_, "fields": fields, **more}


# -- Avro -------------------------------------------------------------------------------------------------

EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "ratio", "type": "double"},
        {"name": "half", "type": "float"},
        {"name": "word", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "ident", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "home",
            "type": [
                "null",
                {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]},
            ],
        },
    ],
}
LATER = {**EVENT, "fields": [*EVENT["fields"], {"name": "added", "type": "int", "default": 7}]}
AVRO_FIELDS = {
    "id": "Int64",
    "small": "Int32",
    "ratio": "Float64",
    "half": "Float32",
    "word": "Nullable(String)",
    "raw": "String",
    "price": "Decimal(38, 10)",
    "day": "Date32",
    "at": "DateTime64(6, 'UTC')",
    "ident": "UUID",
    "kind": "LowCardinality(String)",
    "tags": "Array(Nullable(String))",
    "counts": "Map(String, Int64)",
    "home.city": "Nullable(String)",
    "added": "Nullable(Int32)",
}
LOW = {
    "id": -(1 << 63),
    "small": -(1 << 31),
    "ratio": -math.inf,
    "half": -0.0,
    "word": None,
    "raw": b"",
    "price": DIGITS,
    "day": dt.date(1970, 1, 1),
    "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    "ident": "00000000-0000-0000-0000-000000000000",
    "kind": "a",
    "tags": [],
    "counts": {},
    "home": None,
}
HIGH = {
    "id": (1 << 63) - 1,
    "small": (1 << 31) - 1,
    "ratio": math.nan,
    "half": math.inf,
    "word": EVERY_LETTER,
    "raw": bytes(range(256)),
    "price": DIGITS.copy_negate(),
    "day": dt.date(2299, 12, 31),
    "at": dt.datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=dt.UTC),
    "ident": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "kind": "b",
    "tags": ["", None, EVERY_LETTER],
    "counts": {"": -(1 << 63), EVERY_LETTER: (1 << 63) - 1},
    "home": {"city": ""},
}


def avro(number: int, schema: Any, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


@pytest.mark.scenario("schema version nobody knows")
def test_avro_by_a_registry_is_exact_and_an_unknown_version_waits_for_its_schema(make_pipeline):
    with running_registry() as registry:
        registry.register("event", EVENT)
        source = section("avro", AVRO_FIELDS, avro={"registry": {"url": registry.url}})
        live_pipeline = make_pipeline(source=source, identity={"fields": ["id"]})
        middle = LOW | {"id": 0, "added": -1}
        live_pipeline.send_raw(
            [avro(1, EVENT, LOW), avro(1, EVENT, HIGH), avro(2, LATER, middle), avro(1, EVENT, LOW), b"junk"]
        )
        live_pipeline.run()
        counts = live_pipeline.counts()
        assert (counts.new, counts.duplicate, counts.waiting, counts.dead_letter) == (2, 1, 1, 1)
        registry.register("event", LATER)
        live_pipeline.run()
        registry.answers = [(500, b"")] * 1000  # away, and not needed any more
        live_pipeline.send_raw([avro(2, LATER, middle | {"id": 1})])
        live_pipeline.run()
    columns = (
        "id, small, toString(ratio), toString(half), word, hex(raw), toString(price), toString(day), toString(at), "
        "toString(ident), kind, tags, counts, `home.city`, added"
    )
    low = (
        LOW["id"], LOW["small"], "-inf", "-0", None, "", "-9999999999999999999999999999.9999999999", "1970-01-01",
        "1970-01-01 00:00:00.000000", LOW["ident"], "a", [], {}, None,
    )  # fmt: skip
    high = (
        HIGH["id"], HIGH["small"], "nan", "inf", EVERY_LETTER, bytes(range(256)).hex().upper(),
        "9999999999999999999999999999.9999999999", "2299-12-31", "2262-04-11 23:47:16.854775", HIGH["ident"], "b",
        HIGH["tags"], HIGH["counts"], "",
    )  # fmt: skip
    newer = (*low[1:], -1)
    assert read(live_pipeline, columns) == [(*low, None), (0, *newer), (1, *newer), (*high, None)]
    live_pipeline.assert_settled()


def test_forged_schema_numbers_end_as_dead_letters_next_to_real_events(make_pipeline):
    """More numbers than may wait, sent with events of a known version and of one that the registry gets later."""
    fields = {"id": "Int64", "home.city": "Nullable(String)"}
    simple = EVENT | {"fields": [{"name": "id", "type": "long"}]}
    with running_registry() as registry:
        registry.register("event", simple)
        source = section("avro", fields, avro={"registry": {"url": registry.url}})
        # One epoch, whose waiting records fit into one file.
        large = {"epoch": {"max_rows": 10_000}, "batch": {"max_rows": 10_000}}
        live_pipeline = make_pipeline(source=source, identity={"fields": ["id"]}, **large)
        forged = [avro(number, simple, {"id": number}) for number in range(1000, 2500)]
        known = [avro(1, simple, {"id": number}) for number in range(500)]
        coming = [avro(2, simple, {"id": number}) for number in range(500, 520)]
        live_pipeline.send_raw([*forged[:700], *known, *coming, *forged[700:]])
        live_pipeline.run()
        counts = live_pipeline.counts()
        assert (counts.read, counts.new, counts.waiting, counts.dead_letter) == (2020, 500, 1019, 501)
        overview = read_overview(live_pipeline.catalog)
        assert next(iter(overview.waiting.items())) == ("2", 20)
        assert (len(overview.waiting), overview.waiting_others) == (20, 1019 - 20 - 19)
        registry.register("event", simple)
        live_pipeline.run()
        assert read(live_pipeline, "id", "id") == [(number,) for number in range(520)]
        live_pipeline.grow_older(8 * 86400)
        live_pipeline.run()
    overview = read_overview(live_pipeline.catalog)
    assert (overview.waiting, overview.waiting_others) == ({}, 0)
    assert overview.dead_letters == {"schema_unknown": 1500}
    assert read(live_pipeline, "id", "id") == [(number,) for number in range(520)]
    assert not live_pipeline.findings()
    live_pipeline.assert_settled()


# -- CSV, text, JSON Lines --------------------------------------------------------------------------------

CSV_FIELDS = {
    "id": "UInt64",
    "small": "Int8",
    "ratio": "Float64",
    "word": "Nullable(String)",
    "price": "Decimal(38, 10)",
    "day": "Date32",
    "at": "DateTime64(9, 'UTC')",
    "flag": "Bool",
}


def test_csv_of_several_lines_a_message_is_exact(make_pipeline):
    live_pipeline = make_pipeline(
        source=section("csv", CSV_FIELDS, csv={"null": "\\N"}), identity={"fields": ["id"]}
    )
    letters = EVERY_LETTER.replace('"', '""')
    live_pipeline.send_raw(
        [
            f'18446744073709551615,-128,NaN,"{letters}",{DIGITS},1970-01-01,1970-01-01T00:00:00Z,true\n'
            f"0,127,-Infinity,\\N,{DIGITS.copy_negate()},2299-12-31,2262-04-11T23:47:16.854775807Z,false\n"
            "1,128,0,x,0,1970-01-01,1970-01-01T00:00:00Z,true\n".encode(),
            b'2,0,0,"",0,1970-01-01,1970-01-01T00:00:00Z,true',
            b"3,0",
        ]
    )
    live_pipeline.run()
    columns = "id, small, toString(ratio), word, toString(price), toString(day), toString(at), flag"
    digits = "9999999999999999999999999999.9999999999"
    first, last = "1970-01-01 00:00:00.000000000", "2262-04-11 23:47:16.854775807"
    assert read(live_pipeline, columns) == [
        (0, 127, "-inf", None, digits, "2299-12-31", last, False),
        (2, 0, "0", "", "0", "1970-01-01", first, True),
        ((1 << 64) - 1, -128, "nan", EVERY_LETTER, f"-{digits}", "1970-01-01", first, True),
    ]
    counts = live_pipeline.counts()
    assert (counts.read, counts.new, counts.dead_letter) == (5, 3, 2)
    assert not live_pipeline.findings()


def test_json_lines_are_events_of_their_own_and_exact(make_pipeline):
    fields = CSV_FIELDS | {"low": "Int64"}
    live_pipeline = make_pipeline(source=section("jsonl", fields), identity={"fields": ["id"]})
    greatest, digits = (1 << 64) - 1, "9999999999999999999999999999.9999999999"
    first = {
        "id": greatest,
        "small": -128,
        "ratio": sys.float_info.max,
        "word": EVERY_LETTER,
        "low": -(1 << 63),
    }
    first |= {"day": "1970-01-01", "at": "1970-01-01T00:00:00Z", "flag": True}
    last = {"id": 0, "small": 127, "ratio": 5e-324, "word": None, "price": digits, "low": (1 << 63) - 1}
    last |= {"day": "2299-12-31", "at": "2262-04-11T23:47:16.854775807Z", "flag": False}
    # A number of 38 digits, which Python's own writer would round.
    exact = json.dumps(first).removesuffix("}") + f', "price": -{digits}}}'
    again, beyond, no_number = (
        json.dumps(last | changes) for changes in ({}, {"small": 128}, {"ratio": math.nan})
    )
    empty = json.dumps(last | {"id": 2, "word": ""})
    live_pipeline.send_raw(
        [f'{exact}\n\n{json.dumps(last)}\n{{"id"'.encode(), f"{again}\n{beyond}\n{no_number}".encode(), None]
    )
    live_pipeline.send_raw([empty.encode()])
    live_pipeline.run()
    columns = "id, small, low, ratio, word, toString(price), toString(day), toString(at), flag"
    begin, end = "1970-01-01 00:00:00.000000000", "2262-04-11 23:47:16.854775807"
    late = (digits, "2299-12-31", end, False)
    assert read(live_pipeline, columns) == [
        (0, 127, (1 << 63) - 1, 5e-324, None, *late),
        (2, 127, (1 << 63) - 1, 5e-324, "", *late),
        (
            greatest,
            -128,
            -(1 << 63),
            sys.float_info.max,
            EVERY_LETTER,
            f"-{digits}",
            "1970-01-01",
            begin,
            True,
        ),
    ]
    counts = live_pipeline.counts()
    assert (counts.read, counts.new, counts.duplicate, counts.dead_letter, counts.skipped) == (8, 3, 1, 3, 1)
    assert not live_pipeline.findings()


def test_a_pattern_turns_a_log_into_columns(make_pipeline):
    pattern = r"^(?P<at>\S+) (?P<level>[A-Z]+)(?: code=(?P<code>\d+))? (?P<message>(?s:.*))$"
    fields = {
        "at": "DateTime64(3, 'UTC')",
        "level": "LowCardinality(String)",
        "code": "Nullable(UInt16)",
        "message": "String",
    }
    live_pipeline = make_pipeline(
        source=section("text", fields, text={"pattern": pattern}), identity={"fields": ["at", "message"]}
    )
    live_pipeline.send_raw(
        [
            f"1970-01-01T00:00:00Z INFO code=65535 {EVERY_LETTER}".encode(),
            b"2262-04-11T23:47:16.854Z WARN slow",
            b"nonsense",
        ]
    )
    live_pipeline.run()
    assert read(live_pipeline, "toString(at), level, code, message") == [
        ("1970-01-01 00:00:00.000", "INFO", 65535, EVERY_LETTER),
        ("2262-04-11 23:47:16.854", "WARN", None, "slow"),
    ]
    assert live_pipeline.counts().dead_letter == 1
    live_pipeline.assert_settled()


def send_records(live_pipeline, servers: str, records: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for record in records:
        key, value = record["key"], record["value"]
        producer.produce(
            live_pipeline.topic, key=key and key.encode(), value=value and value.encode(), partition=0
        )
    assert producer.flush(60) == 0
    live_pipeline.produced += len(records)


# -- Debezium ---------------------------------------------------------------------------------------------

CHANGE_FIELDS = {
    "id": "Int64",
    "small": "Nullable(Int16)",
    "double_": "Nullable(Float64)",
    "price": "Nullable(Decimal(38, 10))",
    "anything": "Nullable(Decimal(38, 3))",
    "name": "Nullable(String)",
    "day": "Nullable(Date)",
    "stamp6": "Nullable(DateTime64(6, 'UTC'))",
    "ident": "Nullable(UUID)",
    "tags": "Array(Nullable(String))",
    "_version": "UInt64",
    "_deleted": "UInt8",
}


def replace_engine(ddl: str) -> str:
    assert "ENGINE = MergeTree" in ddl
    ddl = ddl.replace("ENGINE = MergeTree", "ENGINE = ReplacingMergeTree(_version, _deleted)", 1)
    return re.sub(r"ORDER BY [^\n]*", "ORDER BY id", ddl, count=1)


def test_changes_that_a_real_connector_wrote_end_as_the_rows_of_its_database(make_pipeline, kafka):
    recorded = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    messages = [one for one in recorded if one["topic"] == "described.public.orders"]
    live_pipeline = make_pipeline(
        tables=False, source=section("debezium", CHANGE_FIELDS), identity={"fields": []}
    )
    live_pipeline.create_tables(then=replace_engine)
    send_records(live_pipeline, kafka.bootstrap_servers, messages)
    live_pipeline.run()
    # A connector that crashed sends again what it had not noted down.
    send_records(live_pipeline, kafka.bootstrap_servers, messages[3:])
    live_pipeline.run()
    counts = live_pipeline.counts()
    assert (counts.new, counts.duplicate, counts.skipped, counts.dead_letter) == (10, 7, 4, 0)
    columns = (
        "id, small, toString(double_), toString(price), toString(anything), name, toString(day), toString(stamp6), "
        "toString(ident), tags"
    )
    nothing = (None,) * 4
    assert read(live_pipeline, columns, final=True) == [
        (
            1, -32768, "nan", "9999999999999999999999999999.9999999999", "12.34", "third", "1970-01-01",
            "2262-04-11 23:47:16.854775", "123e4567-e89b-12d3-a456-426614174000", ["x", None, ""],
        ),
        (101, *nothing, "copied", *nothing[:3], []),
        (102, *nothing, "copied", *nothing[:3], []),
        (
            (1 << 63) - 1, 32767, "inf", "-0.0000000001", "1000000000000000000000000000000", "", "2149-06-06",
            "1900-01-01 00:00:00.000000", "00000000-0000-0000-0000-000000000000", [],
        ),
    ]  # fmt: skip
    live_pipeline.assert_settled()
