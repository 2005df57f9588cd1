"""Fields that ids and tables depend on: a version without one makes dead letters, never one id of different events."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncehouse.clickhouse.table_info import Column, TableFacts, read_engine_columns
from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.ledger.catalog.imports import ImportFile, Piece
from oncehouse.ledger.models import DeadLetterKind, FileFormat, Schema
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.identity_rule import Rule, rule_of
from oncehouse.pipeline.external.dataframe_ingest import choose_columns
from oncehouse.pipeline.external.import_reader import ImportPlan, import_task
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.formats.dataframe import DataFrameFormat
from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema, require_readable
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import build_read_plan
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters
from oncehouse.pipeline.requests.rekey import make_ids
from oncehouse.pipeline.requests.table_refill import RefillPlan, refill_task
from oncehouse.pipeline.schema.evolution import new_fields
from oncehouse.pipeline.schema.plan import plan_fields
from oncehouse.pipeline.schema.required_fields import check_versions
from oncehouse.pipeline.schema.table_merge_fields import with_tables
from oncehouse.protobuf.definition import describe_text
from oncehouse.protobuf.fields import find
from plan_examples import make_read_plan
from protobuf_examples import FOLDER, message_class

FIELDS = {"id": "Int64", "note": "String", "amount": "UInt32"}


def make_pipeline(format_: str, section: dict[str, object] | None = None, **more: object) -> Pipeline:
    source: dict[str, object] = {"kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["events"]}}
    source |= {"format": format_, "fields": more.pop("fields", FIELDS)}
    source["optional_fields"] = more.pop("optional_fields", [])
    if format_ == "protobuf":
        source["protobuf"] = {"version": "header", "message": "M", "schemas": {"1": {"files": ["1.proto"]}}}
    elif format_ == "avro":
        source["avro"] = {"version": "header", "schemas": {"1": "1.avsc"}}
    if section:
        source[format_] |= section
    return Pipeline(
        **{
            "pipeline": "events",
            "source": source,
            "identity": {"fields": ["id"]},
            "tables": [{"name": "shop.events"}],
            "clickhouse": {"url": "http://127.0.0.1:9"},
            "ledger": {"catalog": "sqlite:///c.db", "files": "files"},
            **more,
        }
    )


class Told:
    """What a read task made of records: rows by their columns, ids, and the details of dead letters."""

    def __init__(
        self, pipeline: Pipeline, schemas: list[Schema], records: list[tuple[str, bytes]], folder: Path
    ):
        plan = build_read_plan(
            pipeline.model_copy(
                update={"ledger": pipeline.ledger.model_copy(update={"files": str(folder / "files")})}
            ),
            tuple(schemas),
            epoch=1,
            token=1,
            whole=True,
        )
        count = len(records)
        block = pa.record_batch(
            {
                "source": pa.array(np.zeros(count, dtype=np.int32)),
                "offset": pa.array(np.arange(count, dtype=np.int64)),
                "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array([value for _, value in records], pa.binary()),
                "headers": pa.array(
                    [[{"key": "schema-version", "value": version.encode()}] for version, _ in records],
                    HEADERS,
                ),
            }
        )
        manifest = self.manifest = read_records(plan, "test", [block])
        store = self.store = FileStore(plan.files_root)
        self.rows = [
            row
            for chunk in manifest.chunks
            for part in chunk.parts
            for row in read_rows(store, part.file).to_pylist()
        ]
        self.ids = {row["_unique_id"] for row in self.rows}
        dead = [found.file for found in manifest.letters if found.kind == DeadLetterKind.DEAD]
        self.dead = [(row["reason"], row["detail"]) for row in read_dead_letters(store, dead).to_pylist()]
        self.waiting = sum(found.rows for found in manifest.letters if found.kind == DeadLetterKind.WAITING)

    @property
    def keys(self) -> list[object]:
        return [row["id"] for row in self.rows]


# -- protobuf ---------------------------------------------------------------------------------------------

MESSAGES = {"1": "First", "2": "Second", "3": "Third", "4": "Fourth"}


def proto(*versions: str) -> list[Schema]:
    file = str(FOLDER / "versions.proto")
    return [
        make_schema(version, files=[file], message=f"versions.{MESSAGES[version]}") for version in versions
    ]


def message(version: str, **values: object) -> tuple[str, bytes]:
    made = message_class("versions.proto", f"versions.{MESSAGES[version]}")(**values)
    return version, made.SerializeToString()


SEVEN = [
    *(message("1", id=number, note="a") for number in (1, 2, 3)),
    *(message("2", event_id=number, note="a") for number in (4, 5)),
    *(message("3", note=note) for note in ("six", "seven")),
]
LACKS = "schema version {} has no field id, which belongs to the identity"


def test_events_of_versions_without_the_identity_are_dead_letters_that_say_so(tmp_path):
    told = Told(make_pipeline("protobuf"), proto("1", "2", "3"), SEVEN, tmp_path)
    assert told.keys == [1, 2, 3]
    assert told.dead == [("missing_field", LACKS.format(version)) for version in ("2", "2", "3", "3")]


@pytest.mark.parametrize("section", [{"match": "number"}, {"numbers": {"id": 1}}, {"numbers": {"id": [1]}}])
def test_a_renamed_field_is_found_by_its_number_and_has_the_same_ids(tmp_path, section):
    pipeline, schemas = make_pipeline("protobuf", section), proto("1", "2", "3")
    told = Told(pipeline, schemas, SEVEN, tmp_path)
    assert told.keys == [1, 2, 3, 4, 5]
    assert [detail for _, detail in told.dead] == [LACKS.format("3")] * 2
    renamed = Told(pipeline, schemas, [message("2", event_id=1)], tmp_path / "other")
    assert renamed.ids < told.ids


def test_a_version_is_known_by_number_though_only_another_one_has_the_name(tmp_path):
    """Whichever version became known first."""
    told = Told(make_pipeline("protobuf", {"match": "number"}), proto("2", "1"), SEVEN[:5], tmp_path)
    assert told.keys == [1, 2, 3, 4, 5]


def test_a_version_that_gives_a_field_another_number_makes_dead_letters_until_one_is_named(tmp_path):
    """Whichever field: the identity, or one that is optional."""
    schemas = proto("1", "4")
    for optional in ([], ["id"]):
        pipeline = make_pipeline("protobuf", {"match": "number"}, optional_fields=optional)
        require_readable(
            schemas, {name: parse_type(text) for name, text in FIELDS.items()}, pipeline.source.protobuf
        )
        told = Told(
            pipeline, schemas, [message("1", id=1), message("4", id="7")], tmp_path / f"{len(optional)}"
        )
        assert told.keys == [1]
        ((reason, detail),) = told.dead
        assert reason == "missing_field"
        assert detail.startswith("schema version 4 gives field id the number 4, versions before it 1")
        assert not list(check_versions(pipeline, schemas, {"1"}))
        listed = [
            finding for finding in check_versions(pipeline, schemas, {"1", "4"}) if finding.level == "error"
        ]
        assert listed
        assert listed[0].what.startswith(detail)
        assert "source.protobuf.numbers (id: …)" in listed[0].advice
    pinned = make_pipeline("protobuf", {"match": "number", "numbers": {"id": 4}})
    told = Told(pinned, schemas, [message("4", id="7"), message("1", id=7)], tmp_path)
    assert told.keys == [7]
    assert [detail for _, detail in told.dead] == [LACKS.format("1")]


def test_a_default_that_a_record_has_is_a_value_where_its_version_has_the_field(tmp_path):
    told = Told(make_pipeline("protobuf"), proto("1"), [message("1", id=0), message("1", id=1)], tmp_path)
    assert told.keys == [0, 1]


def test_a_version_that_may_lack_the_field_counts_with_the_default(tmp_path):
    pipeline = make_pipeline("protobuf", optional_fields=["id"])
    told = Told(pipeline, proto("1", "3"), [message("1", id=1), *SEVEN[5:]], tmp_path)
    assert told.keys == [1, 0, 0]
    assert len(told.ids) == 2


def test_a_number_and_its_text_have_one_id_and_a_text_that_is_none_is_dead(tmp_path):
    records = [message("1", id=7), message("4", id="7"), message("4", id="x")]
    told = Told(make_pipeline("protobuf"), proto("1", "4"), records, tmp_path)
    assert told.keys == [7, 7]
    assert len(told.ids) == 1
    assert [reason for reason, _ in told.dead] == ["wrong_type"]


EVERYTHING = "everything.proto", "everything.Everything"


def everything(**values: object) -> tuple[str, bytes]:
    return "1", message_class(*EVERYTHING)(**values).SerializeToString()


@pytest.mark.parametrize(
    ("field", "type_", "present", "absent"),
    [
        ("oa", "Int32", {"oa": 0}, {"ob": "other member"}),
        ("oi", "Int32", {"oi": 0}, {"i32": 5}),
        ("inner.id", "Int64", {"inner": {"id": 0}}, {"i32": 5}),
        ("os", "LowCardinality(String)", {"os": ""}, {}),
        ("inner", "Tuple(id Int64, name String)", {"inner": {"id": 0}}, {"i32": 5}),
        ("oi", "Nullable(Int32)", {"oi": 0}, {"i32": 5}),
        ("one", "Nullable(String)", {"oa": 0}, {"i32": 5}),
    ],
)
def test_a_record_that_does_not_set_the_identity_is_dead_where_its_schema_can_tell(
    tmp_path, field, type_, present, absent
):
    path = "inner.id" if field == "inner" else field
    given = {"fields": {field: type_, "i32": "Int32"}, "identity": {"fields": [path]}}
    schemas = [make_schema("1", files=[str(FOLDER / EVERYTHING[0])], message=EVERYTHING[1])]
    records = [everything(**present), everything(**absent)]
    told = Told(make_pipeline("protobuf", **given), schemas, records, tmp_path)
    assert len(told.rows) == 1
    assert [reason for reason, _ in told.dead] == ["missing_field"]
    assert field in told.dead[0][1]
    optional = make_pipeline("protobuf", optional_fields=[path], **given)
    assert len(Told(optional, schemas, records, tmp_path / "optional").rows) == 2


def test_a_part_of_a_tuple_that_a_version_lacks_is_found_out(tmp_path):
    (tmp_path / "one.proto").write_text(
        'syntax = "proto3"; package t; message U { int64 id = 1; string n = 2; } message M { U user = 1; }'
    )
    (tmp_path / "two.proto").write_text(
        'syntax = "proto3"; package t; message U { string n = 2; } message M { U user = 1; }'
    )
    schemas = [
        make_schema(version, files=[str(tmp_path / f"{file}.proto")], message="t.M")
        for version, file in (("1", "one"), ("2", "two"))
    ]
    fields = {"user": "Tuple(id Int64, n String)"}
    pipeline = make_pipeline("protobuf", fields=fields, identity={"fields": ["user.id"]})
    found = list(check_versions(pipeline, schemas))
    assert [finding.what.partition(":")[0] for finding in found] == [
        "schema version 2 has no field user.id, which belongs to the identity"
    ]


def test_a_renamed_part_of_a_tuple_is_found_as_the_advice_says(tmp_path):
    for version, name in (("1", "uid"), ("2", "id")):
        (tmp_path / f"tuple{version}.proto").write_text(
            f'syntax = "proto3"; package t; message U {{ int64 {name} = 1; }} message M {{ U user = 4; }}'
        )
    schemas = [
        make_schema(version, files=[str(tmp_path / f"tuple{version}.proto")], message="t.M")
        for version in "12"
    ]
    identity = {"identity": {"fields": ["user.id"]}}
    fields = {"user": "Tuple(id Int64)"}
    (found,) = check_versions(make_pipeline("protobuf", fields=fields, **identity), schemas)
    assert "declare user.id in source.fields as a field of its own" in found.advice
    assert "match to number" not in found.advice
    numbers = {"numbers": {"user.id": [4, 1]}}
    with pytest.raises(ConfigurationError, match=r"source\.protobuf\.numbers\.user\.id.*part of a Tuple"):
        make_pipeline("protobuf", numbers, fields=fields, **identity)
    advised = make_pipeline("protobuf", numbers, fields={"user.id": "Int64"}, **identity)
    records = [("1", bytes([0x22, 2, 8, number])) for number in (5, 6)]
    told = Told(advised, schemas, records, tmp_path)
    assert not told.dead
    assert [row["user.id"] for row in told.rows] == [5, 6]
    assert len(told.ids) == 2


@pytest.mark.parametrize("later", ["repeated U user = 4;", "int64 user = 4;"])
@pytest.mark.parametrize(
    "section", [{}, {"match": "number"}, {"numbers": {"user.id": [4, 1], "user.n": [4, 2]}}]
)
def test_a_version_in_which_a_step_of_a_path_is_no_single_message_makes_dead_letters(
    tmp_path, section, later
):
    for version, line in (("1", "U user = 4;"), ("2", later)):
        (tmp_path / f"step{version}.proto").write_text(
            'syntax = "proto3"; package t; message U { int64 id = 1; string n = 2; } '
            f"message M {{ {line} int64 key = 9; }}"
        )
    schemas = [
        make_schema(version, files=[str(tmp_path / f"step{version}.proto")], message="t.M")
        for version in "12"
    ]
    fields = {"key": "Int64", "user.id": "Int64", "user.n": "String"}
    pipeline = make_pipeline("protobuf", section, fields=fields, identity={"fields": ["key"]})
    require_readable(
        schemas, {name: parse_type(text) for name, text in fields.items()}, pipeline.source.protobuf
    )
    told = Told(
        pipeline, schemas, [("1", bytes([0x22, 2, 8, 5, 0x48, 1])), ("2", bytes([0x48, 2]))], tmp_path
    )
    assert [row["key"] for row in told.rows] == [1]
    ((reason, detail),) = told.dead
    assert reason == "missing_field"
    assert detail.startswith("schema version 2, field 'user.id': t.M.user is ")
    assert not list(check_versions(pipeline, schemas, {"1"}))
    (found,) = check_versions(pipeline, schemas, {"1", "2"})
    assert found.what.startswith(detail)


@pytest.mark.parametrize(
    ("later", "needs"),
    [
        ("repeated int64 id = 1;", "an Array; such as Array(Int64)"),
        ("map<string, int64> id = 1;", "a Map; such as Map(String, Int64)"),
        ("U id = 1;", "a Tuple, or a String for its JSON; such as Tuple(n Int64)"),
    ],
)
@pytest.mark.parametrize(
    ("section", "fields", "first"),
    [
        ({}, {"id": "Int64"}, "int64 id = 1;"),
        ({"match": "number"}, {"id": "Int64"}, "int64 id = 1;"),
        ({}, {"user.id": "Nullable(Int64)"}, "V user = 1;"),
    ],
)
def test_a_version_in_which_a_field_is_no_single_value_any_more_makes_dead_letters(
    tmp_path, section, fields, first, later, needs
):
    nested = first.startswith("V")
    for version, line in (("1", "int64 id = 1;"), ("2", later)):
        lines = (line, first) if nested else ("", line)
        (tmp_path / f"end{version}.proto").write_text(
            'syntax = "proto3"; package t; message U { int64 n = 1; } '
            f"message V {{ {lines[0]} }} message M {{ {lines[1]} int64 key = 9; }}"
        )
    schemas = [
        make_schema(version, files=[str(tmp_path / f"end{version}.proto")], message="t.M") for version in "12"
    ]
    declared = {"key": "Int64", **fields}
    pipeline = make_pipeline("protobuf", section, fields=declared, identity={"fields": ["key"]})
    types = {name: parse_type(text) for name, text in declared.items()}
    require_readable(schemas, types, pipeline.source.protobuf)
    value = bytes([0x0A, 2, 8, 5, 0x48, 1]) if nested else bytes([8, 5, 0x48, 1])
    told = Told(pipeline, schemas, [("1", value), ("2", bytes([0x48, 2]))], tmp_path)
    assert [row["key"] for row in told.rows] == [1]
    ((reason, detail),) = told.dead
    (name,) = fields
    assert reason == "missing_field"
    assert detail.startswith(f"schema version 2, field '{name}' is declared as {fields[name]}, but t.")
    assert detail.endswith(f" needs {needs}")
    assert not list(check_versions(pipeline, schemas, {"1"}))
    (found,) = check_versions(pipeline, schemas, {"1", "2"})
    assert found.what.startswith(detail)
    assert "every version" in found.advice
    with pytest.raises(ConfigurationError, match=r"source\.fields: .* needs "):
        require_readable(schemas[1:], types, pipeline.source.protobuf)


def test_a_path_is_found_by_the_numbers_of_its_steps():
    descriptor = describe_text(
        make_schema("1", files=[str(FOLDER / EVERYTHING[0])], message=EVERYTHING[1]).definition
    )
    found = find(descriptor, "was.called.otherwise"[:10], (17, 1))
    assert found is not None
    assert (found.through[0].name, found.end.name) == ("inner", "id")
    assert find(descriptor, "inner.id", (17, 99)) is None


# -- Avro -------------------------------------------------------------------------------------------------


def record(*fields: dict[str, object]) -> dict[str, object]:
    return {"type": "record", "name": "Event", "fields": list(fields)}


def field(name: str, type_: object = "long", **more: object) -> dict[str, object]:
    return {"name": name, "type": type_, **more}


NOTE, AMOUNT = field("note", "string"), field("amount", "int")
AVRO = {
    "1": record(field("id", default=0), NOTE, AMOUNT),
    "2": record(field("event_id", default=0), NOTE, AMOUNT),
    "3": record(NOTE, AMOUNT),
    "10": record(field("id", default=-1), NOTE, AMOUNT),
}


def avro(*versions: str) -> list[Schema]:
    return [
        Schema(schema=version, format="avro", definition=json.dumps(AVRO[version])) for version in versions
    ]


def write(version: str, **values: object) -> tuple[str, bytes]:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO[version], {"note": "n", "amount": 1, **values})
    return version, out.getvalue()


AVRO_SEVEN = [
    *(write("1", id=number) for number in (1, 2, 3)),
    *(write("2", event_id=number) for number in (4, 5)),
    *(write("3", note=note) for note in ("six", "seven")),
]


def test_avro_takes_no_default_of_the_newest_version_for_the_identity(tmp_path):
    told = Told(make_pipeline("avro"), avro("1", "2", "3", "10"), AVRO_SEVEN, tmp_path)
    assert told.keys == [1, 2, 3]
    assert told.dead == [("missing_field", LACKS.format(version)) for version in ("2", "2", "3", "3")]


def test_avro_finds_a_renamed_field_by_an_alias_of_the_pipeline_file(tmp_path):
    pipeline = make_pipeline("avro", {"aliases": {"id": ["event_id"]}})
    told = Told(pipeline, avro("1", "2", "3", "10"), AVRO_SEVEN, tmp_path)
    assert told.keys == [1, 2, 3, 4, 5]
    assert [detail for _, detail in told.dead] == [LACKS.format("3")] * 2
    assert Told(pipeline, avro("1", "2"), [write("2", event_id=2)], tmp_path / "other").ids < told.ids


def test_an_alias_of_a_schema_is_as_good():
    aliased = record(field("event_id", aliases=["id"]), NOTE, AMOUNT)
    schemas = [*avro("1"), Schema(schema="2", format="avro", definition=json.dumps(aliased))]
    assert not list(check_versions(make_pipeline("avro"), schemas))


USER = {"type": "record", "name": "User", "fields": [field("uid")]}
OTHER = {"type": "record", "name": "Other", "fields": [field("name", "string")]}


@pytest.mark.parametrize(
    ("type_", "aliases", "lacking"),
    [
        (USER, {}, True),
        (USER, {"user.id": ["uid"]}, False),
        (["null", USER], {"user.id": ["uid"]}, False),
        ([USER, OTHER], {"user.id": ["uid"]}, False),
        ([OTHER], {"user.id": ["uid"]}, True),
    ],
)
def test_avro_paths_lead_through_the_records_that_may_stand_there(tmp_path, type_, aliases, lacking):
    schema = record(field("user", type_))
    schemas = [Schema(schema="1", format="avro", definition=json.dumps(schema))]
    pipeline = make_pipeline(
        "avro", {"aliases": aliases}, fields={"user.id": "Int64"}, identity={"fields": ["user.id"]}
    )
    assert bool(list(check_versions(pipeline, schemas))) is lacking
    if type_ == [OTHER]:
        return
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"user": {"uid": 7}})
    told = Told(pipeline, schemas, [("1", out.getvalue())], tmp_path)
    assert [row["user.id"] for row in told.rows] == ([] if lacking else [7])


def test_an_alias_names_a_part_of_a_tuple_for_the_check_and_for_the_reader_alike(tmp_path):
    def schema(name: str, **more: object) -> dict[str, object]:
        group = {"type": "record", "name": "Group", "fields": [field(name, "string", **more)]}
        user = {
            "type": "record",
            "name": "User",
            "fields": [field(name, "string", **more), field("of", group)],
        }
        return record(field("user", user))

    old = schema("uid")
    schemas = [
        Schema(schema=version, format="avro", definition=json.dumps(given))
        for version, given in (("1", old), ("2", schema("id", default="")))
    ]
    records = []
    for user, group in (("a", "x"), ("b", "y"), ("b", "z")):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, old, {"user": {"uid": user, "of": {"uid": group}}})
        records.append(("1", out.getvalue()))
    pipeline = make_pipeline(
        "avro",
        {"aliases": {"user.id": ["uid"], "user.of.id": ["uid"]}},
        fields={"user": "Tuple(id String, of Tuple(id String))"},
        identity={"fields": ["user.id", "user.of.id"]},
    )
    told = Told(pipeline, schemas, records, tmp_path)
    assert [(row["user"]["id"], row["user"]["of"]["id"]) for row in told.rows] == [
        ("a", "x"),
        ("b", "y"),
        ("b", "z"),
    ]
    assert len(told.ids) == 3


def test_a_record_of_a_union_takes_no_default_for_the_identity_either(tmp_path):
    first, second = (
        {"type": "record", "name": name, "fields": fields}
        for name, fields in (("A", [field("id")]), ("B", [field("name", "string")]))
    )
    later = {**second, "fields": [*second["fields"], field("id", default=0)]}
    schemas = [
        Schema(schema=version, format="avro", definition=json.dumps(record(field("user", union))))
        for version, union in (("1", [first, second]), ("2", [first, later]))
    ]
    pipeline = make_pipeline("avro", fields={"user.id": "Int64"}, identity={"fields": ["user.id"]})
    (found,) = check_versions(pipeline, schemas)
    assert found.what.startswith("schema version 1 has no field user.id")


def test_events_whose_enum_the_newest_version_no_longer_knows_stay_different_events(tmp_path):
    def version(symbols: str, **more: object) -> dict[str, object]:
        return record(field("kind", {"type": "enum", "name": "Kind", "symbols": [*symbols], **more}))

    old, new = version("ABC"), version("A", default="A")
    schemas = [
        Schema(schema=name, format="avro", definition=json.dumps(given))
        for name, given in (("1", old), ("2", new))
    ]
    records = []
    for symbol in "ABC":
        out = io.BytesIO()
        fastavro.schemaless_writer(out, old, {"kind": symbol})
        records.append(("1", out.getvalue()))
    pipeline = make_pipeline("avro", fields={"kind": "String"}, identity={"fields": ["kind"]})
    told = Told(pipeline, schemas, records, tmp_path)
    assert [row["kind"] for row in told.rows] == ["A", "B", "C"]
    assert len(told.ids) == 3
    before = Told(pipeline, schemas[:1], records, tmp_path / "before")
    assert before.ids == told.ids
    for given in (schemas, schemas[:1]):  # as `repair` and `rekey` read them later
        plan = build_read_plan(pipeline, tuple(given), epoch=1, token=1, whole=True)
        block = pa.record_batch(
            {
                "value": pa.array([value for _, value in records], pa.binary()),
                "headers": pa.array([[{"key": "schema-version", "value": b"1"}]] * 3, HEADERS),
            }
        )
        assert make_decoder(plan).decode(block).rows.to_pylist() == [{"kind": kind} for kind in "ABC"]


def test_a_field_is_found_in_the_record_of_its_own_namespace():
    def place(namespace: str, *fields: dict[str, object]) -> dict[str, object]:
        return {"type": "record", "name": "Place", "namespace": namespace, "fields": list(fields)}

    versions = {
        "1": record(field("work", place("work", field("number"))), field("home", place("home", field("x")))),
        "2": record(
            field("work", place("work", field("id", aliases=["number"]))),
            field("home", place("home", field("x"))),
        ),
    }
    schemas = [
        Schema(schema=name, format="avro", definition=json.dumps(given)) for name, given in versions.items()
    ]
    pipeline = make_pipeline("avro", fields={"work.id": "Int64"}, identity={"fields": ["work.id"]})
    assert not list(check_versions(pipeline, schemas))


# -- before data moves ------------------------------------------------------------------------------------


def test_what_is_found_names_version_field_and_what_to_do():
    (found,) = check_versions(make_pipeline("protobuf"), proto("1", "3"))
    assert (found.level, found.where) == ("error", "schemas")
    assert found.what.startswith(LACKS.format("3"))
    for word in ("source.protobuf.numbers", "source.optional_fields", "dead-letters replay"):
        assert word in found.advice
    (found,) = check_versions(make_pipeline("avro"), avro("1", "3"))
    assert "source.avro.aliases" in found.advice


def test_only_versions_that_are_asked_for_are_found():
    assert not list(check_versions(make_pipeline("protobuf"), proto("1", "3"), {"1"}))
    assert list(check_versions(make_pipeline("protobuf"), proto("1", "3"), {"3"}))


def test_marks_under_another_name_are_the_same_rule_where_the_file_says_so():
    mark = {"oncehouse.identity": True}
    schemas = [
        Schema(schema=version, format="avro", definition=json.dumps(record(field(name, **mark), NOTE)))
        for version, name in (("1", "id"), ("2", "event_id"))
    ]
    identity = {"from_schema": True}
    with pytest.raises(ConfigurationError, match="mark different fields"):
        rule_of(make_pipeline("avro", identity=identity), schemas)
    pipeline = make_pipeline("avro", {"aliases": {"id": ["event_id"]}}, identity=identity)
    assert rule_of(pipeline, schemas).fields == (("id",),)


def test_a_renamed_field_is_no_new_one_where_the_file_says_how_it_is_found():
    noticed = set(new_fields(make_pipeline("protobuf"), (), proto("1", "2"), {}))
    assert noticed == {"event_id"}
    for section in ({"match": "number"}, {"numbers": {"id": 1}}):
        pipeline = make_pipeline("protobuf", section)
        assert not new_fields(pipeline, (), proto("1", "2"), {})
        told = {change.field: change.why for change in plan_fields(pipeline, (), proto("1", "2"))}
        assert told == {"id": "version 2 calls it event_id; either name reads both"}
    pipeline = make_pipeline("avro", {"aliases": {"id": ["event_id"]}})
    assert not new_fields(pipeline, (), avro("1", "2"), {})


def test_a_renamed_member_of_an_enum_is_told_unless_it_counts_by_its_number(tmp_path):
    for version, member in (("1", "PAID"), ("2", "SETTLED")):
        (tmp_path / f"{version}.proto").write_text(
            f'syntax = "proto3"; package t; enum S {{ NONE = 0; {member} = 1; }} message M {{ S state = 1; }}'
        )
    schemas = [
        make_schema(version, files=[str(tmp_path / f"{version}.proto")], message="t.M") for version in "12"
    ]
    rule = {"identity": {"fields": ["state"]}}
    (found,) = check_versions(make_pipeline("protobuf", fields={"state": "String"}, **rule), schemas)
    assert found.level == "warning"
    assert "PAID and SETTLED" in found.what
    assert not list(check_versions(make_pipeline("protobuf", fields={"state": "Int32"}, **rule), schemas))


# -- tables that merge rows -------------------------------------------------------------------------------


def facts(engine: str, sorting: str, *engine_columns: str) -> TableFacts:
    names = ("id", "note", "amount", "customer")
    return TableFacts(
        database="shop",
        table="events",
        uuid="",
        engine=engine,
        columns=tuple(Column(name=name, type="Int64", default_kind="") for name in names),
        partition_key="",
        sorting_key=sorting,
        window_blocks=0,
        window_seconds=None,
        expires_rows=False,
        views=(),
        engine_columns=engine_columns,
    )


def test_a_field_by_which_a_table_merges_rows_is_required_as_well(tmp_path):
    fields = {"id": "Int64", "amount": "UInt32", "seen": "UInt32"}
    pipeline = make_pipeline(
        "protobuf",
        fields={**fields, "note": "String"},
        shape={"columns": {"version": {"type": "UInt32", "sql": "amount + 1"}}},
        identity={"fields": ["note"]},
    )
    merging = facts("ReplacingMergeTree", "lower(`note`), id, 'amount'", "version")
    known = with_tables(pipeline, {"shop.events": merging})
    assert known.merging_fields == (("shop.events", "id"), ("shop.events", "note"), ("shop.events", "amount"))
    assert not with_tables(pipeline, {"shop.events": facts("MergeTree", "id")}).merging_fields
    (found,) = check_versions(known, proto("1", "3"))
    assert found.what.startswith(
        "schema version 3 has no field id, which decides which rows shop.events merges"
    )
    assert not list(check_versions(pipeline, proto("1", "3")))
    told = Told(
        known.model_copy(update={"shape": Pipeline.model_fields["shape"].default}),
        proto("1", "3"),
        SEVEN[5:],
        tmp_path,
    )
    assert len(told.dead) == 2


@pytest.mark.parametrize(
    ("engine", "columns"),
    [
        ("ReplacingMergeTree ORDER BY id", ()),
        ("ReplacingMergeTree(version, is_deleted) ORDER BY (id, f(x))", ("version", "is_deleted")),
        ("ReplicatedReplacingMergeTree('/t/{shard}', '{replica}', version) ORDER BY id", ("version",)),
        ("VersionedCollapsingMergeTree(sign, `the version`) ORDER BY id", ("sign", "the version")),
        ("SharedSummingMergeTree('/t', 'r', (a, b)) ORDER BY id", ()),
        ("MergeTree PARTITION BY toYYYYMM(at) ORDER BY (id, at)", ()),
    ],
)
def test_an_engine_names_its_columns(engine, columns):
    assert read_engine_columns(engine) == columns


# -- other formats ----------------------------------------------------------------------------------------


def test_json_without_any_value_of_the_identity_is_dead_and_a_rest_of_it_is_enough(tmp_path):
    pipeline = make_pipeline(
        "json",
        fields={"id": "Nullable(Int64)", "line": "Nullable(Int64)", "note": "String"},
        identity={"fields": ["id", "line"]},
    )
    values = [{"id": 1}, {"line": 1}, {"id": None, "line": None}, {}, {"id": 0}]
    records = [("", json.dumps({"note": str(at), **value}).encode()) for at, value in enumerate(values)]
    told = Told(pipeline, [], records, tmp_path)
    assert [row["note"] for row in told.rows] == ["0", "1", "4"]
    assert [reason for reason, _ in told.dead] == ["missing_field"] * 2
    assert "field id, line: missing or null" in told.dead[0][1]


# -- the pipeline file ------------------------------------------------------------------------------------


UNDECLARED = ": {!r} is not declared in source.fields; did you mean {!r}?"


@pytest.mark.parametrize(
    ("format_", "section", "more", "told"),
    [
        ("protobuf", {"numbers": {"idd": 1}}, {}, "protobuf.numbers.idd" + UNDECLARED.format("idd", "id")),
        ("protobuf", {"numbers": {"id": [1, 2]}}, {}, "numbers.id needs 1 numbers"),
        ("protobuf", {"numbers": {"id": 0}}, {}, "source.protobuf.numbers.id"),
        ("protobuf", {"numbers": {"id": True}}, {}, "source.protobuf.numbers.id"),
        ("protobuf", {"match": "numbers"}, {}, "number"),
        ("protobuf", {"macth": "number"}, {}, "match"),
        ("avro", {"aliases": {"idd": ["x"]}}, {}, "avro.aliases.idd" + UNDECLARED.format("idd", "id")),
        ("avro", {"alias": {"id": ["x"]}}, {}, "aliases"),
        ("json", None, {"optional_fields": ["nott"]}, "source.optional_fields[0]" + UNDECLARED.format("nott", "note")),
    ],
)  # fmt: skip
def test_the_file_is_told_what_it_says_wrong(format_, section, more, told):
    with pytest.raises(ConfigurationError) as caught:
        make_pipeline(format_, section, **more)
    assert told in str(caught.value)


# -- columns of frames and files, and events that are in the ledger ---------------------------------------


def test_a_frame_needs_a_column_for_the_identity_though_its_field_takes_null():
    types = {"id": parse_type("Nullable(Int64)"), "note": parse_type("Nullable(String)")}
    frame = SimpleNamespace(
        sparkSession=SimpleNamespace(sparkContext=None), columns=["note"], select=lambda *names: names
    )
    assert choose_columns(types, frame) == ("`note`",)
    with pytest.raises(ConfigurationError, match=r"no column id, .*, and which belongs to the identity"):
        choose_columns(types, frame, needed={"id": "belongs to the identity"})


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_a_file_needs_a_column_for_the_identity_though_its_field_takes_null(tmp_path, format_):
    path = tmp_path / f"one.{format_}"
    table = pa.table({"note": ["a", "b"]})
    if format_ == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("note\na\nb\n")
    types = {"id": parse_type("Nullable(Int64)"), "line": parse_type("Int64"), "note": parse_type("String")}
    plan = make_read_plan(
        tmp_path / "files",
        fields=types,
        identity=Rule(fields=(("id",),)),
        needed_columns={"id": "belongs to the identity"},
        format=DataFrameFormat(),
    )
    info = path.stat()
    file = ImportFile(number=0, path=str(path), size_bytes=info.st_size, modified_ns=info.st_mtime_ns)
    piece = Piece(batch=0, piece=0, number=0, first=0, last=1, size_bytes=1)
    task = ImportPlan(
        read=plan,
        place=str(tmp_path),
        format=FileFormat(format_),
        files=(file,),
        pieces=(piece,),
        mark_json=False,
    )
    with pytest.raises(ConfigurationError, match=rf"one\.{format_} has no column id, which belongs"):
        import_task(task)
    assert import_task(replace(task, read=replace(plan, needed_columns={}))).read == 2


def test_a_rule_is_not_changed_to_a_field_that_a_version_of_kept_events_lacks(tmp_path):
    by_note = make_pipeline("protobuf", identity={"fields": ["note"]})
    schemas = proto("1", "3")
    told = Told(by_note, schemas, [message("1", id=1, note="a"), message("3", note="b")], tmp_path)
    assert len(told.rows) == 2
    raw = told.manifest.chunks[0].raw

    def ids(pipeline: Pipeline):
        plan = build_read_plan(pipeline, tuple(schemas), epoch=2, token=1, whole=False)
        return make_ids(told.store, plan, make_decoder(plan), SimpleNamespace(raw=raw))

    with pytest.raises(PermanentError, match="cannot be changed.*" + LACKS.format("3")):
        ids(make_pipeline("protobuf"))
    assert len(ids(by_note).hi) == 2
    assert len(ids(make_pipeline("protobuf", optional_fields=["id"])).hi) == 2


def test_a_table_that_merges_rows_is_not_filled_with_events_without_its_key(tmp_path):
    pipeline = make_pipeline("protobuf", identity={"fields": ["note"]})
    schemas = tuple(proto("1", "3"))
    told = Told(pipeline, schemas, [message("1", id=1, note="a"), message("3", note="b")], tmp_path)
    plan = build_read_plan(pipeline, schemas, epoch=2, token=1, whole=False)
    plan = replace(plan, files_root=str(tmp_path / "files"))
    task = RefillPlan(
        read=plan,
        key_file="k",
        ordinal=0,
        events=2,
        raw=told.manifest.chunks[0].raw,
        duplicate_files=(),
    )
    made = refill_task(task)
    assert made is not None
    assert made[0] == 2
    lacking = {"3": "schema version 3 has no field id, which decides which rows shop.events merges"}
    with pytest.raises(
        PermanentError, match=r"shop\.events was not filled: .*no field id.*partition 0 offset 1"
    ):
        refill_task(replace(task, read=replace(plan, refused=lacking)))
