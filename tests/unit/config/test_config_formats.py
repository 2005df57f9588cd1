"""Sections of formats: where they may stand, and what must hold inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncehouse.config.file_loader import parse_pipeline
from oncehouse.config.pipeline import Source
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.avro.decoder import AvroFormat
from oncehouse.pipeline.formats.avro.schema_sources import read_files
from oncehouse.pipeline.formats.csv.decoder import CsvFormat
from oncehouse.pipeline.formats.debezium.decoder import DebeziumFormat
from oncehouse.pipeline.formats.factory import format_of
from oncehouse.pipeline.formats.text import TextFormat
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource

KAFKA = {"bootstrap_servers": "localhost:9092", "topics": ["t"]}


def make_source(**more: Any) -> Source:
    return Source(**({"kafka": KAFKA, "fields": {"a": "Int64"}} | more))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"format": "json", "csv": {}}, "`csv` stands only with `format: csv`"),
        ({"format": "avro"}, "`format: avro` needs the section `avro`"),
        ({"format": "avro", "avro": {}}, "list `schemas`, or name a `registry`"),
        (
            {"format": "avro", "avro": {"version": "none", "schemas": {"1": "a", "2": "b"}}},
            "exactly one entry",
        ),
        ({"format": "csv", "csv": {"delimiter": ",,"}}, "one ASCII character"),
        ({"format": "csv", "csv": {"delimiter": "\n"}}, "no line end"),
        ({"format": "csv", "csv": {"delimiter": '"'}}, "are the same"),
        ({"format": "csv", "csv": {"columns": ["b"]}}, "'a' is not in source.csv.columns"),
        ({"format": "csv", "csv": {"columns": ["a", "a"]}}, "'a' stands here more than once"),
        ({"format": "csv", "fields": {"a": "Array(Int8)"}}, "csv has scalar fields only"),
        ({"format": "text", "fields": {"a": "Int8", "b": "Int8"}}, "fills one field"),
        ({"format": "text", "text": {"pattern": "(?P<b>.)"}}, "'a' is not in a named group"),
        ({"format": "text", "text": {"pattern": "(.)"}}, "RE2"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(section, message):
    with pytest.raises(ConfigurationError) as refused:
        make_source(**section)
    assert message in str(refused.value)


def test_schema_files_are_read_from_the_folder_of_the_pipeline_file(tmp_path: Path):
    (tmp_path / "schemas").mkdir()
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
    (tmp_path / "schemas" / "one.avsc").write_text(text)
    pipeline = parse_pipeline(
        """
pipeline: p
source:
  kafka: {bootstrap_servers: "localhost:9092", topics: [t]}
  format: avro
  avro: {schemas: {"1": schemas/one.avsc}, registry: {url: "https://localhost:1", ca_file: ca.pem}}
  fields: {a: Int64}
identity: {fields: [a]}
tables: [{name: t}]
clickhouse: {url: "http://localhost:8123"}
ledger: {catalog: "sqlite:///l.db", files: files}
""",
        "pipeline.yaml",
        folder=tmp_path,
    )
    assert pipeline.source.avro is not None
    assert [schema.definition for schema in read_files(pipeline.source.avro)] == [text]
    assert pipeline.source.avro.registry is not None
    assert pipeline.source.avro.registry.ca_file == str(tmp_path / "ca.pem")


def test_a_schema_file_that_is_missing_or_wrong_is_named(tmp_path: Path):
    wrong = tmp_path / "wrong.avsc"
    wrong.write_text("{}")
    for path, message in ((tmp_path / "none.avsc", "cannot be read"), (wrong, "is no Avro type")):
        source = make_source(format="avro", avro={"schemas": {"7": str(path)}})
        assert source.avro is not None
        with pytest.raises(ConfigurationError, match=message) as refused:
            read_files(source.avro)
        assert f"source.avro.schemas.7: {path}" in str(refused.value)


def test_sections_reach_the_formats():
    assert format_of(make_source(format="debezium")) == DebeziumFormat(precise_decimals=True)
    told = make_source(format="debezium", debezium={"decimals": "text"})
    assert format_of(told) == DebeziumFormat(precise_decimals=False)
    avro = {"version": "header", "header": "v", "schemas": {"1": "one.avsc"}}
    by_header = format_of(make_source(format="avro", avro=avro))
    assert by_header == AvroFormat(version_source=VersionSource(place=VersionPlace.HEADER, header="v"))
    assert by_header.needs_headers
    fixed = format_of(make_source(format="avro", avro={"version": "none", "schemas": {"orders": "one.avsc"}}))
    assert isinstance(fixed, AvroFormat)
    assert fixed.version_source.schema == "orders"
    csv = {"delimiter": "\t", "quote": None, "columns": ["x", "a"], "header": True, "null": "-"}
    assert format_of(make_source(format="csv", csv=csv)) == CsvFormat(**csv | {"columns": ("x", "a")})
    text = {"pattern": "(?P<a>.)", "lines": True}
    assert format_of(make_source(format="text", text=text)) == TextFormat(**text)


def test_changes_of_databases_have_an_identity_of_their_own():
    source = make_source(format="debezium")
    assert list(source.fields) == ["a"]
    assert list(source.decoded_fields) == ["a", "_table", "_key", "_position"]
    assert list(make_source().decoded_fields) == ["a"]
