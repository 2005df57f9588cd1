"""Marks in schemas: found by path, agreed on by all versions, or taken from the one that is named."""

from __future__ import annotations

import json

import pytest

from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.dedup.identity_annotations import marked_fields
from oncehouse.pipeline.dedup.identity_rule import rule_of
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema

MARK: dict[str, object] = {"oncehouse.identity": True}
ODD: dict[str, object] = {"oncehouse.identity": "yes"}
HOME = {
    "type": "record",
    "name": "Home",
    "fields": [{"name": "city", "type": "string", **MARK}, {"name": "next", "type": ["null", "Home"]}],
}


def avro(version: str, *fields: dict[str, object]) -> Schema:
    definition = {"type": "record", "name": "Order", "fields": list(fields)}
    return Schema(schema=version, format="avro", definition=json.dumps(definition))


def field(name: str, type_: object = "long", **more: object) -> dict[str, object]:
    return {"name": name, "type": type_, **more}


ONE = avro("1", field("id", **MARK), field("note", "string"))
TWO = avro("2", field("line", **MARK), field("id", **MARK))


def make_pipeline(from_schema: object = True) -> Pipeline:
    return Pipeline(
        pipeline="orders",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"schemas": {"1": "one.avsc"}, "version": "header"},
            "fields": {"id": "Int64", "line": "Nullable(Int64)", "user": "Tuple(home Tuple(city String))"},
        },
        identity={"from_schema": from_schema},
        tables=[{"name": "orders"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///c.db", "files": "files"},
    )


def test_marks_of_nested_records_are_paths_and_a_record_may_hold_itself():
    user = {
        "type": "record",
        "name": "User",
        "fields": [field("home", ["null", HOME]), field("no", **ODD)],
    }
    assert marked_fields(avro("1", field("user", user), field("id", **MARK))) == ("user.home.city", "id")


def test_versions_that_agree_make_one_rule_whatever_their_order():
    same = avro("3", field("id", **MARK), field("line", ["null", "long"], **MARK))
    rule = rule_of(make_pipeline(), [TWO, same])
    assert rule.fields == (("id",), ("line",))
    assert rule_of(make_pipeline(), [same]) == rule


def test_a_version_that_marks_one_more_is_refused_with_what_to_do():
    with pytest.raises(ConfigurationError) as caught:
        rule_of(make_pipeline(), [ONE, TWO])
    assert "1: id; 2: id, line" in str(caught.value)
    assert "`oncehouse rekey`" in str(caught.value)


def test_the_version_that_is_named_counts_alone():
    assert rule_of(make_pipeline("1"), [ONE, TWO]).fields == (("id",),)
    assert rule_of(make_pipeline(2), [ONE, TWO]).fields == (("id",), ("line",))
    with pytest.raises(ConfigurationError, match=r"'9', which is not known\. Name one of: 1, 2"):
        rule_of(make_pipeline("9"), [ONE, TWO])


@pytest.mark.parametrize("schemas", [[], [avro("1", field("id"))]])
def test_schemas_without_marks_are_refused(schemas):
    with pytest.raises(ConfigurationError, match="no known schema marks a field"):
        rule_of(make_pipeline(), schemas)


def test_a_marked_field_that_the_file_does_not_declare_is_refused():
    with pytest.raises(ConfigurationError, match=r"'note', which source\.fields does not declare"):
        rule_of(make_pipeline(), [avro("1", field("note", "string", **MARK))])


def test_a_format_that_cannot_mark_says_so():
    with pytest.raises(ConfigurationError, match="cannot mark fields"):
        marked_fields(Schema(schema="1", format="text", definition=""))


def test_protobuf_marks_fields_by_an_option(tmp_path):
    file = tmp_path / "order.proto"
    file.write_text(
        """
        syntax = "proto3";
        import "oncehouse/options.proto";
        message Home { string city = 1 [(oncehouse.identity) = true]; }
        message Order { int64 id = 1 [(oncehouse.identity) = true]; Home home = 2; string note = 3; }
        """
    )
    schema = make_schema("1", files=[str(file)], message="Order")
    assert marked_fields(schema) == ("id", "home.city")
