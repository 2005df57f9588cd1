"""Marks in schemas: which fields a schema itself names as the identity of its records.

A protobuf field carries the option `(oncehouse.identity)`, an Avro field the property `oncehouse.identity`.
Fields inside of nested records are named by their path; what stands in lists and maps cannot be marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oncehouse.errors import ConfigurationError
from oncehouse.protobuf.definition import describe, read_definition
from oncehouse.protobuf.marks import marked_fields as protobuf_marks

if TYPE_CHECKING:
    from oncehouse.ledger.records import Schema

PROPERTY = "oncehouse.identity"


def marked_fields(schema: Schema) -> tuple[str, ...]:
    """Paths of the fields that the schema marks, in its own order."""
    match schema.format:
        case "avro":
            return tuple(_walk_avro(json.loads(schema.definition), {}, ()))
        case "protobuf":
            return protobuf_marks(describe(read_definition(schema.definition)))
        case _:
            raise ConfigurationError(
                f"Schema {schema.schema!r} is {schema.format}, which cannot mark fields; name them in identity.fields."
            )


def _walk_avro(node: Any, named: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    match node:
        case {"type": "record", "fields": [*fields]}:
            if node in named.values():
                return  # a record that holds itself
            inside = named | {str(node.get("name")): node}
            for field in fields:
                here = (*path, str(field.get("name")))
                if field.get(PROPERTY) is True:
                    yield ".".join(here)
                else:
                    yield from _walk_avro(field.get("type"), inside, here)
        case [*branches]:
            for branch in branches:
                yield from _walk_avro(branch, named, path)
        case {"type": dict() | list() as inner}:
            yield from _walk_avro(inner, named, path)
