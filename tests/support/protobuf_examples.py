"""Messages for tests: schemas compiled once, records made by the protobuf library, and what rows must hold."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits
from oncehouse.pipeline.formats.protobuf.decoder import Envelope, ProtobufFormat
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource
from oncehouse.protobuf.definition import Definition, describe, load_definition
from oncehouse.protobuf.fields import derive_fields

FOLDER = Path(__file__).parents[1] / "protos"
ONE = ProtobufFormat(version_source=VersionSource(place=VersionPlace.NONE, schema="1"))


@cache
def definition(file: str, message: str) -> Definition:
    return load_definition(files=[str(FOLDER / file)], message=message)


@cache
def message_class(file: str, message: str):
    return GetMessageClass(describe(definition(file, message)))


def everything():
    return message_class("everything.proto", "everything.Everything")


def schema(version: str, file: str, message: str) -> Schema:
    text = definition(file, message).to_text()
    return Schema(schema=version, format="protobuf", definition=text, first_seen_at=0.0)


def derived(file: str = "everything.proto", message: str = "everything.Everything") -> dict[str, str]:
    return derive_fields(describe(definition(file, message)))


def make_decoder(fields=None, schemas=None, format_=ONE, *, max_message_bytes=1 << 20):
    schemas = schemas or [schema("1", "everything.proto", "everything.Everything")]
    types = {name: parse_type(text) for name, text in (fields or derived()).items()}
    return format_.make_decoder(
        types, schemas, DecodeLimits(max_message_bytes=max_message_bytes, max_depth=64)
    )


def block(values, headers=None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if headers is not None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(headers, kind)
    return pa.record_batch(columns)


def read(values, fields=None, **given) -> Decoded:
    """Values may be messages or bytes."""
    raw = [value.SerializeToString() if hasattr(value, "SerializeToString") else value for value in values]
    return make_decoder(fields, **given).decode(block(raw))


def column(decoded: Decoded, name: str) -> list:
    array = decoded.rows.column(name)
    if pa.types.is_string(array.type):
        return [value if value is None else _text(value) for value in array.cast(pa.binary()).to_pylist()]
    return array.to_pylist()


def _text(value: bytes):
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def only(field: str, declared: str, *messages, **given) -> list:
    """What one declared field becomes; every message must be taken."""
    decoded = read(messages, {field: declared}, **given)
    assert not decoded.rejected
    return column(decoded, field)


def reasons(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(found.index, str(found.reason), found.detail) for found in decoded.rejected]


__all__ = ["Envelope", "VersionPlace"]
