"""What schema versions mean for fields and columns: added, widened, new enum values, dropped, renamed."""

from __future__ import annotations

import json

import pytest

from oncehouse.clickhouse.alter_table import ChangeKind, plan_columns
from oncehouse.clickhouse.preflight.requirements import needs_of
from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.clickhouse.type_compatibility import widens
from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.models import LearnedField, Schema
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema
from oncehouse.pipeline.formats.schema_fields import fields_of
from oncehouse.pipeline.schema.plan import plan_fields, to_learn


def make_pipeline(fields: dict[str, str]) -> Pipeline:
    return Pipeline(
        pipeline="orders",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"version": "header", "schemas": {"1": "one.avsc"}},
            "fields": fields,
        },
        identity={"fields": ["id"]},
        tables=[{"name": "shop.orders"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///c.db", "files": "files"},
    )


def avro(version: str, **fields: object) -> Schema:
    listed = [
        {"name": name, **(type_ if isinstance(type_, dict) and "aliases" in type_ else {"type": type_})}
        for name, type_ in fields.items()
    ]
    return Schema(
        schema=version,
        format="avro",
        definition=json.dumps({"type": "record", "name": "O", "fields": listed}),
    )


def changes(fields: dict[str, str], *schemas: Schema, learned=()) -> list[tuple[str, str, str | None]]:
    return [
        (found.field, str(found.kind), found.type)
        for found in plan_fields(make_pipeline(fields), learned, schemas)
    ]


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}
MORE = {"type": "enum", "name": "Colour", "symbols": ["red", "green", "blue"]}


def test_a_field_that_a_version_brings_is_added_as_nullable_once():
    first, second, third = (
        avro("1", id="long"),
        avro("2", id="long", note="string"),
        avro("3", id="long", note="string"),
    )
    assert changes({"id": "Int64"}, first, second, third) == [("note", "add", "Nullable(String)")]
    known = [LearnedField(field="note", type="Nullable(String)")]
    assert changes({"id": "Int64"}, first, second, third, learned=known) == []
    left_out = [LearnedField(field="note", type=None)]
    assert changes({"id": "Int64"}, first, second, learned=left_out) == []


def test_a_type_that_grew_between_versions_is_widened_and_what_the_file_made_of_the_first_stays():
    assert changes({"id": "Int32"}, avro("1", id="long")) == []
    assert changes({"id": "Int32"}, avro("1", id="int"), avro("2", id="long")) == [("id", "widen", "Int64")]
    assert changes({"id": "Int64"}, avro("1", id="int"), avro("2", id="long")) == []
    grown = changes(
        {"id": "Int64", "x": "Nullable(Int32)"}, avro("1", id="long", x="int"), avro("2", id="long", x="long")
    )
    assert grown == [("x", "widen", "Nullable(Int64)")]


def test_a_type_that_became_another_is_only_told():
    (told,) = plan_fields(make_pipeline({"id": "Int64"}), [], [avro("1", id="long"), avro("2", id="string")])
    assert told.kind is ChangeKind.NOTE
    assert "version 2 has String, declared is Int64: values that do not fit become dead letters" in told.why


def test_a_field_that_a_version_dropped_becomes_nullable_or_is_told():
    first, second = avro("1", id="long", note="string", tag=["null", "string"]), avro("2", id="long")
    fields = {"id": "Int64", "note": "String", "tag": "Nullable(String)"}
    assert changes(fields, first, second) == [("note", "widen", "Nullable(String)"), ("tag", "note", None)]


def test_new_values_of_an_enum_are_appended():
    fields = {"id": "Int64", "colour": "Enum8('red' = 1, 'green' = 5)"}
    first, second = avro("1", id="long", colour=COLOUR), avro("2", id="long", colour=MORE)
    assert changes(fields, first) == []
    assert changes(fields, first, second) == [
        ("colour", "widen", "Enum8('red' = 1, 'green' = 5, 'blue' = 6)")
    ]


def test_an_alias_ties_names_so_that_nothing_is_new_or_dropped():
    renamed = avro("2", id="long", remark={"aliases": ["note"], "type": "string"})
    for declared in ("note", "remark"):
        found = changes({"id": "Int64", declared: "String"}, avro("1", id="long", note="string"), renamed)
        assert found == [("note", "note", None)], "the rename is told, and that is all"


def test_a_field_with_a_default_is_no_null_where_it_is_missing():
    second = avro("2", id="long", tries={"aliases": [], "type": "int", "default": 3})
    assert changes({"id": "Int64", "tries": "Int32"}, avro("1", id="long"), second) == []


def test_protobufs_defaults_stand_in_a_column_that_takes_no_null(tmp_path):
    """A message that stands for a value has no default, and its column has to take null."""
    schemas = []
    for version, more in (("1", ""), ("2", "int32 n = 2; string s = 3; google.protobuf.Timestamp at = 4;")):
        file = tmp_path / f"v{version}.proto"
        imported = 'import "google/protobuf/timestamp.proto";'
        file.write_text(f'syntax = "proto3"; {imported} message O {{ int64 id = 1; {more} }}')
        schemas.append(make_schema(version, files=[str(file)], message="O"))
    pipeline = make_pipeline({"id": "Int64", "n": "Int32", "s": "Nullable(String)", "at": "DateTime"})
    source = pipeline.source.model_copy(update={"format": "protobuf"})
    pipeline = pipeline.model_copy(update={"source": source})
    assert [(x.field, x.kind) for x in plan_fields(pipeline, [], schemas)] == [("at", ChangeKind.WIDEN)]
    dropped = [(x.field, x.kind) for x in plan_fields(pipeline, [], schemas[::-1])]
    assert dropped == [("s", ChangeKind.NOTE), ("at", ChangeKind.WIDEN)]


def test_renames_are_told_by_avros_aliases_and_protobufs_numbers(tmp_path):
    renamed = avro("2", id="long", remark={"aliases": ["note"], "type": "string"})
    told = [
        found
        for found in plan_fields(make_pipeline({"id": "Int64"}), [], [avro("1", id="long"), renamed])
        if found.kind is ChangeKind.NOTE
    ]
    assert [(found.field, "calls it remark" in found.why) for found in told] == [("note", True)]
    schemas = []
    for version, name in (("1", "note"), ("2", "remark")):
        file = tmp_path / f"v{version}.proto"
        file.write_text(f'syntax = "proto3"; message O {{ int64 id = 1; string {name} = 2; }}')
        schemas.append(make_schema(version, files=[str(file)], message="O"))
    pipeline = make_pipeline({"id": "Int64"})
    source = pipeline.source.model_copy(update={"format": "protobuf"})
    found = plan_fields(pipeline.model_copy(update={"source": source}), [], schemas)
    assert [change.field for change in found if "calls it remark" in change.why] == ["note"]


def test_schemas_of_another_kind_say_nothing_about_the_fields():
    frame = Schema(schema="frame-1", format="frame", definition="{}")
    assert changes({"id": "Int64"}, frame) == []


def test_a_field_widened_twice_is_learnt_with_its_last_type_against_the_file():
    pipeline = make_pipeline({"id": "Int64", "x": "Float32"})
    found = plan_fields(
        pipeline,
        [],
        [avro("1", id="long", x="float"), avro("2", id="long", x="double"), avro("3", id="long")],
    )
    assert to_learn(pipeline, found)[-1] == LearnedField(
        field="x", type="Nullable(Float64)", instead_of="Float32"
    )


@pytest.mark.parametrize(
    ("node", "type_"),
    [
        ("boolean", "Bool"), ("int", "Int32"), ("long", "Int64"), ("float", "Float32"), ("double", "Float64"),
        ("bytes", "String"), ("string", "String"), (["null", "long"], "Nullable(Int64)"),
        ({"type": "int", "logicalType": "date"}, "Date32"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "DateTime64(3, 'UTC')"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "DateTime64(6, 'UTC')"),
        ({"type": "string", "logicalType": "uuid"}, "UUID"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9}, "Decimal(38, 9)"),
        ({"type": "fixed", "name": "F", "size": 4}, "FixedString(4)"),
        (COLOUR, "LowCardinality(String)"),
        ({"type": "array", "items": ["null", "string"]}, "Array(Nullable(String))"),
        ({"type": "map", "values": "long"}, "Map(String, Int64)"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, "Tuple(a Int32)"),
        (["long", "string"], None),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}, None),
    ],
)  # fmt: skip
def test_avros_types_have_column_types_or_none(node, type_):
    assert fields_of(avro("1", x=node))["x"].type == (None if type_ is None else parse_type(type_))


WIDER = [
    ("Int32", "Int64"), ("UInt8", "Int16"), ("Float32", "Float64"), ("Decimal(9, 2)", "Decimal(18, 2)"),
    ("Date", "Date32"), ("DateTime", "DateTime64(3)"), ("DateTime64(3)", "DateTime64(6)"),
    ("Enum8('a' = 1)", "Enum8('a' = 1, 'b' = 2)"), ("Enum8('a' = 1)", "Enum16('a' = 1)"),
    ("Enum8('a' = 1)", "String"), ("String", "Nullable(String)"), ("String", "LowCardinality(String)"),
    ("Array(Int8)", "Array(Int16)"), ("Map(String, Int8)", "Map(String, Nullable(Int8))"),
]  # fmt: skip
NARROWER = [
    ("Int64", "Int32"), ("UInt8", "Int8"), ("Int8", "UInt16"), ("Float64", "Float32"),
    ("Decimal(9, 2)", "Decimal(18, 3)"),
    ("Nullable(String)", "String"), ("String", "Int64"), ("Enum8('a' = 1)", "Enum8('a' = 2)"), ("Int64", "Float64"),
    ("String", "Enum8('a' = 1)"), ("DateTime64(6)", "DateTime64(3)"), ("Tuple(a Int8)", "Tuple(a Int8, b Int8)"),
    ("Array(Int16)", "Array(Int8)"), ("Map(String, Int8)", "Map(FixedString(2), Int8)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_wider_types_keep_every_value(old, new):
    assert widens(parse_type(old), parse_type(new))


@pytest.mark.parametrize(("old", "new"), NARROWER)
def test_other_types_may_change_values(old, new):
    assert not widens(parse_type(old), parse_type(new))


def facts(**columns: str) -> TableFacts:
    return TableFacts(
        **{
            **_FACTS,
            "columns": tuple(
                Column(name=name, type=type_, default_kind="") for name, type_ in columns.items()
            ),
        }
    )


_FACTS = {
    "database": "shop", "table": "orders", "uuid": "u", "engine": "MergeTree", "partition_key": "", "sorting_key": "id",
    "window_blocks": 100, "window_seconds": None, "expires_rows": False, "views": (),
}  # fmt: skip


def test_columns_are_added_widened_narrowed_or_told():
    pipeline = make_pipeline(
        {"id": "Int64", "note": "Nullable(String)", "x": "Int64", "y": "Int8", "same": "String"}
    )
    table = facts(
        id="Int64",
        x="Int32",
        y="Int64",
        same="LowCardinality(String)",
        old="String",
        _batch_id="UUID",
        _unique_id="FixedString(16)",
    )
    found = list(plan_columns(table, needs_of(pipeline, pipeline.tables[0])))
    assert [(change.column, str(change.kind), change.statement) for change in found] == [
        ("note", "add", "ALTER TABLE `shop`.`orders` ADD COLUMN IF NOT EXISTS `note` Nullable(String)"),
        ("x", "widen", "ALTER TABLE `shop`.`orders` MODIFY COLUMN `x` Int64"),
        ("y", "narrow", "ALTER TABLE `shop`.`orders` MODIFY COLUMN `y` Int8"),
        ("old", "note", None),
    ]


def test_a_hostile_name_is_quoted():
    pipeline = make_pipeline({"id": "Int64", "a` Int8, DROP COLUMN `id": "String"})
    (change,) = plan_columns(facts(id="Int64"), needs_of(pipeline, pipeline.tables[0]))
    assert change.statement is not None
    assert "`a\\` Int8, DROP COLUMN \\`id` String" in change.statement
