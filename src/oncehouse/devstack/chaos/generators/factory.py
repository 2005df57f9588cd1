"""Which records a pipeline's format is made of: one writer a format that events can be made for.

A writer says with which types values are to be made (a schema may hold less than what is declared), and turns events
into records. For formats without one, and for schemas that only a registry has, a sample is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.config.formats import Avro, Csv
from oncehouse.devstack.chaos.generators import avro
from oncehouse.devstack.chaos.generators import text as texts
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.avro.schema import parse_schema
from oncehouse.pipeline.schema.discovery import declared_schemas

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.config.protobuf import Protobuf

SAMPLE_ADVICE = "give a sample of your own: --records FILE, one record a line"

_LINES_A_RECORD = 2

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GeneratedRecord:
    """What one message of Kafka is made of."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordWriter:
    types: Mapping[str, c.ColumnType]
    """Fields of an event, with types whose values can be written."""
    write: Callable[[Sequence[Values]], bytes]
    headers: tuple[tuple[str, bytes], ...] = ()
    """What every record says besides: the version of its schema."""
    several: int = 1
    """How many events one record holds."""
    awkward: bool = field(default=True)
    """Whether values may be hard to write or at the ends of their range."""


def writer_of(pipeline: Pipeline) -> RecordWriter:
    source = pipeline.source
    types = {name: parse_type(text) for name, text in source.decoded_fields.items()}
    match source.format:
        case "json":
            return RecordWriter(types=types, write=lambda events: texts.write_json(types, events[0]))
        case "jsonl":
            return RecordWriter(
                types=types, write=lambda events: texts.write_lines(types, events), several=_LINES_A_RECORD
            )
        case "csv":
            csv = source.csv or Csv()
            return RecordWriter(
                types=types,
                write=lambda events: texts.write_csv(csv, types, events),
                several=_LINES_A_RECORD,
                awkward=False,
            )
        case "text" if source.text is None or source.text.pattern is None:
            return RecordWriter(
                types=types, write=lambda events: texts.write_text(types, events[0]), awkward=False
            )
        case "avro" if source.avro is not None and source.avro.schemas:
            return _avro_writer(pipeline, source.avro, types)
        case "protobuf" if source.protobuf is not None and source.protobuf.schemas:
            return _protobuf_writer(source.protobuf, types)
        case "avro" | "protobuf":
            raise ConfigurationError(
                f"The schemas of this pipeline are in a registry alone, and events are made from listed ones. List the "
                f"newest in source.{source.format}.schemas, or {SAMPLE_ADVICE}"
            )
        case _:
            raise ConfigurationError(
                f"No events can be made up for `format: {source.format}`; {SAMPLE_ADVICE}"
            )


def _avro_writer(pipeline: Pipeline, section: Avro, types: Mapping[str, c.ColumnType]) -> RecordWriter:
    newest = declared_schemas(pipeline)[-1]
    record = parse_schema(newest.definition, where=f"schema {newest.schema}")
    narrowed = avro.narrow_fields(record, types)
    prefix = _prefix(newest.schema) if section.version == "prefix" else b""
    headers = ((section.header, newest.schema.encode()),) if section.version == "header" else ()
    return RecordWriter(
        types=narrowed,
        write=lambda events: prefix + avro.write_record(record, narrowed, events[0]),
        headers=headers,
        awkward=False,
    )


def _protobuf_writer(section: Protobuf, types: Mapping[str, c.ColumnType]) -> RecordWriter:
    from oncehouse.devstack.chaos.generators import protobuf
    from oncehouse.protobuf.definition import describe

    version = list(section.schemas)[-1]
    descriptor = describe(section.load(version))
    narrowed = protobuf.narrow_fields(descriptor, types)
    envelope, also, prefix = section.envelope, {}, b""
    if section.version == "prefix":
        prefix = _protobuf_prefix(version)
    if envelope is not None and envelope.body is None:
        also = {envelope.field: version}

    def write(events: Sequence[Values]) -> bytes:
        content = prefix + protobuf.write_message(descriptor, narrowed, events[0], also)
        if envelope is None or envelope.body is None:
            return content
        outer = describe(section.load_envelope())
        return protobuf.wrap(
            outer, field=envelope.field, version=version, body=envelope.body, content=content
        )

    headers = ((section.header, version.encode()),) if section.version == "header" else ()
    return RecordWriter(types=narrowed, write=write, headers=headers, awkward=False)


def _prefix(version: str) -> bytes:
    if not version.isdigit():
        raise ConfigurationError(
            f"Records name their schema by a number before the body, and the newest listed schema is {version!r}. "
            f"Name it by its number in the registry, or {SAMPLE_ADVICE}"
        )
    return struct.pack(">BI", 0, int(version))


def _protobuf_prefix(version: str) -> bytes:
    number, _, indexes = version.partition(":")
    places = [int(place) for place in indexes.split(".")] if indexes else []
    # A count and as many indexes, as zigzag numbers of one byte; 0 is short for the first message.
    return _prefix(number) + bytes(2 * place for place in (len(places), *places))
