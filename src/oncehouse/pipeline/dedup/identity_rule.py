"""The identity rule: which values of a record make it the same event as another.

A rule is made from the pipeline file, and where the file says so from marks in the schemas, which then travel
with them. `fingerprint` names everything the ids depend on; the ledger refuses another one until `oncehouse
rekey` has rebuilt its index. How values become ids is `unique_id.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.config.formats import DEBEZIUM_IDENTITY
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.dedup.identity_annotations import marked_fields
from oncehouse.pipeline.formats.schema_fields import linked_names

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.models import Schema

_VERSION = "sha256-128/1"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the id of an event is made of, in this order; picklable."""

    fields: tuple[tuple[str, ...], ...] = ()
    """Each as the steps that lead to it: a field, and from there through Tuples."""
    headers: tuple[str, ...] = ()
    key: bool = False
    schema_version: bool = False
    normalize: str = "none"
    """`nfc`: fields count with their texts in that normal form, and with one NaN."""


def rule_of(pipeline: Pipeline, schemas: Sequence[Schema] = ()) -> Rule:
    """The rule that the pipeline file asks for, given all schemas that are known."""
    identity = pipeline.identity
    types = {name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()}
    names = identity.fields
    if pipeline.source.format == "debezium" and not (names or identity.headers or identity.key):
        names = tuple(DEBEZIUM_IDENTITY)
    if identity.from_schema is not False:
        names = _agreed_marks(pipeline, schemas)
    return Rule(
        fields=resolve_fields(names, types),
        headers=identity.headers,
        key=identity.key,
        schema_version=identity.schema_version,
        normalize=identity.normalize,
    )


def resolve_fields(names: Sequence[str], types: Mapping[str, c.ColumnType]) -> tuple[tuple[str, ...], ...]:
    """The steps to each field; refused are fields that are not declared, stand twice, or are no scalars."""
    found: list[tuple[str, ...]] = []
    for name in names:
        place = c.find_path(name, types)
        if place is None:
            raise ConfigurationError(f"identity.fields names {name!r}, which source.fields does not declare")
        steps, type_ = place
        if steps in found:
            raise ConfigurationError(f"identity.fields names {name!r} twice; each field may stand once")
        if isinstance(c.bare(type_), c.Array | c.Map | c.Tuple):
            raise ConfigurationError(
                f"identity.fields names {name!r}, which is {c.clickhouse_name(type_)}; "
                "only scalar fields can make an event unique"
            )
        found.append(steps)
    return tuple(found)


def _agreed_marks(pipeline: Pipeline, schemas: Sequence[Schema]) -> tuple[str, ...]:
    """The fields that the schemas mark, in the order of their names, so that no version's own order counts."""
    chosen = pipeline.identity.from_schema
    where = f"Pipeline {pipeline.pipeline}"
    # How rows of DataFrames and imports are kept says nothing about the pipeline's own records.
    schemas = [found for found in schemas if found.format != "frame"]
    if isinstance(chosen, str):
        schema = next((found for found in schemas if found.schema == chosen), None)
        if schema is None:
            raise ConfigurationError(
                f"{where}: identity.from_schema names schema {chosen!r}, which is not known. Name one of: "
                f"{', '.join(found.schema for found in schemas) or 'none yet; add it with `oncehouse schema add`'}."
            )
        schemas = [schema]
    tied = linked_names(schemas, pipeline.source)
    types = {name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()}
    marks = {
        schema.schema: tuple(sorted(_declared_name(name, tied, types) for name in marked_fields(schema)))
        for schema in schemas
    }
    if len(set(marks.values())) > 1:
        listed = "; ".join(f"{name}: {', '.join(fields) or 'nothing'}" for name, fields in marks.items())
        raise ConfigurationError(
            f"{where}: the versions of the schema mark different fields as identity ({listed}). Ids made by two "
            "rules would let duplicates through. Let all versions mark the same, or name the version that counts, "
            'as in identity.from_schema: "2"; where that changes the rule, `oncehouse rekey` changes the ledger.'
        )
    fields = next(iter(marks.values()), ())
    if not fields:
        raise ConfigurationError(
            f"{where}: identity.from_schema is set, but no known schema marks a field as identity. Mark fields "
            '(protobuf: [(oncehouse.identity) = true], Avro: "oncehouse.identity": true), or name them in '
            "identity.fields."
        )
    return fields


def _declared_name(name: str, tied: Mapping[str, frozenset[str]], types: Mapping[str, c.ColumnType]) -> str:
    """The name under which the file declares a marked field, where a version calls it otherwise."""
    first, dot, rest = name.partition(".")
    names = [name, *(f"{other}{dot}{rest}" for other in sorted(tied.get(first, ())))]
    return next((known for known in names if c.find_path(known, types) is not None), name)


def fingerprint(rule: Rule, types: Mapping[str, c.ColumnType]) -> str:
    """A text that changes exactly when the same events might get other ids."""
    parts: list[object] = [_VERSION]
    for steps in rule.fields:
        name = steps[0] if len(steps) == 1 else list(steps)
        parts.append([name, _kind(c.bare(_type_at(steps, types)))])
    parts += [{"header": name} for name in rule.headers]
    parts += ["key"] if rule.key else []
    parts += ["schema version"] if rule.schema_version else []
    parts += [{"normalize": rule.normalize}] if rule.normalize != "none" else []
    return json.dumps(parts)


def _type_at(steps: Sequence[str], types: Mapping[str, c.ColumnType]) -> c.ColumnType:
    type_ = types[steps[0]]
    for step in steps[1:]:
        holder = c.bare(type_)
        type_ = dict(holder.fields)[step] if isinstance(holder, c.Tuple) else holder
    return type_


def _kind(type_: c.ColumnType) -> str:
    match type_:
        case c.Integer(bits=bits) if bits <= 64:
            return "integer"
        case c.String() | c.Enum():
            return "text"
        case c.Decimal(scale=scale):
            return f"decimal with {scale} digits"
        case c.Date():
            return "date"
        case c.DateTime() | c.DateTime64():
            precision = type_.precision if isinstance(type_, c.DateTime64) else 0
            return f"time with {precision} digits, read in {c.zone_of(type_)}"
        case _:
            return c.clickhouse_name(type_)
