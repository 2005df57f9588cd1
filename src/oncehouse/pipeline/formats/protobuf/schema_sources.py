"""Where the driver gets protobuf schemas from: files that the pipeline file lists, and a registry.

Everything becomes a definition that holds all it needs, so that workers and later runs need no registry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oncehouse.column_types import types as c
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.protobuf.decoder import FORMAT, Envelope, ProtobufFormat
from oncehouse.pipeline.formats.schema_registry import RegisteredSchema, fetch_some, read_number
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource
from oncehouse.protobuf.definition import (
    Definition,
    compile_texts,
    describe,
    describe_all,
    load_definition,
)
from oncehouse.protobuf.fields import agreed_numbers, check_envelope, check_fields

if TYPE_CHECKING:
    from oncehouse.config.protobuf import Protobuf

# A schema's number, and behind it the indexes of the message in its file.
_NAME = re.compile(r"[0-9]{1,10}(:[0-9]{1,9}(\.[0-9]{1,9})*)?")


def make_schema(
    version: str,
    *,
    files: Sequence[str] = (),
    include: Sequence[str] = (),
    descriptor_set: str | None = None,
    message: str,
) -> Schema:
    """A version as the ledger keeps it, from `.proto` files or a descriptor set."""
    found = load_definition(files=files, include=include, descriptor_set=descriptor_set, message=message)
    return Schema(schema=version, format=FORMAT, definition=found.to_text())


def read_files(section: Protobuf) -> tuple[Schema, ...]:
    """The schemas that the pipeline file lists; one that is wrong is refused."""
    return tuple(
        Schema(schema=version, format=FORMAT, definition=section.load(version).to_text())
        for version in section.schemas
    )


def require_readable(
    schemas: Sequence[Schema], types: Mapping[str, c.ColumnType], section: Protobuf | None = None
) -> None:
    """Refuse declared fields that no known version has, or that can never hold what one brings."""
    if descriptors := describe_all(_texts(schemas)):
        numbers = {} if section is None else number_paths(section, schemas, types)
        check_fields(descriptors, types, numbers)


def number_paths(
    section: Protobuf, schemas: Sequence[Schema], names: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """The declared fields that are found by number, each with the numbers of its path."""
    if section.match == "name":
        return dict(section.numbers)
    open_names = [name for name in names if name not in section.numbers]
    return {**section.numbers, **agreed_numbers(describe_all(_texts(schemas)), open_names)}


def _texts(schemas: Iterable[Schema]) -> Iterator[str]:
    return (schema.definition for schema in schemas if schema.format == FORMAT)


def make_protobuf_format(
    section: Protobuf, schemas: Sequence[Schema] = (), names: Iterable[str] = ()
) -> ProtobufFormat:
    """`schemas` and `names`: what is known, and the declared fields; needed where fields are found by number."""
    match section.version:
        case "none":
            version_source = VersionSource(place=VersionPlace.NONE, schema=next(iter(section.schemas)))
        case "header":
            version_source = VersionSource(
                place=VersionPlace.HEADER, header=section.header, schema=section.without_header or ""
            )
        case "prefix":
            version_source = VersionSource(place=VersionPlace.PREFIX)
        case "field":
            version_source = VersionSource(place=VersionPlace.NONE)
    numbers = number_paths(section, schemas, names)
    return ProtobufFormat(version_source=version_source, envelope=_envelope(section), numbers=numbers)


def _envelope(section: Protobuf) -> Envelope | None:
    if section.envelope is None:
        return None
    found, field, body = section.load_envelope(), section.envelope.field, section.envelope.body
    check_envelope(describe(found), field, body)
    return Envelope(definition=found.to_text(), field=field, body=body)


# -- registry ---------------------------------------------------------------------------------------------


def fetch_from_registry(section: Protobuf, names: Collection[str]) -> Iterator[Schema]:
    """Those that the registry has; records of all others wait."""
    numbers = {name: read_number(name.partition(":")[0]) for name in names if _NAME.fullmatch(name)}
    for name, found in fetch_some(section.registry, numbers):
        definition = _define(found, name) if found.kind == "PROTOBUF" else None
        if definition is not None:
            yield Schema(schema=name, format=FORMAT, definition=definition.to_text())


def _define(found: RegisteredSchema, name: str) -> Definition | None:
    """The message that the name's indexes lead to; None where the text cannot be compiled or has none there."""
    indexes = [int(index) for index in (name.partition(":")[2] or "0").split(".")]
    try:
        return compile_texts(found.text, dict(found.references), indexes)
    except (ConfigurationError, IndexError):
        return None
