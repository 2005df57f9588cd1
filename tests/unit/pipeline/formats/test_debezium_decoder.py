"""Debezium: envelopes with and without schema, what each operation means, and whatever bytes come."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from debezium_examples import FIELDS, MYSQL, OWN, POSTGRES, column, decode, describe, envelope, write
from oncehouse.pipeline.convert.rejection import Reason


def encode(number: int) -> str:
    size = max(1, (number.bit_length() + 8) // 8)
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def test_each_operation_becomes_the_row_that_it_leaves():
    row = {"id": 1, "name": "a"}
    decoded = decode(
        FIELDS,
        [
            write(envelope("r", row)),
            write(envelope("u", row | {"name": "b"}, row, POSTGRES | {"lsn": 101})),
            write(envelope("d", None, row | {"name": "b"}, POSTGRES | {"lsn": 102})),
            None,
            write(envelope("m")),
        ],
    )
    assert [(one["name"], one["_deleted"], one["_op"]) for one in decoded.rows.to_pylist()] == [
        ("a", 0, "r"),
        ("b", 0, "u"),
        ("b", 1, "d"),
    ]
    assert decoded.skipped.tolist() == [3, 4]
    assert decoded.rows.column("_table").to_pylist() == ["shop.public.orders"] * 3
    assert decoded.rows.column("_position").to_pylist() == ["100:snapshot", "101", "102"]
    assert decoded.rows.column("_version").to_pylist() == [1000, 1001, 1002]


def test_the_order_in_kafka_is_the_version_whatever_the_places_in_the_log_are():
    row, later, earlier = {"id": 1, "name": "a"}, POSTGRES | {"lsn": 200}, POSTGRES | {"lsn": 150}
    values = [
        *(b"nonsense", write(envelope("d", None, row, later)), None),
        write(envelope("c", row, None, earlier), describe(column("int64") | {"field": "id"})),
        write(envelope("c", row, None, earlier)),
    ]
    decoded = decode({"id": "Int64", "_version": "UInt64", "_position": "String"}, values)
    assert decoded.rows.to_pylist() == [
        {"id": 1, "_version": 1001, "_position": "200"},
        {"id": 1, "_version": 1003, "_position": "150"},
        {"id": 1, "_version": 1004, "_position": "150"},
    ]


def test_a_change_at_the_place_of_the_snapshot_is_another_event():
    row = {"id": 1, "name": "a"}
    rows = decode(FIELDS, [write(envelope("r", row)), write(envelope("u", row, row))]).rows.to_pylist()
    assert rows[0]["_position"] != rows[1]["_position"]


def test_places_in_binary_logs_tell_changes_apart():
    row = {"id": 1, "name": "a"}
    places = [
        MYSQL,
        MYSQL | {"pos": 4_000_000_000},
        MYSQL | {"file": "binlog.000010", "pos": 4},
        MYSQL | {"file": "binlog.000010", "pos": 4, "row": 1},
    ]
    decoded = decode(FIELDS, [write(envelope("c", row, None, source)) for source in places])
    assert len(set(decoded.rows.column("_position").to_pylist())) == 4
    assert decoded.rows.column("_table").to_pylist() == ["shop.orders"] * 4


def test_other_databases_have_places_of_their_own():
    source = {
        "db": "d",
        "table": "t",
        "change_lsn": "0000:01",
        "commit_lsn": "0000:02",
        "ts_ms": 7,
        "ts_ns": 7_000_001,
    }
    rows = decode(FIELDS, [write(envelope("c", {"id": 1, "name": ""}, None, source))]).rows.to_pylist()
    assert rows[0]["_position"] == "0000:02:0000:01"


def test_the_version_is_the_offset_and_the_key_keeps_any_bytes():
    rows = decode(FIELDS, [write(envelope("d", before={}))], [b"\x80"], first_offset=7).rows
    assert rows.column("_version").to_pylist() == [7]
    assert rows.column("_key").cast(pa.binary()).to_pylist() == [b"\x80"]


def test_the_key_is_the_same_with_and_without_its_schema():
    row = {"id": 1, "name": "a"}
    keys = [b'{"id":1}', b'{"schema":{"type":"struct"},"payload":{"id":1}}', None]
    found = decode(FIELDS, [write(envelope("c", row))] * 3, keys).rows.column("_key").to_pylist()
    assert found == ['{"id":1}', '{"id":1}', '{"before":null,"after":{"id":1,"name":"a"}']


def test_a_deleted_row_has_defaults_where_the_log_has_nothing():
    fields = {
        "id": "Int64",
        "name": "String",
        "price": "Decimal(9, 2)",
        "day": "Date",
        "at": "DateTime64(3)",
        "kind": "Enum8('x' = 1, 'y' = 2)",
        "uid": "UUID",
        "tags": "Array(String)",
        "note": "Nullable(String)",
        "_deleted": "UInt8",
    }
    decoded = decode(fields, [write(envelope("d", None, {"id": 7}))])
    row = decoded.rows.to_pylist()[0]
    assert (row["id"], row["name"], row["price"], row["kind"], row["tags"], row["note"], row["_deleted"]) == (
        7,
        "",
        Decimal("0.00"),
        "x",
        [],
        None,
        1,
    )
    missing = decode(fields, [write(envelope("u", {"id": 7}))])
    assert missing.rejected[0].reason is Reason.MISSING_FIELD


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (write(envelope("t")), Reason.UNSUPPORTED),
        (write(envelope("x", {"id": 1, "name": ""})), Reason.MALFORMED),
        (write(envelope(None, {"id": 1, "name": ""})), Reason.MALFORMED),
        (write({"id": 1}), Reason.MALFORMED),
        (write(envelope("c")), Reason.MISSING_FIELD),
        (write(envelope("d", {"id": 1, "name": ""})), Reason.MISSING_FIELD),
        (write(envelope("c", {"id": 1, "name": ""}, None, {"table": "t", "ts_ms": 5})), Reason.MALFORMED),
        (write(envelope("c", {"id": 1, "name": ""}, None, None)), Reason.MALFORMED),
        (write(envelope("c", {"id": "x", "name": ""})), Reason.WRONG_TYPE),
        (b"nonsense", Reason.NOT_JSON),
        (b'{"schema":{', Reason.NOT_JSON),
        (b'{"schema":{},"payload":', Reason.EMPTY),
        (b'{"schema":[],"payload":{"op":"c"}}', Reason.MISSING_FIELD),
        (b'{"schema":{"fields":3},"payload":{"op":"c"}}', Reason.MISSING_FIELD),
        (b'{"schema":{},"payload":{}}x', Reason.EMPTY),
    ],
)
def test_what_is_no_change_of_a_row_is_refused_alone(value, reason):
    good = write(envelope("c", {"id": 1, "name": "a"}))
    decoded = decode(FIELDS, [good, value, good])
    assert decoded.taken.tolist() == [0, 2]
    assert decoded.rejected[0].reason is reason


MARK = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("described", "type_", "mark", "good"),
    [
        (column("string"), "Nullable(String)", MARK, "a"),
        (column("bytes"), "Nullable(String)", base64.b64encode(MARK.encode()).decode(), "YQ=="),
        (column("array", items={"type": "string"}), "Array(String)", [MARK], ["a"]),
        (
            column("array", items={"type": "string"}),
            "Array(UUID)",
            ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
            ["00000000-0000-0000-0000-000000000007"],
        ),
        (column("array", items={"type": "int32"}), "Array(Int32)", list(MARK.encode()), list(range(28))),
        (column("array", items={"type": "boolean"}), "Array(Bool)", None, [True]),
    ],
)
def test_a_value_that_is_not_in_the_log_is_a_dead_letter_and_never_taken_for_null(
    described, type_, mark, good
):
    values = [write(envelope("u", {"v": value}), describe(described)) for value in (good, mark, good)]
    decoded = decode({"v": type_}, values)
    if mark is None:
        assert decoded.rows.column("v").to_pylist()[1] == []  # nothing tells such a one from a null
        return
    assert decoded.taken.tolist() == [0, 2]
    assert decoded.rejected[0].reason is Reason.MISSING_FIELD
    assert (
        "field v: not changed, and therefore not in the log; set REPLICA IDENTITY FULL"
        in decoded.rejected[0].detail
    )


# -- types ------------------------------------------------------------------------------------------------


DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = "io.debezium.data.VariableScaleDecimal"


@pytest.mark.parametrize(
    ("described", "type_", "value", "expected"),
    [
        (column("int64"), "Int64", -(1 << 63), -(1 << 63)),
        (column("boolean"), "Bool", True, True),
        (column("double"), "Float64", 1.5, 1.5),
        (column("int32", "io.debezium.time.Date"), "Date32", -25567, "1900-01-01"),
        (column("int32", "io.debezium.time.Date"), "Int32", -25567, -25567),
        (
            column("int64", "io.debezium.time.Timestamp"),
            "DateTime64(6)",
            1500,
            "1970-01-01 00:00:01.500000+00:00",
        ),
        (
            column("int64", "io.debezium.time.MicroTimestamp"),
            "DateTime64(3)",
            1500999,
            "1970-01-01 00:00:01.500000+00:00",
        ),
        (
            column("int64", "io.debezium.time.NanoTimestamp"),
            "DateTime",
            1_500_000_000,
            "1970-01-01 00:00:01+00:00",
        ),
        (column("int64", "io.debezium.time.MicroTime"), "Int64", 86399999999, 86399999999),
        (
            column("string", "io.debezium.time.ZonedTimestamp"),
            "DateTime64(6)",
            "2026-11-15T10:00:00.000001Z",
            "2026-11-15 10:00:00.000001+00:00",
        ),
        (column("bytes", DECIMAL, parameters={"scale": "2"}), "Decimal(38, 2)", encode(-1), "-0.01"),
        (column("bytes", DECIMAL, parameters={"scale": "0"}), "UInt64", encode((1 << 64) - 1), (1 << 64) - 1),
        (column("struct", VARIABLE), "Decimal(38, 3)", {"scale": 3, "value": encode(12340)}, "12.340"),
        (column("struct", VARIABLE), "Decimal(38, 0)", {"scale": -2, "value": encode(5)}, "500"),
        (column("bytes"), "FixedString(2)", "AP8=", b"\x00\xff"),
        (column("bytes", "io.debezium.data.Bits"), "UInt16", base64.b64encode(b"\x05\x01").decode(), 261),
        (column("string", "io.debezium.data.Json"), "String", '{"a":1}', '{"a":1}'),
        (
            column("string", "io.debezium.data.Uuid"),
            "UUID",
            "00000000-0000-0000-0000-000000000007",
            b"\0" * 15 + b"\7",
        ),
        (column("array", items={"type": "string"}), "Array(Nullable(String))", ["a", None], ["a", None]),
        (
            column("array", items={"type": "int32", "name": "io.debezium.time.Date"}),
            "Array(Date)",
            [0],
            "[datetime.date(1970, 1, 1)]",
        ),
        (
            column(
                "struct",
                "point",
                fields=[column("double") | {"field": "x"}, column("bytes") | {"field": "wkb"}],
            ),
            "Tuple(x Float64, wkb FixedString(1))",
            {"x": 1.5, "wkb": "/w=="},
            {"x": 1.5, "wkb": b"\xff"},
        ),
        (
            column("map", values={"type": "string"}, keys={"type": "string"}),
            "Map(String, Nullable(String))",
            {"a": "b"},
            [("a", "b")],
        ),
    ],
)
def test_the_schema_says_what_a_value_means(described, type_, value, expected):
    decoded = decode({"v": type_}, [write(envelope("c", {"v": value}), describe(described))])
    assert not decoded.rejected, decoded.rejected
    found = decoded.rows.column(0)[0].as_py()
    assert found == expected or str(found) == str(expected)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("Date", 1, "1970-01-02"),
        ("DateTime64(6)", 1_500_000, "1970-01-01 00:00:01.500000+00:00"),
        ("DateTime64(6)", "2026-11-15T10:00:00.000001Z", "2026-11-15 10:00:00.000001+00:00"),
        ("Decimal(38, 2)", encode(1234), "12.34"),
        ("UInt64", (1 << 64) - 1, (1 << 64) - 1),
        ("Array(Int32)", [1, 2], [1, 2]),
        ("Array(Date)", [1], "[datetime.date(1970, 1, 2)]"),
    ],
)
def test_without_a_schema_the_declared_type_says_it(type_, value, expected):
    decoded = decode({"v": type_}, [write(envelope("c", {"v": value}))])
    assert not decoded.rejected, decoded.rejected
    assert str(decoded.rows.column(0)[0].as_py()) == str(expected)


def test_decimals_may_be_texts_or_numbers_when_the_file_says_so():
    values = [write(envelope("c", {"v": value})) for value in ("12.34", 12.34)]
    decoded = decode({"v": "Decimal(9, 2)"}, values, precise=False)
    assert decoded.rows.column(0).to_pylist() == [Decimal("12.34")] * 2


def test_what_is_not_base64_is_refused():
    described = describe(column("bytes", DECIMAL, parameters={"scale": "2"}))
    decoded = decode({"v": "Decimal(9, 2)"}, [write(envelope("c", {"v": "?!"}), described)])
    assert decoded.rejected[0].reason is Reason.WRONG_TYPE


def test_schemas_may_change_inside_a_block():
    old = describe(column("int32", "io.debezium.time.Date"))
    new = describe(column("int64", "io.debezium.time.Timestamp"))
    values = [
        write(envelope("c", {"v": 1}), old),
        write(envelope("c", {"v": 86_400_000}), new),
        write(envelope("c", {"v": 2}), old),
        write(envelope("c", {"v": 3}), {}),
    ]
    decoded = decode({"v": "DateTime"}, values)
    assert [one.timestamp() for one in decoded.rows.column(0).to_pylist()] == [86400, 86400, 172800, 3]
    assert decoded.taken.tolist() == [0, 1, 2, 3]


def test_many_schemas_in_a_block_are_each_read_by_their_own():
    values = [
        write(envelope("c", {"v": number}), describe(column("int64")) | {"version": number % 80})
        for number in range(160)
    ]
    decoded = decode({"v": "Int64"}, values)
    assert decoded.rows.column(0).to_pylist() == list(range(160))


# -- as a real connector writes it ------------------------------------------------------------------------

RECORDED = Path(__file__).parents[3] / "recordings" / "debezium-postgres.jsonl"
DESCRIBED = {
    "id": "Int64",
    "small": "Nullable(Int16)",
    "real_": "Nullable(Float32)",
    "double_": "Nullable(Float64)",
    "flag": "Nullable(Bool)",
    "price": "Nullable(Decimal(38, 10))",
    "anything": "Nullable(Decimal(38, 3))",
    "name": "Nullable(String)",
    "day": "Nullable(Date)",
    "at_time": "Nullable(UInt32)",
    "at_micro": "Nullable(Int64)",
    "stamp3": "Nullable(DateTime64(3))",
    "stamp6": "Nullable(DateTime64(6))",
    "zoned": "Nullable(DateTime64(6))",
    "ident": "Nullable(UUID)",
    "document": "Nullable(String)",
    "feeling": "Nullable(Enum8('sad' = 1, 'ok' = 2, 'happy' = 3))",
    "bits": "Nullable(UInt8)",
    "flags": "Nullable(UInt64)",
    "raw": "Nullable(FixedString(2))",
    "tags": "Array(Nullable(String))",
    "numbers": "Array(Int32)",
    "span": "Nullable(Int64)",
}


def recorded(topic: str) -> tuple[list[bytes | None], list[bytes | None]]:
    found = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    mine = [one for one in found if one["topic"] == topic]
    return (
        [one["value"] and one["value"].encode() for one in mine],
        [one["key"] and one["key"].encode() for one in mine],
    )


def plain(row: dict[str, Any]) -> list[str]:
    return [str(value) for value in row.values()]


FIRST = [
    "1", "-32768", "1.5", "nan", "True", "9999999999999999999999999999.9999999999", "12.340", "Zoë 😀", "1970-01-01",
    "0", "86399999999", "1970-01-01 00:00:00+00:00", "2262-04-11 23:47:16.854775+00:00", "2026-11-15 10:00:00+00:00",
    str(bytes.fromhex("123e4567e89b12d3a456426614174000")), '{"a": [1, null]}', "happy", "21",
    str((1 << 39) + 1), str(b"\x00\xff"), "['x', None, '']", "[1, -2]", "2802603000000",
]  # fmt: skip
LAST = [
    str((1 << 63) - 1), "32767", "0.0", "inf", "False", "-1E-10", "1000000000000000000000000000000.000", "",
    "2149-06-06", "86399999", "1", "1900-01-01 00:00:00.001000+00:00", "1900-01-01 00:00:00+00:00",
    "1900-01-01 00:00:00+00:00", str(bytes(16)), "[]", "sad", "0", "0", str(bytes(2)), "[]", "[]", "0",
]  # fmt: skip


def test_every_type_that_postgres_has_is_exact_with_the_schema():
    decoded = decode(DESCRIBED, *recorded("described.public.orders"))
    assert not decoded.rejected
    rows = decoded.rows.to_pylist()
    assert plain(rows[0]) == FIRST
    assert plain(rows[2]) == LAST
    assert set(plain(rows[1])[1:]) == {"None", "[]"}


def test_the_same_without_the_schema_as_far_as_types_can_tell():
    silent = {
        "anything": None,
        "bits": "Nullable(String)",
        "flags": "Nullable(String)",
        "raw": "Nullable(String)",
    }
    fields = {
        name: silent.get(name, type_) for name, type_ in DESCRIBED.items() if silent.get(name, "") is not None
    }
    decoded = decode(fields, *recorded("plain.public.orders"))
    assert not decoded.rejected
    places = [place for place, name in enumerate(DESCRIBED) if name not in silent]
    kept = [place for place, name in enumerate(fields) if name not in silent]
    rows = [plain(row) for row in decoded.rows.to_pylist()]
    assert [rows[0][place] for place in kept] == [FIRST[place] for place in places]
    assert [rows[2][place] for place in kept] == [LAST[place] for place in places]
    assert decoded.rows.column("raw")[0].as_py() == "AP8="


@pytest.mark.parametrize("prefix", ["plain", "described"])
def test_changes_of_a_real_log_are_events_of_their_own(prefix):
    decoded = decode({"id": "Int64", "name": "Nullable(String)"} | OWN, *recorded(f"{prefix}.public.orders"))
    rows = decoded.rows.to_pylist()
    assert [(row["_op"], row["id"], row["name"], row["_deleted"]) for row in rows] == [
        ("r", 1, "Zoë 😀", 0),
        ("r", 3, None, 0),
        ("c", (1 << 63) - 1, "", 0),
        ("u", 1, "second", 0),
        ("u", 1, "third", 0),
        ("d", 3, None, 1),
        ("c", 30, None, 0),
        ("d", 30, None, 1),
        ("c", 101, "copied", 0),
        ("c", 102, "copied", 0),
    ]
    assert decoded.skipped.tolist() == [6, 9]
    identities = {(row["_table"], row["_key"], row["_position"]) for row in rows}
    assert len(identities) == len(rows), "two changes would be one event"
    # One COPY writes its rows at one place, one changed key is two events at one place.
    assert rows[8]["_position"] == rows[9]["_position"]
    assert rows[5]["_position"] == rows[6]["_position"]
    for key in {row["_key"] for row in rows}:
        versions = [row["_version"] for row in rows if row["_key"] == key]
        assert versions == sorted(set(versions)), "a later change has a later version"


def test_a_table_without_a_key_and_its_truncation():
    decoded = decode({"line": "String", "number": "Int32"} | OWN, *recorded("described.public.notes"))
    assert [(row["line"], row["_table"]) for row in decoded.rows.to_pylist()] == [
        ("one", "postgres.public.notes")
    ]
    assert decoded.rows.column("_key")[0].as_py() == '{"before":null,"after":{"line":"one","number":1}'
    assert [one.reason for one in decoded.rejected] == [Reason.UNSUPPORTED]
