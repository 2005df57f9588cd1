"""Fields of schema versions: their names, the ClickHouse types they have by themselves, and what identifies renames.

Types are derived, not guessed: a field whose values no single column type can hold exactly has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.avro import schema as avro
from oncehouse.protobuf.definition import describe, read_definition
from oncehouse.protobuf.fields import derive_fields, has_default

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Source
    from oncehouse.ledger.models import Schema


@dataclass(frozen=True, kw_only=True)
class FieldFact:
    """What a version says about one of its fields."""

    type: c.ColumnType | None
    """None: no single column type holds all of its values."""
    members: tuple[str, ...] = ()
    """Of an enum: its names."""
    number: int | None = None
    """Of protobuf: what stays when the name changes."""
    aliases: tuple[str, ...] = ()
    """Of Avro: earlier names."""
    has_default: bool = False
    """Records of versions without the field have a value all the same, in a column that takes no null."""


def fields_of(schema: Schema) -> Mapping[str, FieldFact]:
    """The fields at the top of a version, in its order; none for a format that has no schemas."""
    return _read(schema.format, schema.definition)


def linked_names(schemas: Iterable[Schema], source: Source | None = None) -> Mapping[str, frozenset[str]]:
    """For each name that is tied to others: all names of that field, in whichever version.

    Aliases tie names, those of the schemas and of the pipeline file; numbers do where the file matches by them.
    """
    groups: dict[str, frozenset[str]] = {}
    for tied in _ties(tuple(schemas), source):
        whole = frozenset().union(*(groups.get(known, {known}) for known in tied))
        groups |= dict.fromkeys(whole, whole)
    return groups


def _ties(schemas: Sequence[Schema], source: Source | None) -> Iterator[set[str]]:
    avro, protobuf = (source.avro, source.protobuf) if source is not None else (None, None)
    by_number: dict[int, set[str]] = {}
    for schema in schemas:
        for name, fact in fields_of(schema).items():
            if fact.aliases:
                yield {name, *fact.aliases}
            if fact.number is not None:
                by_number.setdefault(fact.number, set()).add(name)
    for name, others in (avro.aliases if avro is not None else {}).items():
        yield {name, *others}
    if protobuf is None:
        return
    for name, path in protobuf.numbers.items():
        if len(path) == 1:
            yield {name, *by_number.get(path[0], ())}
    if protobuf.match == "number":
        yield from (names for names in by_number.values() if len(names) > 1)


@lru_cache(maxsize=256)
def _read(format_: str, definition: str) -> Mapping[str, FieldFact]:
    match format_:
        case "protobuf":
            return dict(_protobuf_fields(definition))
        case "avro":
            record = avro.parse_schema(definition, where="the schema")
            return {
                field.name: FieldFact(
                    type=_avro_type(field.node, ()),
                    members=_symbols(field.node),
                    aliases=field.aliases,
                    has_default=field.default is not avro.NO_DEFAULT and field.default is not None,
                )
                for field in record.fields
            }
        case _:
            return {}


def _protobuf_fields(definition: str) -> Iterator[tuple[str, FieldFact]]:
    descriptor = describe(read_definition(definition))
    for name, type_ in derive_fields(descriptor).items():
        field = descriptor.fields_by_name.get(name)
        members = field.enum_type.values if field is not None and field.enum_type is not None else ()
        yield (
            name,
            FieldFact(
                type=parse_type(type_),
                members=tuple(member.name for member in members),
                number=None if field is None else field.number,
                has_default=field is not None and has_default(field),
            ),
        )


def _symbols(node: avro.Node) -> tuple[str, ...]:
    inner = _without_null(node)
    return inner.symbols if isinstance(inner, avro.AvroEnum) else ()


def _without_null(node: avro.Node) -> avro.Node:
    if isinstance(node, avro.Union):
        kept = [branch for branch in node.branches if not _is_null(branch)]
        return kept[0] if len(kept) == 1 else node
    return node


def _is_null(node: avro.Node) -> bool:
    return isinstance(node, avro.Primitive) and node.name == "null"


def _avro_type(node: avro.Node, above: tuple[avro.Node, ...]) -> c.ColumnType | None:  # noqa: PLR0911 - one case a node
    match node:
        case avro.Union():
            inner = _without_null(node)
            type_ = None if isinstance(inner, avro.Union) else _avro_type(inner, above)
            return type_ if type_ is None else make_nullable(type_)
        case avro.AvroArray():
            item = _avro_type(node.item, above)
            return None if item is None else c.Array(item=item)
        case avro.AvroMap():
            value = _avro_type(node.value, above)
            return None if value is None else c.Map(key=c.String(), value=value)
        case avro.Record():
            return _tuple_type(node, above)
        case avro.AvroEnum():
            return c.LowCardinality(inner=c.String())
        case avro.Fixed(size=size, logical=logical):
            return _decimal(node) if logical == "decimal" else c.FixedString(length=size)
        case avro.Primitive():
            return _primitive(node)
        case _:
            return None


def _tuple_type(node: avro.Record, above: tuple[avro.Node, ...]) -> c.ColumnType | None:
    if node in above or not node.fields:
        return None  # a record that holds itself has no end
    types = [(field.name, _avro_type(field.node, (*above, node))) for field in node.fields]
    known = tuple((name, type_) for name, type_ in types if type_ is not None)
    return c.Tuple(fields=known) if len(known) == len(types) else None


_BY_LOGICAL: Mapping[str, c.ColumnType] = {
    "date": c.Date(wide=True),
    "timestamp-millis": c.DateTime64(precision=3, zone="UTC"),
    "timestamp-micros": c.DateTime64(precision=6, zone="UTC"),
    "timestamp-nanos": c.DateTime64(precision=9, zone="UTC"),
    "uuid": c.Uuid(),
}
_BY_NAME: Mapping[str, c.ColumnType] = {
    "boolean": c.Bool(),
    "int": c.Integer(bits=32, signed=True),
    "long": c.Integer(bits=64, signed=True),
    "float": c.Float(bits=32),
    "double": c.Float(bits=64),
    "bytes": c.String(),
    "string": c.String(),
}


def _primitive(node: avro.Primitive) -> c.ColumnType | None:
    if node.logical == "decimal":
        return _decimal(node)
    return _BY_LOGICAL.get(node.logical or "") or _BY_NAME.get(node.name)


def _decimal(node: avro.Primitive | avro.Fixed) -> c.ColumnType | None:
    return c.Decimal(precision=node.precision, scale=node.scale) if 1 <= node.precision <= 76 else None


def make_nullable(type_: c.ColumnType) -> c.ColumnType | None:
    """The type of a field that other versions lack; a Tuple cannot be null, and a list is then empty."""
    match type_:
        case c.Nullable() | c.Array() | c.Map():
            return type_
        case c.LowCardinality(inner=inner):
            return type_ if c.is_nullable(inner) else c.LowCardinality(inner=c.Nullable(inner=inner))
        case c.Tuple():
            return None
        case _:
            return c.Nullable(inner=type_)
