"""Avro schemas: the JSON of a schema file, read once into a frozen tree.

Names are resolved, so that a record may hold itself; defaults, aliases and logical types are kept. What the
specification does not allow is refused with the place and what would be right. Bytes are `cursor.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from oncehouse.errors import ConfigurationError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST = 100
_LONGEST_FIXED = 1 << 20
NO_DEFAULT: Any = object()
NOT_MEASURED: Any = object()


class Node:
    """Root of the tree; every kind of schema is one of the classes below."""


@dataclass(frozen=True, kw_only=True)
class Primitive(Node):
    name: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, kw_only=True)
class Fixed(Node):
    name: str
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, kw_only=True)
class AvroEnum(Node):
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    """What stands for symbols of other versions that this one does not have."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AvroArray(Node):
    item: Node


@dataclass(frozen=True, kw_only=True)
class AvroMap(Node):
    value: Node

    @property
    def pair(self) -> Record:
        """A map is written as a list of these."""
        fields = (Field(name="key", node=Primitive(name="string")), Field(name="value", node=self.value))
        return Record("pair", fields)


@dataclass(frozen=True, kw_only=True)
class Union(Node):
    branches: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT
    properties: Mapping[str, Any] = field(default_factory=dict)
    """What the schema's author added to the field, such as annotations of other programs."""


@dataclass(eq=False)
class Record(Node):
    """Equal only to itself: a record may hold itself, and is filled after it has its name."""

    name: str
    fields: tuple[Field, ...] = ()
    aliases: tuple[str, ...] = ()
    """Full names that the record had in other versions."""
    size: Any = NOT_MEASURED
    """Bytes that each takes; None where they differ."""


def parse_schema(text: str, *, where: str) -> Record:
    """The record that a schema's text describes; `where` says in messages which schema it is."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{where}: this is no JSON ({error}); an Avro schema is a JSON document"
        ) from None
    node = _Parser(where).parse(document, "", 0)
    if not isinstance(node, Record):
        raise ConfigurationError(f"{where}: the schema is no record; a row needs a record with named fields")
    return node


def describe(node: Node) -> str:
    """The schema's name in messages."""
    match node:
        case Primitive(name=name, logical=logical):
            return logical or name
        case Fixed(name=name) | AvroEnum(name=name) | Record(name=name):
            return name
        case AvroArray():
            return "array"
        case AvroMap():
            return "map"
        case _:
            return "union"


class _Parser:
    def __init__(self, where: str) -> None:
        self._where = where
        self._named: dict[str, Node] = {}

    def parse(  # noqa: C901, PLR0911 - one case a kind
        self, document: Any, namespace: str, depth: int
    ) -> Node:
        if depth > _DEEPEST:
            self._refuse(f"nested deeper than {_DEEPEST}")
        match document:
            case str():
                return self._reference(document, namespace)
            case list():
                return self._union(document, namespace, depth)
            case {"type": "record" | "error"}:
                return self._record(document, namespace, depth)
            case {"type": "enum"}:
                return self._enum(document, namespace)
            case {"type": "fixed"}:
                return self._fixed(document, namespace)
            case {"type": "array", "items": items}:
                return AvroArray(item=self.parse(items, namespace, depth + 1))
            case {"type": "map", "values": values}:
                return AvroMap(value=self.parse(values, namespace, depth + 1))
            case {"type": str(name)} if name in PRIMITIVES:
                return _primitive(name, document)
            case {"type": str() | dict() | list() as inner} if inner not in ("array", "map"):
                return self.parse(inner, namespace, depth + 1)
        raise self._refusal(f"{_shown(document)} is no Avro type")

    def _reference(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name=name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            self._refuse(f"the type {_shown(name)} is not defined before it is used")
        return found

    def _union(self, document: list[Any], namespace: str, depth: int) -> Node:
        if not document:
            self._refuse("a union without types")
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in document)
        if any(isinstance(branch, Union) for branch in branches):
            self._refuse("a union stands directly in a union")
        names = [describe_branch(branch) for branch in branches]
        if len(set(names)) < len(names):
            self._refuse(f"a union names a type twice: {', '.join(names)}")
        return Union(branches=branches)

    def _record(self, document: Mapping[str, Any], namespace: str, depth: int) -> Node:
        name, inner = self._define(document, namespace)
        record = Record(name, aliases=_full_names(document, inner))
        self._named[name] = record
        listed = document.get("fields")
        if not isinstance(listed, list):
            self._refuse(f"the record {_shown(name)} has no list of fields")
        record.fields = tuple(self._field(entry, name, inner, depth) for entry in listed)
        names = [entry.name for entry in record.fields]
        if len(set(names)) < len(names):
            self._refuse(f"the record {_shown(name)} has a field twice")
        return record

    def _field(self, entry: Any, record: str, namespace: str, depth: int) -> Field:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or "type" not in entry:
            self._refuse(f"a field of the record {_shown(record)} has no name or no type")
        known = ("name", "type", "aliases", "default", "doc", "order")
        return Field(
            name=entry["name"],
            node=self.parse(entry["type"], namespace, depth + 1),
            aliases=tuple(alias for alias in entry.get("aliases") or () if isinstance(alias, str)),
            default=entry.get("default", NO_DEFAULT),
            properties={key: value for key, value in entry.items() if key not in known},
        )

    def _enum(self, document: Mapping[str, Any], namespace: str) -> Node:
        name, inner = self._define(document, namespace)
        symbols = document.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
            self._refuse(f"the enum {_shown(name)} has no list of symbols")
        default = document.get("default")
        self._named[name] = AvroEnum(
            name=name,
            symbols=tuple(symbols),
            default=default if default in symbols else None,
            aliases=_full_names(document, inner),
        )
        return self._named[name]

    def _fixed(self, document: Mapping[str, Any], namespace: str) -> Node:
        name, _ = self._define(document, namespace)
        size = document.get("size")
        if not isinstance(size, int) or not 0 <= size <= _LONGEST_FIXED:
            self._refuse(f"the fixed {_shown(name)} needs a size from 0 to {_LONGEST_FIXED}")
        logical, precision, scale = _logical(document, greatest_digits=_digits_of(size))
        wanted = {"uuid": 16, "duration": 12}.get(logical or "", size)
        is_valid = size == wanted and logical in {"decimal", "uuid", "duration", None}
        kept = (logical, precision, scale) if is_valid else (None, 0, 0)
        self._named[name] = Fixed(name=name, size=size, logical=kept[0], precision=kept[1], scale=kept[2])
        return self._named[name]

    def _define(self, document: Mapping[str, Any], namespace: str) -> tuple[str, str]:
        """The full name of a type, and the namespace inside it."""
        name, own = document.get("name"), document.get("namespace")
        if not isinstance(name, str) or not all(_NAME.fullmatch(piece) for piece in name.split(".")):
            self._refuse(f"{_shown(name)} is no name of a type")
        if "." in name:
            full = name
        else:
            inside = own if isinstance(own, str) else namespace
            full = f"{inside}.{name}" if inside else name
        if full in self._named:
            self._refuse(f"the type {_shown(full)} is defined twice")
        return full, full.rpartition(".")[0]

    def _refuse(self, what: str) -> NoReturn:
        raise self._refusal(what)

    def _refusal(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self._where}: {what}; correct the Avro schema")


def _full_names(document: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    """The aliases of a named type; those without a dot are in its own namespace."""
    listed = document.get("aliases")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return tuple(name if "." in name or not namespace else f"{namespace}.{name}" for name in names)


def describe_branch(node: Node) -> str:
    """What distinguishes the branches of a union."""
    return node.name if isinstance(node, Primitive) else describe(node)


_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    },
    "string": {"uuid"},
    "bytes": {"decimal"},
}


def _primitive(name: str, document: Mapping[str, Any]) -> Primitive:
    logical, precision, scale = _logical(document, greatest_digits=None)
    # An unknown logical type, or one on the wrong type, means nothing: so the specification wants it.
    if logical not in _LOGICAL.get(name, ()):
        return Primitive(name=name)
    return Primitive(name=name, logical=logical, precision=precision, scale=scale)


def _logical(document: Mapping[str, Any], *, greatest_digits: int | None) -> tuple[str | None, int, int]:
    logical = document.get("logicalType")
    if logical != "decimal":
        return (logical if isinstance(logical, str) else None), 0, 0
    precision: Any = document.get("precision")
    scale: Any = document.get("scale", 0)
    sound = (
        isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
    )
    if not sound or (greatest_digits is not None and precision > greatest_digits):
        return None, 0, 0
    return "decimal", precision, scale


def _digits_of(size: int) -> int:
    """Decimal digits that all fit into so many bytes."""
    return len(str((1 << max(8 * size - 1, 0)) - 1)) - 1 if size < 64 else 153


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
