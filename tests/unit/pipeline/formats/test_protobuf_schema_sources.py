"""Schemas of protobuf: compiled or read, kept whole, named by records, and refused with a reason."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import Source
from oncehouse.config.protobuf import Protobuf
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.dedup.identity_annotations import marked_fields
from oncehouse.pipeline.formats.protobuf.schema_sources import (
    make_protobuf_format,
    make_schema,
    read_files,
    require_readable,
)
from oncehouse.pipeline.formats.wire_prefix import VersionPlace
from oncehouse.protobuf.definition import (
    compile_files,
    compile_texts,
    describe,
    load_definition,
    pick_message,
    read_definition,
)
from protobuf_examples import FOLDER, definition

ORDER = str(FOLDER / "order_v3.proto")
KAFKA = {"bootstrap_servers": "localhost:9092", "topics": ["orders"]}


def test_a_definition_survives_its_text_with_all_that_it_imports():
    found = definition("order_v3.proto", "shop.Order")
    assert read_definition(found.to_text()) == found
    files = [file.name for file in FileDescriptorSet.FromString(found.descriptor_set).file]
    assert sorted(files) == ["google/protobuf/timestamp.proto", "order_v3.proto"]
    assert describe(found).fields_by_name["at"].message_type.full_name == "google.protobuf.Timestamp"


def test_a_descriptor_set_and_its_proto_files_make_the_same_definition(tmp_path):
    path = tmp_path / "order.binpb"
    path.write_bytes(compile_files([ORDER]))
    assert load_definition(descriptor_set=str(path), message="shop.Order") == definition(
        "order_v3.proto", "shop.Order"
    )


def test_a_definition_does_not_change_with_comments_and_other_files(tmp_path):
    (tmp_path / "order_v3.proto").write_text("// a comment\n" + (FOLDER / "order_v3.proto").read_text())
    (tmp_path / "order_v4.proto").write_text((FOLDER / "order_v4.proto").read_text())
    files = [str(tmp_path / name) for name in ("order_v3.proto", "order_v4.proto")]
    assert load_definition(files=files, message="shop.Order") == definition("order_v3.proto", "shop.Order")


def test_a_changed_file_is_compiled_anew(tmp_path):
    file = tmp_path / "a.proto"
    file.write_text('syntax = "proto3"; message A { int32 x = 1; }')
    first = load_definition(files=[str(file)], message="A")
    file.write_text('syntax = "proto3"; message A { int32 x = 1; int32 y = 2; }')
    assert [field.name for field in describe(load_definition(files=[str(file)], message="A")).fields] == [
        "x",
        "y",
    ]
    assert len(describe(first).fields) == 1


def test_imports_are_found_under_include(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "money.proto").write_text('syntax = "proto3"; message Money { int64 units = 1; }')
    main = tmp_path / "main.proto"
    main.write_text('syntax = "proto3"; import "common/money.proto"; message A { Money price = 1; }')
    found = load_definition(files=[str(main)], include=[str(tmp_path)], message="A")
    assert describe(found).fields_by_name["price"].message_type.name == "Money"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("message A {", "protoc refuses"),
        ('syntax = "proto3"; import "gone.proto"; message A {}', "gone.proto"),
        ('syntax = "proto3"; message B {}', "there is no message 'A'; there are B"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, told):
    file = tmp_path / "a.proto"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r".") as refused:
        load_definition(files=[str(file)], message="A")
    assert told in str(refused.value)


def test_what_is_no_descriptor_set_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xff")
    with pytest.raises(ConfigurationError, match="is no descriptor set"):
        load_definition(descriptor_set=str(tmp_path / "x"), message="A")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_definition(descriptor_set=str(tmp_path / "gone"), message="A")
    with pytest.raises(ConfigurationError, match="no such file"):
        load_definition(files=[str(tmp_path / "gone.proto")], message="A")
    lone = FileDescriptorSet.FromString(compile_files([ORDER]))
    del lone.file[0]
    with pytest.raises(ConfigurationError, match="--include_imports"):
        pick_message(lone.SerializeToString(), "shop.Order", where="x")
    with pytest.raises(ConfigurationError, match="protobuf definition"):
        read_definition("{}")


def test_a_registrys_text_leads_to_its_message_by_indexes():
    text = (FOLDER / "order_v4.proto").read_text()
    imports = {"order_v3.proto": (FOLDER / "order_v3.proto").read_text()}
    assert compile_texts(text, imports, [0]).message == "shop.Order4"
    assert compile_texts(text, imports, [1, 0]).message == "shop.Other.Inner"
    with pytest.raises(IndexError):
        compile_texts(text, imports, [2])


@pytest.mark.parametrize("name", ["../out.proto", "/etc/out.proto", "", "a\0b"])
def test_names_from_a_registry_never_leave_their_folder(name):
    with pytest.raises(ConfigurationError, match="no name of a file"):
        compile_texts('syntax = "proto3"; message A {}', {name: ""}, [0])


def test_fields_that_a_schema_marks_are_its_identity(tmp_path):
    file = tmp_path / "marked.proto"
    file.write_text(
        """
        syntax = "proto3";
        import "oncehouse/options.proto";
        message Buyer { string id = 1 [(oncehouse.identity) = true]; Buyer friend = 2; }
        message Order {
          int64 number = 1 [(oncehouse.identity) = true];
          string note = 2 [(oncehouse.identity) = false];
          Buyer buyer = 3;
          repeated Buyer others = 4;
          string plain = 5 [deprecated = true];
        }
        """
    )
    schema = make_schema("1", files=[str(file)], message="Order")
    assert marked_fields(schema) == ("number", "buyer.id")


# -- the section of the pipeline file ---------------------------------------------------------------------


def section(**given):
    return Protobuf(**{"message": "shop.Order", "schemas": {"1": {"files": [ORDER]}}, **given})


def test_the_listed_schemas_are_what_the_ledger_keeps():
    found = read_files(
        section(
            schemas={"1": {"files": [ORDER]}, "2": {"files": [ORDER], "message": "shop.Buyer"}},
            version="header",
        )
    )
    assert [(schema.schema, schema.format) for schema in found] == [("1", "protobuf"), ("2", "protobuf")]
    assert read_definition(found[1].definition).message == "shop.Buyer"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"schemas": {}}, "exactly one entry in `schemas`"),
        ({"schemas": {"1": {}}}, "give either `files` or `descriptor_set`"),
        (
            {"schemas": {"1": {"files": ["a"], "descriptor_set": "b"}}},
            "give either `files` or `descriptor_set`",
        ),
        ({"message": None}, "schemas.1 names no message"),
        ({"version": "field"}, "`envelope` stand together"),
        ({"envelope": {"files": ["a"], "message": "A", "field": "v"}}, "`envelope` stand together"),
        ({"version": "field", "envelope": {"files": ["a"], "field": "v"}}, "needs its own `message`"),
        ({"registry": {"url": "http://localhost:8081"}}, "only with `version: prefix`"),
        ({"without_header": "1"}, "only with `version: header`"),
    ],
)
def test_parts_of_the_section_that_contradict_each_other_are_refused(given, told):
    with pytest.raises(ConfigurationError) as refused:
        section(**given)
    assert told in str(refused.value)


def test_where_the_version_stands_becomes_the_framing():
    assert make_protobuf_format(section()).version_source.schema == "1"
    header = make_protobuf_format(section(version="header", header="v", without_header="1"))
    assert (header.version_source.place, header.version_source.header, header.version_source.schema) == (
        VersionPlace.HEADER,
        "v",
        "1",
    )
    assert header.needs_headers
    assert make_protobuf_format(section(version="prefix")).version_source.place is VersionPlace.PREFIX
    envelope = {
        "files": [str(FOLDER / "envelope.proto")],
        "message": "shop.Envelope",
        "field": "version",
        "body": "body",
    }
    made = make_protobuf_format(section(version="field", envelope=envelope)).envelope
    assert (made.field, made.body) == ("version", "body")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"field": "gone"}, "shop.Envelope has no field 'gone'"),
        ({"field": "version", "body": "tag"}, "has no field 'tag' of bytes"),
        ({"field": "version", "body": "gone"}, "has no field 'gone' of bytes"),
    ],
)
def test_an_envelope_that_cannot_tell_the_version_is_refused(given, told):
    envelope = {"files": [str(FOLDER / "envelope.proto")], "message": "shop.Envelope", **given}
    with pytest.raises(ConfigurationError) as refused:
        make_protobuf_format(section(version="field", envelope=envelope))
    assert told in str(refused.value)


def test_fields_that_are_not_declared_are_those_of_the_newest_schema():
    schemas = {str(number): {"files": [str(FOLDER / f"order_v{number}.proto")]} for number in (1, 2)}
    source = Source(
        kafka=KAFKA,
        format="protobuf",
        protobuf={"message": "shop.Order", "version": "header", "schemas": schemas},
    )
    assert source.fields == {"id": "Int64", "product": "String", "amount": "UInt32", "status": "String"}


def test_fields_are_demanded_where_no_schema_has_them():
    with pytest.raises(ConfigurationError, match="`fields` is missing"):
        Source(kafka=KAFKA, format="json")
    with pytest.raises(ConfigurationError, match="`fields` is missing"):
        Source(kafka=KAFKA, format="protobuf", protobuf={"message": "shop.Order", "version": "prefix"})
    with pytest.raises(
        ConfigurationError, match=r"source\.protobuf\.schemas\.1: .*: there is no message 'shop\.Gone'"
    ):
        Source(
            kafka=KAFKA,
            format="protobuf",
            protobuf={"message": "shop.Gone", "schemas": {"1": {"files": [ORDER]}}},
        )


def test_declared_fields_are_held_against_all_known_versions():
    schemas = [
        make_schema(str(number), files=[str(FOLDER / f"order_v{number}.proto")], message="shop.Order")
        for number in (1, 3)
    ]
    require_readable(schemas, {"product": parse_type("String"), "buyer.name": parse_type("String")})
    with pytest.raises(
        ConfigurationError,
        match=r"'prodcut' is no field of shop\.Order in any version; did you mean 'product'\?",
    ):
        require_readable(schemas, {"prodcut": parse_type("String")})
    require_readable([Schema(schema="1", format="avro", definition="{}")], {"anything": parse_type("String")})
