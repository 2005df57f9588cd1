"""Avro: logical types, unions, versions side by side, aliases, defaults, paths, and where a version stands."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.avro.decoder import AvroDecoder
from oncehouse.pipeline.formats.avro.schema import parse_schema
from oncehouse.pipeline.formats.base import HEADERS, Decoded, DecodeLimits
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource

FIXED = VersionSource(place=VersionPlace.NONE, schema="1")
PREFIX = VersionSource(place=VersionPlace.PREFIX)
HEADER = VersionSource(place=VersionPlace.HEADER, header="version")


def record(*fields: Any, name: str = "Event") -> dict[str, Any]:
    listed = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": listed}


def logical(base: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def make_decoder(
    fields: dict[str, str], *schemas: Any, version_source: VersionSource = FIXED, **limits: Any
) -> AvroDecoder:
    return AvroDecoder(
        fields={name: parse_type(text) for name, text in fields.items()},
        schemas=[
            Schema(schema=str(number), format="avro", definition=json.dumps(schema))
            for number, schema in enumerate(schemas, start=1)
        ],
        version_source=version_source,
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64, **limits),
    )


def block(values: list[bytes | None], headers: list[Any] | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if headers is not None:
        columns["headers"] = pa.array(headers, HEADERS)
    return pa.record_batch(columns)


def decode_one(schema: Any, type_: str, value: Any) -> Any:
    decoded = make_decoder({"v": type_}, record(("v", schema))).decode(
        block([encode(record(("v", schema)), {"v": value})])
    )
    assert not decoded.rejected, decoded.rejected
    return decoded.rows.column(0)[0].as_py()


def reject_one(schema: Any, type_: str, value: Any) -> tuple[Reason, str]:
    decoded = make_decoder({"v": type_}, record(("v", schema))).decode(
        block([encode(record(("v", schema)), {"v": value})])
    )
    assert not len(decoded.taken)
    return decoded.rejected[0].reason, decoded.rejected[0].detail


UTC = dt.UTC
SIXTEEN = {"type": "fixed", "name": "F16", "size": 16}
WIDE = {"type": "fixed", "name": "F32", "size": 32}
DIGITS_38 = Decimal((1, (9,) * 38, -10))


@pytest.mark.parametrize(
    ("schema", "type_", "value", "expected"),
    [
        (logical("int", "date"), "Date", dt.date(1970, 1, 1), dt.date(1970, 1, 1)),
        (logical("int", "date"), "Date32", dt.date(2299, 12, 31), dt.date(2299, 12, 31)),
        (logical("int", "date"), "Int32", dt.date(1970, 1, 3), 2),
        (logical("int", "time-millis"), "UInt32", dt.time(0, 0, 1), 1000),
        (logical("long", "time-micros"), "Int64", dt.time(0, 0, 1), 1_000_000),
        (
            logical("long", "timestamp-millis"),
            "DateTime64(3)",
            dt.datetime(2262, 4, 11, 23, 47, 16, 854000, tzinfo=UTC),
            dt.datetime(2262, 4, 11, 23, 47, 16, 854000, tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"),
            "DateTime64(6)",
            dt.datetime(1900, 1, 1, tzinfo=UTC),
            dt.datetime(1900, 1, 1, tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"),
            "DateTime",
            dt.datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC),
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        ),
        (logical("long", "timestamp-millis"), "Int64", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
        (
            logical("long", "local-timestamp-millis"),
            "DateTime64(3, 'Europe/Berlin')",
            dt.datetime(2026, 7, 1, 12),  # noqa: DTZ001 - a local time has no zone
            dt.datetime(2026, 7, 1, 10, tzinfo=UTC),
        ),
        (logical("string", "uuid"), "UUID", uuid.UUID(int=7), uuid.UUID(int=7).bytes),
        (SIXTEEN, "UUID", uuid.UUID(int=7).bytes, uuid.UUID(int=7).bytes),
        (logical("bytes", "decimal", precision=38, scale=10), "Decimal(38, 10)", DIGITS_38, DIGITS_38),
        (WIDE | logical("fixed", "decimal", precision=38, scale=10), "Decimal(38, 10)", DIGITS_38, DIGITS_38),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            "Decimal(76, 2)",
            Decimal("-0.01"),
            Decimal("-0.01"),
        ),
        (logical("bytes", "decimal", precision=4, scale=0), "Int8", Decimal(-128), -128),
        ("bytes", "String", b"plain", "plain"),
        ("long", "UInt64", (1 << 63) - 1, (1 << 63) - 1),
        ("int", "Int8", -128, -128),
        ("double", "Float64", float("inf"), float("inf")),
        ("string", "Enum8('a' = 1, 'b' = 2)", "b", "b"),
        ("string", "String", "\0\U0010ffff\ud7ffé", "\0\U0010ffff\ud7ffé"),
        (["null", "string"], "Nullable(String)", None, None),
        (["null", {"type": "array", "items": "int"}], "Array(Int32)", None, []),
        (["null", "int", "string"], "Nullable(Int64)", 5, 5),
        (["null", "int", "string"], "Nullable(Int64)", "12", 12),
        (
            {"type": "map", "values": ["null", "long"]},
            "Map(String, Nullable(Int64))",
            {"a": None},
            [("a", None)],
        ),
    ],
)
def test_values_at_the_edges_are_exact(schema, type_, value, expected):
    found = decode_one(schema, type_, value)
    assert found == expected


def test_nanoseconds_are_kept():
    schema = record(("v", logical("long", "timestamp-nanos")))
    body = encode(record(("v", "long")), {"v": (1 << 63) - 1})
    decoded = make_decoder({"v": "DateTime64(9)"}, schema).decode(block([body]))
    assert decoded.rows.column(0).view(pa.int64()).to_pylist() == [(1 << 63) - 1]


def test_a_duration_is_months_days_and_milliseconds():
    schema = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    raw = struct.pack("<III", 1, 2, (1 << 32) - 1)
    body = encode(record(("v", {"type": "fixed", "name": "D", "size": 12})), {"v": raw})
    parts = make_decoder({"v": "Tuple(months UInt32, days UInt32, millis UInt32)"}, record(("v", schema)))
    assert parts.decode(block([body])).rows.column(0).to_pylist() == [
        {"months": 1, "days": 2, "millis": (1 << 32) - 1}
    ]
    whole = make_decoder({"v": "FixedString(12)"}, record(("v", schema)))
    assert whole.decode(block([body])).rows.column(0).to_pylist() == [raw]


@pytest.mark.parametrize(
    ("schema", "type_", "value", "reason"),
    [
        ("long", "Int8", 128, Reason.OUT_OF_RANGE),
        ("double", "Int64", float("nan"), Reason.OUT_OF_RANGE),
        (
            logical("bytes", "decimal", precision=10, scale=2),
            "Decimal(4, 1)",
            Decimal("1.25"),
            Reason.OUT_OF_RANGE,
        ),
        (["null", "string"], "String", None, Reason.MISSING_FIELD),
        (record(("a", "int"), name="Inner"), "String", {"a": 1}, Reason.WRONG_TYPE),
        ({"type": "array", "items": "int"}, "Map(String, Int32)", [1], Reason.WRONG_TYPE),
        (["null", "int", "string"], "Nullable(Int64)", "twelve", Reason.WRONG_TYPE),
        ({"type": "array", "items": "long"}, "Array(Int8)", [1, 2, 300], Reason.OUT_OF_RANGE),
    ],
)
def test_what_does_not_fit_is_refused_by_name(schema, type_, value, reason):
    found, detail = reject_one(schema, type_, value)
    assert found is reason
    assert detail.startswith("field v")


def test_bytes_after_the_record_and_bytes_that_miss_are_malformed():
    schema = record(("a", "long"), ("b", "string"))
    good = encode(schema, {"a": 1, "b": "xyz"})
    decoded = make_decoder({"a": "Int64"}, schema).decode(block([good, good + b"!", good[:-1], b"", good]))
    assert decoded.taken.tolist() == [0, 4]
    assert [(one.index, one.reason) for one in decoded.rejected] == [
        (place, Reason.MALFORMED) for place in (1, 2, 3)
    ]
    assert decoded.rejected[0].detail == "1 bytes are left after the record's end"


def test_a_length_that_reaches_into_the_next_message_is_found():
    schema = record(("b", "string"), ("a", "long"))
    good = encode(schema, {"a": 1, "b": "xyz"})
    longer = bytes([good[0] + 2]) + good[1:]
    decoded = make_decoder({"a": "Int64", "b": "String"}, schema).decode(block([longer, good, longer, good]))
    assert decoded.taken.tolist() == [1, 3]
    assert decoded.rows.to_pylist() == [{"a": 1, "b": "xyz"}] * 2


def test_a_text_that_is_no_utf8_is_refused():
    schema = record(("a", "string"))
    body = b"\x04\xff\xfe"
    decoded = make_decoder({"a": "String"}, schema).decode(block([body, encode(schema, {"a": "é"})]))
    assert decoded.taken.tolist() == [1]
    assert decoded.rejected[0].reason is Reason.BAD_UTF8


def test_tombstones_are_skipped_and_large_messages_refused():
    schema = record(("a", "string"))
    large = encode(schema, {"a": "x" * (1 << 20)})
    decoded = make_decoder({"a": "String"}, schema).decode(block([None, large, encode(schema, {"a": "é"})]))
    assert decoded.skipped.tolist() == [0]
    assert decoded.taken.tolist() == [2]
    assert decoded.rejected[0].reason is Reason.TOO_BIG


# -- versions ---------------------------------------------------------------------------------------------


OLD = record(("id", "long"), ("mail", "string"))
NEW = record(
    ("id", "long"),
    {"name": "email", "type": "string", "aliases": ["mail"]},
    {"name": "tries", "type": "int", "default": 3},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["new"]},
    {"name": "note", "type": ["null", "string"], "default": None},
)


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


FIELDS = {
    "id": "Int64",
    "email": "String",
    "tries": "Int32",
    "tags": "Array(String)",
    "note": "Nullable(String)",
}


def test_versions_stand_side_by_side_with_aliases_and_defaults_of_the_newest():
    decoder = make_decoder(FIELDS, OLD, NEW, version_source=PREFIX)
    new = {"id": 2, "email": "b", "tries": 9, "tags": [], "note": "n"}
    values = [
        framed(1, encode(OLD, {"id": 1, "mail": "a"})),
        framed(2, encode(NEW, new)),
        framed(7, b"whatever"),
        framed(1, encode(OLD, {"id": 3, "mail": "c"})),
    ]
    decoded = decoder.decode(block(values))
    old = {"tries": 3, "tags": ["new"], "note": None}
    assert decoded.rows.to_pylist() == [{"id": 1, "email": "a"} | old, new, {"id": 3, "email": "c"} | old]
    assert decoded.taken.tolist() == [0, 1, 3]
    assert decoded.schemas.to_pylist() == ["1", "2", "1"]
    assert [(one.index, one.schema) for one in decoded.waiting] == [(2, "7")]


def test_the_old_name_of_a_renamed_field_still_finds_it():
    decoded = make_decoder({"mail": "String"}, OLD, NEW, version_source=PREFIX).decode(
        block(
            [
                framed(1, encode(OLD, {"id": 1, "mail": "a"})),
                framed(2, encode(NEW, {"id": 2, "email": "b", "tries": 1, "tags": [], "note": None})),
            ]
        )
    )
    assert decoded.rows.column(0).to_pylist() == ["a", "b"]


def test_the_newest_version_is_the_one_with_the_greatest_number():
    schemas = {str(number): record(("id", "long")) for number in range(1, 10)}
    schemas["10"] = record(("id", "long"), {"name": "added", "type": "int", "default": 5})
    decoder = AvroDecoder(
        fields={"added": parse_type("Int32")},
        schemas=[
            Schema(schema=name, format="avro", definition=json.dumps(one))
            for name, one in sorted(schemas.items())
        ],
        version_source=PREFIX,
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64),
    )
    decoded = decoder.decode(block([framed(9, encode(schemas["9"], {"id": 1}))]))
    assert decoded.rows.to_pylist() == [{"added": 5}]


@pytest.mark.parametrize("messages", [1, 40])
def test_lists_that_nobody_wants_must_follow_the_schema_too(messages):
    schema = record(("id", "long"), ("numbers", {"type": "array", "items": "long"}))
    good = encode(schema, {"id": 1, "numbers": [1]})
    wide = good[:1] + b"\x02" + b"\xff" * 9 + b"\x7f" + b"\0"
    many = good[:1] + encode("long", 1 << 40) + good[2:]
    decoded = make_decoder({"id": "Int64"}, schema).decode(block([good, wide, many] * messages))
    assert decoded.taken.tolist() == list(range(0, 3 * messages, 3))
    assert {one.reason for one in decoded.rejected} == {Reason.MALFORMED}


@pytest.mark.parametrize("item", ["double", "null"])
@pytest.mark.parametrize("messages", [1, 40])
def test_a_list_cannot_have_more_values_than_its_message_has_bytes(item, messages):
    schema = record(("id", "long"), ("values", {"type": "array", "items": item}))
    bomb = encode("long", 1) + encode("long", 1 << 40) + bytes(9)
    decoded = make_decoder({"id": "Int64", "values": "Array(Nullable(Float64))"}, schema).decode(
        block([bomb] * messages)
    )
    assert {one.reason for one in decoded.rejected} == {Reason.MALFORMED}
    assert len(decoded.rejected) == messages


def test_a_field_that_no_default_fills_is_missing():
    decoded = make_decoder({"id": "Int64", "gone": "String"}, OLD, version_source=FIXED).decode(
        block([encode(OLD, {"id": 1, "mail": "a"})])
    )
    assert decoded.rejected[0].reason is Reason.MISSING_FIELD
    nullable = make_decoder({"id": "Int64", "gone": "Nullable(String)"}, OLD).decode(
        block([encode(OLD, {"id": 1, "mail": "a"})])
    )
    assert nullable.rows.to_pylist() == [{"id": 1, "gone": None}]


def test_a_default_that_does_not_fit_its_column_is_refused_by_row():
    decoder = make_decoder({"id": "Int64", "tries": "Enum8('x' = 1)"}, OLD, NEW, version_source=PREFIX)
    decoded = decoder.decode(block([framed(1, encode(OLD, {"id": 1, "mail": "a"}))]))
    assert [one.detail.split(":")[0] for one in decoded.rejected] == ["field tries"]


def test_without_a_prefix_there_is_no_version():
    other = b"\1" + framed(1, encode(OLD, {"id": 1, "mail": "a"}))[1:]
    decoded = make_decoder({"id": "Int64"}, OLD, version_source=PREFIX).decode(block([b"", b"\0\0\0", other]))
    assert [one.reason for one in decoded.rejected] == [Reason.MALFORMED] * 3
    assert "wire prefix" in decoded.rejected[0].detail


def test_the_version_may_stand_in_a_header_and_the_last_one_counts():
    body = encode(OLD, {"id": 1, "mail": "a"})
    headers = [
        [{"key": "version", "value": b"9"}, {"key": "version", "value": b"1"}],
        [{"key": "other", "value": b"1"}],
        None,
        [{"key": "version", "value": None}],
        [{"key": "version", "value": b"\xff"}],
        [{"key": "version", "value": b"9"}],
        [{"key": "version", "value": b""}],
        [{"key": "version", "value": b"9" * 201}],
        [{"key": "version", "value": b"9\n"}],
    ]
    decoded = make_decoder({"id": "Int64"}, OLD, version_source=HEADER).decode(block([body] * 9, headers))
    assert decoded.taken.tolist() == [0]
    assert [one.index for one in decoded.rejected] == [1, 2, 3, 4, 6, 7, 8]
    assert [one.schema for one in decoded.waiting] == ["9"]


def test_records_read_before_keep_the_schema_they_were_read_with():
    decoder = make_decoder(
        {"id": "Int64"}, OLD, record(("x", "string"), ("id", "long")), version_source=FIXED
    )
    again = block([encode(OLD, {"id": 4, "mail": "a"})] * 2).append_column(
        "schema", pa.array(["1", None], pa.string())
    )
    assert decoder.decode(again).rows.column(0).to_pylist() == [4, 4]


# -- nested -----------------------------------------------------------------------------------------------

PERSON = record(
    ("id", "long"),
    ("home", ["null", record(("city", "string"), ("zip", ["null", "int"]), name="Address")]),
    ("work", ["null", "Address"]),
    ("friends", {"type": "array", "items": record(("name", "string"), ("at", "Address"), name="Friend")}),
    name="Person",
)


def test_a_path_leads_into_records_that_may_be_missing():
    decoder = make_decoder(
        {"home.city": "Nullable(String)", "work.zip": "Nullable(Int32)", "id": "Int64"}, PERSON
    )
    rows = [
        {"id": 1, "home": {"city": "Rom", "zip": 5}, "work": None, "friends": []},
        {"id": 2, "home": None, "work": {"city": "Ulm", "zip": 7}, "friends": []},
    ]
    decoded = decoder.decode(block([encode(PERSON, row) for row in rows]))
    assert decoded.rows.to_pylist() == [
        {"home.city": "Rom", "work.zip": None, "id": 1},
        {"home.city": None, "work.zip": 7, "id": 2},
    ]


def test_a_record_may_be_wanted_whole_and_by_paths_at_once():
    decoder = make_decoder(
        {
            "home": "Tuple(zip Nullable(Int32), city String)",
            "home.city": "String",
            "friends": "Nested(name String)",
        },
        PERSON,
    )
    address = {"city": "Rom", "zip": None}
    row = {"id": 1, "home": address, "work": None, "friends": [{"name": "Zoë", "at": address}] * 2}
    decoded = decoder.decode(block([encode(PERSON, row)]))
    assert decoded.rows.to_pylist() == [
        {"home": {"zip": None, "city": "Rom"}, "home.city": "Rom", "friends": [{"name": "Zoë"}] * 2}
    ]


def test_a_record_that_holds_itself_is_read_as_deep_as_declared():
    tree = record(("value", "long"), ("next", ["null", "Node"]), name="Node")
    value = {"value": 1, "next": {"value": 2, "next": {"value": 3, "next": None}}}
    decoder = make_decoder({"value": "Int64", "next.value": "Nullable(Int64)"}, tree)
    decoded = decoder.decode(block([encode(tree, value), encode(tree, {"value": 9, "next": None})]))
    assert decoded.rows.to_pylist() == [{"value": 1, "next.value": 2}, {"value": 9, "next.value": None}]


def test_many_lists_of_different_lengths_keep_their_values():
    schema = record(
        ("lists", {"type": "array", "items": {"type": "array", "items": "string"}}), ("end", "long")
    )
    rows = [
        {"lists": [[f"{number}-{inner}"] * (inner % 5) for inner in range(number % 7)], "end": number}
        for number in range(200)
    ]
    rows[50]["lists"] = [["x"] * 3000, []]
    decoded = make_decoder({"lists": "Array(Array(String))", "end": "Int64"}, schema).decode(
        block([encode(schema, row) for row in rows])
    )
    assert decoded.rows.to_pylist() == rows


# -- what the newest schema makes of older records ------------------------------------------------------------


def name_in(namespace: str, *fields: Any, name: str = "Place", **more: Any) -> dict[str, Any]:
    return record(*fields, name=name) | {"namespace": namespace} | more


def decode_old(fields: dict[str, str], old: Any, new: Any, *values: Any, **limits: Any) -> list[Any]:
    decoder = make_decoder(fields, old, new, version_source=PREFIX, **limits)
    decoded = decoder.decode(block([framed(1, encode(old, value)) for value in values]))
    return [{one.index: one.reason for one in decoded.rejected}, *decoded.rows.to_pylist()]


TWO_PLACES_OLD = record(
    ("home", name_in("home", ("city", "string"))), ("work", name_in("work", ("city", "string")))
)
TWO_PLACES = record(
    ("home", name_in("home", ("city", "string"), {"name": "floor", "type": "int", "default": 1})),
    ("work", name_in("work", ("city", "string"), {"name": "floor", "type": "int", "default": 2})),
)


def test_records_of_one_short_name_in_two_namespaces_keep_their_own_defaults():
    value = {"home": {"city": "Rom"}, "work": {"city": "Ulm"}}
    fields = {"home.floor": "Int32", "work.floor": "Int32", "work": "Tuple(city String, floor Int32)"}
    assert decode_old(fields, TWO_PLACES_OLD, TWO_PLACES, value) == [
        {},
        {"home.floor": 1, "work.floor": 2, "work": {"city": "Ulm", "floor": 2}},
    ]


def test_records_of_one_short_name_keep_their_own_aliases_in_lists_maps_and_unions():
    def places(*extra: Any) -> Any:
        here, there = (name_in(space, *fields) for space, fields in zip(("a", "b"), extra, strict=True))
        listed = {"type": "array", "items": here}
        return record(
            ("list", listed), ("map", {"type": "map", "values": there}), ("one", ["a.Place", "b.Place"])
        )

    old = places([("x", "int")], [("y", "int")])
    new = places(
        [
            {"name": "value", "type": "int", "aliases": ["x"]},
            {"name": "side", "type": "string", "default": "a"},
        ],
        [
            {"name": "value", "type": "int", "aliases": ["y"]},
            {"name": "side", "type": "string", "default": "b"},
        ],
    )
    values = [
        {"list": [{"x": 1}], "map": {"k": {"y": 2}}, "one": ("a.Place", {"x": 3})},
        {"list": [{"x": 4}], "map": {"k": {"y": 5}}, "one": ("b.Place", {"y": 6})},
    ]
    place = "Tuple(value Int32, side String)"
    fields = {"list": f"Array({place})", "map": f"Map(String, {place})", "one": place}
    assert decode_old(fields, old, new, *values) == [
        {},
        {
            "list": [{"value": 1, "side": "a"}],
            "map": [("k", {"value": 2, "side": "b"})],
            "one": {"value": 3, "side": "a"},
        },
        {
            "list": [{"value": 4, "side": "a"}],
            "map": [("k", {"value": 5, "side": "b"})],
            "one": {"value": 6, "side": "b"},
        },
    ]


def test_a_renamed_package_and_a_swapped_one_are_told_apart():
    old = record(("one", [name_in("a", ("x", "int")), name_in("b", ("x", "int"))]))
    field = {"name": "from", "type": "string"}
    new = record(
        (
            "one",
            [
                name_in("b", ("x", "int"), field | {"default": "b"}),
                name_in("c", ("x", "int"), field | {"default": "c"}),
            ],
        )
    )
    rows = decode_old(
        {"one": "Tuple(x Int32, from String)"},
        old,
        new,
        {"one": ("a.Place", {"x": 1})},
        {"one": ("b.Place", {"x": 2})},
    )
    assert rows == [{}, {"one": {"x": 1, "from": "c"}}, {"one": {"x": 2, "from": "b"}}]


@pytest.mark.parametrize("optional", [False, True])
def test_a_nested_record_that_an_alias_renames_has_the_defaults_of_its_new_name(optional):
    def place(node: Any) -> Any:
        return record(("home", ["null", node] if optional else node))

    old = place(name_in("old", ("city", "string"), name="Home"))
    country = {"name": "country", "type": "string", "default": "DE"}
    town = {"name": "town", "type": "string", "aliases": ["city"]}
    new = place(name_in("new", town, country, name="Address", aliases=["old.Home"]))
    fields = {"home.town": "String", "home.country": "String"}
    value = {"home": {"city": "Ulm"}}
    assert decode_old(fields, old, new, value) == [{}, {"home.town": "Ulm", "home.country": "DE"}]


def grades(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Grade", "symbols": list(symbols), **more}


def test_a_symbol_that_the_newest_schema_lacks_is_its_default():
    def shape(node: Any) -> Any:
        return record(
            ("bare", node), ("maybe", ["null", "Grade"]), ("many", {"type": "array", "items": "Grade"})
        )

    old = shape(grades("GOOD", "BAD", "UGLY"))
    new = shape(grades("OTHER", "BAD", "GOOD", default="OTHER"))
    fields = {
        "bare": "Enum8('GOOD' = 1, 'BAD' = 2, 'OTHER' = 3)",
        "maybe": "Nullable(String)",
        "many": "Array(String)",
    }
    assert decode_old(
        fields,
        old,
        new,
        {"bare": "UGLY", "maybe": "UGLY", "many": ["GOOD", "UGLY"]},
        {"bare": "BAD", "maybe": None, "many": []},
    ) == [
        {},
        {"bare": "OTHER", "maybe": "OTHER", "many": ["GOOD", "OTHER"]},
        {"bare": "BAD", "maybe": None, "many": []},
    ]


def test_without_a_default_a_symbol_stays_as_it_was_written():
    old, new = record(("g", grades("GOOD", "UGLY"))), record(("g", grades("GOOD")))
    assert decode_old({"g": "String"}, old, new, {"g": "UGLY"}) == [{}, {"g": "UGLY"}]
    assert decode_old({"g": "Enum8('GOOD' = 1)"}, old, new, {"g": "UGLY"}) == [{0: Reason.OUT_OF_RANGE}]
    wrong = record(("g", grades("GOOD", default="WORSE")))
    assert decode_old({"g": "String"}, old, wrong, {"g": "UGLY"}) == [{}, {"g": "UGLY"}]


def test_a_field_of_the_identity_keeps_symbols_that_the_newest_schema_lacks():
    inner = record(("g", "Grade"), name="Inner")
    old = record(("g", grades("A", "B", "C")), ("in", inner), ("free", "Grade"))
    new = record(("g", grades("A", default="A")), ("in", inner), ("free", "Grade"))
    values = [{"g": symbol, "in": {"g": symbol}, "free": symbol} for symbol in "BC"]
    rows = decode_old(
        {"g": "String", "in": "Tuple(g String)", "free": "String"},
        old,
        new,
        *values,
        exact=frozenset({"g", "in.g"}),
    )
    assert rows == [{}, *({"g": symbol, "in": {"g": symbol}, "free": "A"} for symbol in "BC")]


def test_a_default_without_end_costs_the_record_alone():
    endless = record({"name": "next", "type": "Node", "default": {}}, name="Node")
    new = record(("id", "long"), {"name": "node", "type": endless, "default": {}})
    old = record(("id", "long"))
    rows = decode_old({"id": "Int64", "node": "Tuple(next Tuple(next String))"}, old, new, {"id": 1})
    assert rows == [{0: Reason.MISSING_FIELD}]


# -- schemas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ('"string"', "no record"),
        ('{"type":"record","name":"1x","fields":[]}', "no name of a type"),
        ('{"type":"record","name":"R"}', "no list of fields"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "no name or no type"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"Later"}]}',
            "not defined before it is used",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["int","int"]}]}', "twice: int, int"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E"}}]}', "symbols"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F"}}]}', "size"),
        ("[" * 3000, "no JSON"),
    ],
)
def test_a_schema_that_is_wrong_is_refused_with_its_name(text, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        parse_schema(text, where="orders.avsc")
    assert str(refused.value).startswith("orders.avsc: ")


def test_names_are_found_across_namespaces():
    schema = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "a", "type": {"type": "enum", "name": "Kind", "symbols": ["x", "y"]}},
            {"name": "b", "type": "Kind"},
            {"name": "c", "type": "shop.Kind"},
        ],
    }
    decoded = make_decoder({"a": "String", "c": "String"}, schema).decode(
        block([encode(schema, {"a": "x", "b": "x", "c": "y"})])
    )
    assert decoded.rows.to_pylist() == [{"a": "x", "c": "y"}]


def test_an_empty_block_is_no_rows():
    decoded: Decoded = make_decoder({"id": "Int64"}, OLD).decode(block([]))
    assert decoded.rows.num_rows == 0
