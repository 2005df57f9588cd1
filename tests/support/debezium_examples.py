"""Envelopes of Debezium as connectors write them, and their decoding as a read task does it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits
from oncehouse.pipeline.formats.debezium.decoder import DebeziumDecoder

FIRST_OFFSET = 1000
OWN = {
    "_version": "UInt64",
    "_deleted": "UInt8",
    "_op": "String",
    "_table": "String",
    "_key": "String",
    "_position": "String",
}
POSTGRES = {
    "connector": "postgresql",
    "db": "shop",
    "schema": "public",
    "table": "orders",
    "lsn": 100,
    "ts_ms": 5,
}
MYSQL = {
    "connector": "mysql",
    "db": "shop",
    "table": "orders",
    "file": "binlog.000003",
    "pos": 154,
    "row": 0,
    "ts_ms": 5,
}


def envelope(op: str | None, after: Any = None, before: Any = None, source: Any = POSTGRES) -> dict[str, Any]:
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 9}


def describe(*columns: dict[str, Any]) -> dict[str, Any]:
    images = [{"type": "struct", "fields": list(columns), "field": image} for image in ("before", "after")]
    return {"type": "struct", "fields": images, "name": "envelope"}


def write(payload: Any, schema: Any = None) -> bytes:
    text = json.dumps(payload, separators=(",", ":"))
    if schema is None:
        return text.encode()
    return f'{{"schema":{json.dumps(schema, separators=(",", ":"))},"payload":{text}}}'.encode()


def decode(
    fields: dict[str, str],
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    *,
    precise: bool = True,
    first_offset: int = FIRST_OFFSET,
) -> Decoded:
    decoder = DebeziumDecoder(
        fields={name: parse_type(text) for name, text in fields.items()},
        precise_decimals=precise,
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64),
    )
    block = {
        "key": pa.array(keys or [b'{"id":1}'] * len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(first_offset, first_offset + len(values)), pa.int64()),
    }
    return decoder.decode(pa.record_batch(block))


def column(type_: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": type_, "optional": True, "field": "v", **({"name": name} if name else {}), **more}


FIELDS = {"id": "Int64", "name": "String"} | OWN
