"""The examples of docs/formats run as they stand there: the section, the records, and the rows they become."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from oncehouse.config.pipeline import Source
from oncehouse.config.protobuf import Protobuf
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits
from oncehouse.pipeline.formats.factory import format_of
from oncehouse.pipeline.formats.protobuf.schema_sources import read_files

DOCS = Path(__file__).parents[3] / "docs" / "formats"
KAFKA = {"bootstrap_servers": "localhost:9092", "topics": ["t"]}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, kind: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == kind]


def decode(page: str, values: list[bytes | None], schemas: tuple[Schema, ...] = ()) -> Decoded:
    source = Source(**(yaml.safe_load(blocks(page, "yaml")[0]) | {"kafka": KAFKA}))
    format_ = format_of(source)
    columns = {
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    raw = pa.record_batch(columns)
    types = {name: _parse(text) for name, text in source.fields.items()}
    limits = DecodeLimits(max_message_bytes=source.max_message_bytes, max_depth=source.max_depth)
    return format_.make_decoder(types, schemas, limits).decode(format_.unfold(raw))


def _parse(text: str) -> Any:
    from oncehouse.column_types.parser import parse_type

    return parse_type(text)


def rows(decoded: Decoded) -> Any:
    return json.loads(json.dumps(decoded.rows.to_pylist(), default=str))


@pytest.mark.parametrize(
    ("page", "kind", "dead"), [("json-lines", "jsonl", 1), ("csv", "csv", 1), ("text", "text", 1)]
)
def test_lines_become_the_rows_of_the_page(page, kind, dead):
    decoded = decode(page, [blocks(page, kind)[0].encode()])
    assert rows(decoded) == json.loads(blocks(page, "json")[0])
    assert len(decoded.rejected) == dead


def test_debezium_becomes_the_rows_of_the_page():
    lines = blocks("debezium", "jsonl")[0].splitlines()
    decoded = decode("debezium", [None if line == "null" else line.encode() for line in lines])
    assert rows(decoded) == json.loads(blocks("debezium", "json")[0])
    assert decoded.skipped.tolist() == [3]


def test_protobuf_becomes_the_rows_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in zip(("order-1.proto", "order-3.proto"), blocks("protobuf", "proto"), strict=False):
        (tmp_path / name).write_text(text, encoding="utf-8")
    section = Protobuf(**yaml.safe_load(blocks("protobuf", "yaml")[0])["protobuf"])
    values = [bytes.fromhex(line.replace(" ", "")) for line in blocks("protobuf", "hex")[0].splitlines()]
    decoded = decode("protobuf", values, read_files(section))
    assert rows(decoded) == json.loads(blocks("protobuf", "json")[0])
    assert [one.schema for one in decoded.waiting] == ["4"]
    assert [one.index for one in decoded.rejected] == [3]


def test_avro_becomes_the_rows_of_the_page():
    schemas = tuple(
        Schema(schema=str(number), format="avro", definition=text)
        for number, text in enumerate(blocks("avro", "avsc"), start=1)
    )
    values = [bytes.fromhex(line.replace(" ", "")) for line in blocks("avro", "hex")[0].splitlines()]
    decoded = decode("avro", values, schemas)
    assert rows(decoded) == json.loads(blocks("avro", "json")[0])
    assert [one.schema for one in decoded.waiting] == ["9"]
    assert [one.index for one in decoded.rejected] == [3]
