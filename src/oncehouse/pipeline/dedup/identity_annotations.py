"""Marks in schemas: which fields a schema itself names as the identity of its records.

A protobuf field carries the option `(oncehouse.identity)`, an Avro field the property `oncehouse.identity`.
Fields inside of nested records are named by their path; what stands in lists and maps cannot be marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.avro import schema as avro
from oncehouse.protobuf.definition import describe, read_definition
from oncehouse.protobuf.identity_option import marked_fields as protobuf_marks

if TYPE_CHECKING:
    from oncehouse.ledger.models import Schema

PROPERTY = "oncehouse.identity"


def marked_fields(schema: Schema) -> tuple[str, ...]:
    """Paths of the fields that the schema marks, in its own order."""
    match schema.format:
        case "avro":
            record = avro.parse_schema(schema.definition, where=f"schema {schema.schema}")
            return tuple(_walk_avro(record, (), ()))
        case "protobuf":
            return protobuf_marks(describe(read_definition(schema.definition)))
        case _:
            raise ConfigurationError(
                f"Schema {schema.schema!r} is {schema.format}, which cannot mark fields; name them in identity.fields."
            )


def _walk_avro(node: avro.Node, path: tuple[str, ...], above: tuple[avro.Node, ...]) -> Iterator[str]:
    match node:
        case avro.Record() if node not in above:  # a record may hold itself
            for field in node.fields:
                here = (*path, field.name)
                if field.properties.get(PROPERTY) is True:
                    yield ".".join(here)
                else:
                    yield from _walk_avro(field.node, here, (*above, node))
        case avro.Union():
            for branch in node.branches:
                yield from _walk_avro(branch, path, above)
