"""Events as Avro bodies: values of the declared types, written as the newest listed schema wants them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from oncehouse.column_types import types as c
from oncehouse.devstack.chaos.generators.text import format_scalar
from oncehouse.devstack.chaos.generators.values import NANOSECONDS
from oncehouse.pipeline.formats.avro import schema as s
from oncehouse.pipeline.formats.avro.default_writer import write_default, write_number

_DIGITS = {"millis": 3, "micros": 6, "nanos": 9}
_DAY_ZERO = 719_163


def narrow_fields(record: s.Record, types: Mapping[str, c.ColumnType]) -> dict[str, c.ColumnType]:
    """The declared fields that the schema has, each with a type whose values the schema can hold."""
    found = {}
    for name, type_ in types.items():
        field = _find(record, name)
        if field is not None:
            found[name] = narrow(type_, field.node)
            continue
        step, _, rest = name.partition(".")
        field = _find(record, step)
        inner = None if field is None else _value_branch(field.node)
        if isinstance(inner, s.Record):
            below = narrow_fields(inner, {rest: type_})
            found |= {f"{step}.{path}": narrowed for path, narrowed in below.items()}
    return found


def narrow(type_: c.ColumnType, node: s.Node) -> c.ColumnType:
    branch = _value_branch(node)
    inner = _narrow(c.bare(type_), branch)
    return c.Nullable(inner=inner) if branch is not node and c.is_nullable(type_) else inner


def _narrow(type_: c.ColumnType, node: s.Node) -> c.ColumnType:  # noqa: PLR0911 - one case a pair of types
    match type_, node:
        case c.Array(item=item), s.AvroArray(item=inner):
            return c.Array(item=narrow(item, inner))
        case c.Map(key=key, value=value), s.AvroMap(value=inner):
            return c.Map(key=key, value=narrow(value, inner))
        case c.Tuple(fields=fields), s.Record() as record:
            return c.Tuple(fields=tuple(narrow_fields(record, dict(fields)).items()))
        case _, s.AvroEnum(symbols=symbols):
            members = tuple((name, number) for number, name in enumerate(symbols) if _is_member(type_, name))
            return c.Enum(bits=16, members=members)
        case ((c.Integer() | c.Decimal()), s.Primitive(name="int" | "long" as name)):
            widest = c.Integer(bits=32 if name == "int" else 64, signed=True)
            small = isinstance(type_, c.Integer) and type_.greatest <= widest.greatest
            return type_ if small else widest
        case c.Decimal(precision=precision, scale=scale), (s.Primitive() | s.Fixed()) if (
            node.logical == "decimal"
        ):
            digits = min(scale, node.scale)
            whole = min(precision - scale, node.precision - node.scale)
            return c.Decimal(precision=max(whole + digits, 1), scale=digits)
        case c.DateTime64(precision=precision, zone=zone), s.Primitive(logical=str(logical)):
            return c.DateTime64(
                precision=min(precision, _DIGITS.get(logical.rpartition("-")[2], 9)), zone=zone
            )
        case _:
            return type_


def _is_member(type_: c.ColumnType, name: str) -> bool:
    return not isinstance(type_, c.Enum) or name in dict(type_.members)


def _find(record: s.Record, name: str) -> s.Field | None:
    return next((field for field in record.fields if name in (field.name, *field.aliases)), None)


def _value_branch(node: s.Node) -> s.Node:
    """What a value that is not null is written as."""
    if not isinstance(node, s.Union):
        return node
    return next((branch for branch in node.branches if not _is_null(branch)), node.branches[0])


def _is_null(node: s.Node) -> bool:
    return isinstance(node, s.Primitive) and node.name == "null"


def write_record(record: s.Record, types: Mapping[str, c.ColumnType], values: Mapping[str, Any]) -> bytes:
    written = []
    for field in record.fields:
        name = next((one for one in (field.name, *field.aliases) if one in types), None)
        if name is not None:
            written.append(_write(field.node, types[name], values[name]))
        elif (below := _below(field, types)) and isinstance(_value_branch(field.node), s.Record):
            # Paths lead into the record: it is written as a Tuple of what they name.
            inner = c.Tuple(fields=tuple((path, types[full]) for path, full in below.items()))
            written.append(_write(field.node, inner, {path: values[full] for path, full in below.items()}))
        elif field.default is not s.NO_DEFAULT:
            written.append(write_default(field.node, field.default))
        else:
            written.append(_write_nothing(field.node))
    return b"".join(written)


def _below(field: s.Field, types: Mapping[str, c.ColumnType]) -> dict[str, str]:
    """Declared paths through a field: what follows its name, and the whole path."""
    return {name.partition(".")[2]: name for name in types if name.partition(".")[0] == field.name}


def _write(  # noqa: PLR0911 - one case a kind
    node: s.Node, type_: c.ColumnType, value: Any
) -> bytes:
    if isinstance(node, s.Union):
        wanted = next(b for b in node.branches if _is_null(b)) if value is None else _value_branch(node)
        return write_number(node.branches.index(wanted)) + _write(wanted, type_, value)
    match node, c.bare(type_):
        case s.AvroArray(item=inner), c.Array(item=item):
            return _write_blocks([_write(inner, item, one) for one in value])
        case s.AvroMap(value=inner), c.Map(key=key, value=item):
            return _write_blocks(
                [
                    _sized(format_scalar(key, name).encode()) + _write(inner, item, one)
                    for name, one in value.items()
                ]
            )
        case s.Record() as record, c.Tuple(fields=fields):
            return write_record(record, dict(fields), value)
        case s.AvroEnum(symbols=symbols), _:
            return write_number(symbols.index(value))
        case s.Fixed() as fixed, leaf:
            return _bytes_of(fixed, leaf, value).ljust(fixed.size, b"\0")[: fixed.size]
        case s.Primitive() as primitive, leaf:
            return _write_primitive(primitive, leaf, value)
    raise TypeError(f"no value of {c.clickhouse_name(type_)} can be written as {s.describe(node)}")


def _write_primitive(node: s.Primitive, leaf: c.ColumnType, value: Any) -> bytes:
    match node.name:
        case "null":
            return b""
        case "boolean":
            return bytes([bool(value)])
        case "int" | "long":
            return write_number(_count(node, leaf, value))
        case "float" | "double":
            return struct.pack("<f" if node.name == "float" else "<d", value)
        case "bytes":
            return _sized(_bytes_of(node, leaf, value))
        case _:
            return _sized(format_scalar(leaf, value).encode())


def _count(node: s.Primitive, leaf: c.ColumnType, value: Any) -> int:
    """A number as it stands in the message: dates and times as the schema counts them, else in the column's ticks."""
    if isinstance(leaf, c.Date):
        return int(value.toordinal()) - _DAY_ZERO
    if isinstance(leaf, c.DateTime | c.DateTime64):
        own = leaf.precision if isinstance(leaf, c.DateTime64) else 0
        digits = _DIGITS.get((node.logical or "").rpartition("-")[2], own)
        return int(value // (NANOSECONDS // 10**digits))
    return int(value)


def _bytes_of(node: s.Primitive | s.Fixed, leaf: c.ColumnType, value: Any) -> bytes:
    if node.logical == "decimal":
        whole = int(Decimal(value).scaleb(node.scale))
        size = node.size if isinstance(node, s.Fixed) else (whole.bit_length() + 8) // 8
        return whole.to_bytes(size, "big", signed=True)
    return bytes(value.bytes) if isinstance(leaf, c.Uuid) else format_scalar(leaf, value).encode()


def _sized(content: bytes) -> bytes:
    return write_number(len(content)) + content


def _write_blocks(items: list[bytes]) -> bytes:
    return (write_number(len(items)) + b"".join(items) if items else b"") + write_number(0)


def _write_nothing(node: s.Node) -> bytes:
    """The least that an undeclared field can hold."""
    match node:
        case s.Union(branches=branches):
            return write_number(0) + _write_nothing(branches[0])
        case s.Record() as record:
            return b"".join(_write_nothing(field.node) for field in record.fields)
        case s.Fixed(size=size):
            return bytes(size)
        case s.Primitive(name="float" | "double" as name):
            return bytes(4 if name == "float" else 8)
        case s.Primitive(name="null"):
            return b""
        case _:
            return write_number(0)  # zero, false, the first symbol, an empty text, list or map
