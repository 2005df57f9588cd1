"""Events made up for a pipeline fit it: the pipeline's own reader takes every one, and tells as many ids apart."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import Pipeline
from oncehouse.devstack.chaos.event_factory import event_maker, find_choices
from oncehouse.devstack.chaos.generators.factory import GeneratedRecord
from oncehouse.devstack.chaos.generators.values import capacity, nth_value
from oncehouse.devstack.chaos.load_plan import plan_numbers, plan_sample, plan_traffic, read_sample
from oncehouse.devstack.chaos.run_chaos import make_plan
from oncehouse.devstack.chaos.validate_events import find_poison, read_records, require_valid
from oncehouse.errors import ConfigurationError

PROTOS = Path(__file__).parents[2] / "protos"
SCALARS = {
    "id": "UInt64",
    "i8": "Int8",
    "u32": "UInt32",
    "i128": "Int128",
    "u256": "UInt256",
    "f32": "Float32",
    "f64": "Nullable(Float64)",
    "money": "Decimal(18, 2)",
    "wide": "Decimal(60, 20)",
    "flag": "Bool",
    "text": "String",
    "word": "LowCardinality(Nullable(String))",
    "fixed": "FixedString(5)",
    "day": "Date",
    "old_day": "Date32",
    "second": "DateTime",
    "milli": "DateTime64(3, 'Europe/Berlin')",
    "nano": "DateTime64(9)",
    "uuid": "UUID",
    "color": "Enum8('red' = 1, 'blue' = 2)",
}
NESTED = {
    "tags": "Array(String)",
    "matrix": "Array(Array(Int32))",
    "attributes": "Map(String, String)",
    "sizes": "Map(UInt16, Nullable(Decimal(9, 3)))",
    "user": "Tuple(id UInt64, name Nullable(String), seen Array(DateTime))",
}
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "click"]}},
        {"name": "small", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "share", "type": "double"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 8}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
        {
            "name": "user",
            "type": {
                "type": "record",
                "name": "User",
                "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
            },
        },
        {"name": "nobody_asked", "type": ["int", "string"]},
        {"name": "nor_here", "type": {"type": "array", "items": "double"}},
    ],
}
AVRO_FIELDS = {
    "id": "UInt64",
    "kind": "LowCardinality(String)",
    "small": "UInt32",
    "price": "Decimal(18, 4)",
    "at": "DateTime64(6)",
    "day": "Date",
    "note": "Nullable(String)",
    "share": "Float64",
    "hash": "FixedString(8)",
    "tags": "Array(String)",
    "sizes": "Map(String, Int64)",
    "user.name": "String",
}


def make_pipeline(fields: dict[str, str] | None, identity: dict | None = None, **more) -> Pipeline:
    source = {"kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["events"]}, **more.pop("source", {})}
    if fields is not None:
        source["fields"] = fields
    return Pipeline(
        pipeline="made",
        source=source,
        identity=identity or {"fields": ["id"]},
        tables=more.pop("tables", [{"name": "events"}]),
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///none.db", "files": "none"},
        **more,
    )


def assert_fits(pipeline: Pipeline, *, events: int = 60, unique: int | None = None) -> list[GeneratedRecord]:
    """The reader takes all, and finds as many ids as there are different events."""
    maker = event_maker(pipeline, wanted=events, seed=3)
    assert maker.events == (events if unique is None else unique)
    several = maker.writer.several
    numbers = range(maker.events)
    records = [maker.record(numbers[at : at + several]) for at in range(0, maker.events, several)]
    sample = read_records(pipeline, records)
    assert (sample.records, sample.dead) == (maker.events, 0), sample.first_dead
    assert sum(len(set(_ids(rows))) for rows in sample.rows.values()) == maker.events
    assert find_poison(pipeline, maker.writer.headers), "there is something that it refuses"
    return records


def _ids(rows: pa.Table) -> list[bytes]:
    return pc.cast(rows["_unique_id"], pa.binary()).to_pylist()


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_json_events_of_every_type_fit(format_):
    assert_fits(make_pipeline(SCALARS | NESTED, source={"format": format_}))


@pytest.mark.parametrize(
    "csv",
    [
        {},
        {"delimiter": ";", "quote": "'", "header": True, "null": "NULL"},
        {"delimiter": "\t", "quote": None},
    ],
)
def test_lines_of_every_scalar_type_fit(csv):
    assert_fits(make_pipeline(SCALARS, source={"format": "csv", "csv": csv}))


def test_columns_that_nobody_declared_are_left_empty():
    csv = {"columns": ["other", "id", "text"]}
    assert_fits(make_pipeline({"id": "Int64", "text": "String"}, source={"format": "csv", "csv": csv}))


def test_texts_without_a_pattern_fit():
    assert_fits(make_pipeline({"id": "UInt32"}, source={"format": "text"}))


@pytest.mark.parametrize("version", ["none", "header", "prefix"])
def test_avro_events_fit_the_schema_and_the_fields(tmp_path, version):
    (tmp_path / "event.avsc").write_text(json.dumps(AVRO))
    avro = {"version": version, "schemas": {"7": str(tmp_path / "event.avsc")}}
    pipeline = make_pipeline(AVRO_FIELDS, {"fields": ["kind", "id"]}, source={"format": "avro", "avro": avro})
    assert_fits(pipeline)


def test_protobuf_events_fit_what_the_schema_says():
    schema = {"files": [str(PROTOS / "everything.proto")], "message": "everything.Everything"}
    source = {"format": "protobuf", "protobuf": {"schemas": {"1": schema}}}
    assert_fits(make_pipeline(None, {"fields": ["i64", "c", "s"]}, source=source))


@pytest.mark.parametrize("version", ["header", "prefix"])
def test_protobuf_events_name_their_version(version):
    schema = {"files": [str(PROTOS / "everything.proto")], "message": "everything.Everything"}
    source = {"format": "protobuf", "protobuf": {"schemas": {"3": schema}, "version": version}}
    fields = {"i32": "Int64", "inner.name": "String", "ts": "DateTime64(3)", "b": "Bool"}
    assert_fits(make_pipeline(fields, {"fields": ["i32"]}, source=source))


@pytest.mark.parametrize("identity", [{"key": True}, {"headers": ["event"]}, {"fields": ["id"], "key": True}])
def test_keys_and_headers_of_the_identity_differ(identity):
    assert_fits(make_pipeline({"id": "Bool", "text": "String"}, identity))


def test_a_field_inside_of_a_tuple_can_be_the_identity():
    assert_fits(make_pipeline({"user": "Tuple(id UInt32, name String)"}, {"fields": ["user.id"]}))


def test_an_identity_of_few_values_makes_as_many_events_as_it_can():
    pipeline = make_pipeline(
        {"flag": "Bool", "color": "Enum8('a' = 1, 'b' = 2, 'c' = 3)"}, {"fields": ["flag", "color"]}
    )
    assert_fits(pipeline, unique=6)


def test_events_take_the_values_that_routes_and_filters_ask_for():
    pipeline = make_pipeline(
        {"id": "UInt64", "kind": "String", "country": "String", "level": "UInt8"},
        tables=[
            {"name": "buys", "route": {"field": "kind", "values": ["buy"]}},
            {"name": "high", "route": {"field": "level", "values": [3]}},
        ],
        shape={"where": "country = 'de' OR country = 'fr'"},
    )
    choices = find_choices(pipeline, event_maker(pipeline, wanted=10, seed=1).writer.types)
    assert choices == {"kind": ("buy", "other"), "level": (3, 7), "country": ("de", "fr", "other")}
    maker = event_maker(pipeline, wanted=100, seed=1)
    sample = read_records(pipeline, [maker.record([number]) for number in range(100)])
    assert not sample.dead
    assert set(sample.rows) == {"buys", "high"}


def test_a_filter_over_the_identity_does_not_leave_two_events():
    pipeline = make_pipeline({"id": "String", "n": "UInt8"}, shape={"where": "id <> ''"})
    assert event_maker(pipeline, wanted=50, seed=1).events == 50


def test_the_same_seed_makes_the_same_events_and_another_one_others():
    pipeline = make_pipeline(SCALARS | NESTED)
    first, again, other = (event_maker(pipeline, wanted=20, seed=seed).record([5]) for seed in (1, 1, 2))
    assert first == again
    assert first.value != other.value


@pytest.mark.parametrize("type_", [*SCALARS.values(), "Int64", "FixedString(30)", "Bool"])
@settings(max_examples=30)
@given(first=st.integers(0, 1 << 40), second=st.integers(0, 1 << 40))
def test_no_two_numbers_below_the_capacity_have_one_value(type_, first, second):
    parsed = parse_type(type_)
    first, second = first % capacity(parsed), second % capacity(parsed)
    assert (nth_value(parsed, first) == nth_value(parsed, second)) == (first == second)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"format": "debezium"}, "No events can be made up for `format: debezium`"),
        (
            {"format": "text", "text": {"pattern": "(?P<id>[0-9]+)"}},
            "No events can be made up for `format: text`",
        ),
        ({"format": "avro", "avro": {"registry": {"url": "http://127.0.0.1:9"}}}, "in a registry alone"),
    ],
)
def test_formats_without_made_up_events_ask_for_a_sample(source, told):
    with pytest.raises(ConfigurationError, match=told) as caught:
        event_maker(make_pipeline({"id": "UInt64"}, source=source), wanted=10, seed=1)
    assert "--records FILE" in str(caught.value)


def test_events_that_do_not_fit_are_refused_before_anything_starts():
    with pytest.raises(
        ConfigurationError, match="1 of 2 events would be dead letters; the first is in record 2: wrong_type"
    ):
        require_valid(
            make_pipeline({"id": "UInt64"}),
            [GeneratedRecord(value=b'{"id":1}'), GeneratedRecord(value=b'{"id":"x"}')],
            made=True,
        )


# -- traffic ----------------------------------------------------------------------------------------------


def test_every_wave_brings_new_events_and_repeats_of_earlier_waves():
    first, second, third = plan_numbers(200, seed=5)
    assert {*first, *second, *third} == set(range(200))
    assert len(first) > len(set(first))
    assert set(first) & set(second)
    assert set(third) & set(first)
    assert set(third) & set(second) - set(first)


def test_traffic_is_the_same_for_the_same_seed_and_holds_poison_in_every_wave():
    def plan(seed: int):
        def make(numbers):
            return GeneratedRecord(value=f"{list(numbers)}".encode())

        return plan_traffic(make, unique=100, several=2, topics=2, poison=(b"!", b"?"), seed=seed)

    assert plan(4) == plan(4) != plan(5)
    for wave in plan(4).waves:
        assert {b"!", b"?"} <= {sent.record.value for sent in wave}
        assert {sent.topic for sent in wave} == {0, 1}


def test_a_sample_keeps_its_order_in_one_place_and_is_repeated():
    sample = [GeneratedRecord(value=f"{number}".encode()) for number in range(10)]
    traffic = plan_sample(sample, poison=(), seed=1, least=90)
    assert {(sent.topic, sent.partition) for wave in traffic.waves for sent in wave} == {(0, 0)}
    values = [sent.record.value for wave in traffic.waves for sent in wave]
    assert list(dict.fromkeys(values)) == [record.value for record in sample]
    assert traffic.records >= 90


def test_lines_of_a_sample_are_records(tmp_path):
    file = tmp_path / "sample.jsonl"
    file.write_bytes(b'{"id":1}\n\n{"id":2}\r\n')
    assert read_sample(file, make_pipeline({"id": "UInt64"}), most=9) == [
        GeneratedRecord(value=b'{"id":1}'),
        GeneratedRecord(value=b'{"id":2}'),
    ]


def test_a_sample_of_binary_records_is_base64(tmp_path):
    schema = {"files": [str(PROTOS / "everything.proto")], "message": "everything.Everything"}
    source = {"format": "protobuf", "protobuf": {"schemas": {"1": schema}}}
    pipeline = make_pipeline({"i32": "Int32"}, {"fields": ["i32"]}, source=source)
    file = tmp_path / "sample"
    file.write_bytes(base64.b64encode(b"\x08\x01"))
    assert read_sample(file, pipeline, most=9) == [GeneratedRecord(value=b"\x08\x01")]
    file.write_bytes(b"\x08\x01")
    with pytest.raises(ConfigurationError, match=r"sample:1: a line must be one record in base64"):
        read_sample(file, pipeline, most=9)


def test_a_sample_tells_keys_and_headers_where_they_matter(tmp_path):
    file = tmp_path / "sample"
    file.write_text('{"value": "{}", "key": "k", "headers": {"h": "1"}}\n')
    pipeline = make_pipeline({"id": "UInt64"}, {"headers": ["h"]})
    assert read_sample(file, pipeline, most=9) == [
        GeneratedRecord(value=b"{}", key=b"k", headers=(("h", b"1"),))
    ]
    file.write_text('{"id": 1}\n')
    with pytest.raises(ConfigurationError, match="a line must be a JSON object such as"):
        read_sample(file, pipeline, most=9)


@pytest.mark.parametrize("content", [None, b"\n"])
def test_a_sample_that_is_none_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "sample").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"cannot be read|holds no records"):
        read_sample(tmp_path / "sample", make_pipeline({"id": "UInt64"}), most=9)


@pytest.mark.parametrize("events", [10, 10**7])
def test_a_number_of_events_that_makes_no_sense_is_refused(tmp_path, events):
    with pytest.raises(ConfigurationError, match=f"--events is {events}; choose 200 to"):
        make_plan(tmp_path / "none.yaml", events=events, seed=1, sample=None)
