"""A default of an Avro schema, written as the bytes that the same value has in a message."""

from __future__ import annotations

import struct
from typing import Any

from oncehouse.pipeline.formats.avro import schema as s


def write_default(node: s.Node, value: Any) -> bytes:  # noqa: PLR0911 - one case a kind
    """Raises ValueError, TypeError, KeyError or OverflowError when the default is not of its type."""
    match node:
        case s.Primitive():
            return _write_primitive(node.name, value)
        case s.Fixed(size=size):
            content = _fixed_bytes(value)
            if len(content) != size:
                raise ValueError(value)
            return content
        case s.AvroEnum(symbols=symbols):
            return write_number(symbols.index(value))
        case s.Union(branches=branches):
            return _write_union(branches, value)
        case s.AvroArray(item=item):
            return _write_list([write_default(item, entry) for entry in _require(value, list)])
        case s.AvroMap(value=inner):
            pairs = _require(value, dict).items()
            return _write_list([_text(str(key)) + write_default(inner, entry) for key, entry in pairs])
        case s.Record(fields=fields):
            given = _require(value, dict)
            return b"".join(
                write_default(field.node, given.get(field.name, field.default)) for field in fields
            )
    raise TypeError(node)


def _write_union(branches: tuple[s.Node, ...], value: Any) -> bytes:
    """The first branch by the specification; newer ones allow any that can hold the value."""
    for number, branch in enumerate(branches):
        try:
            return write_number(number) + write_default(branch, value)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    raise ValueError(value)


def _write_primitive(name: str, value: Any) -> bytes:
    match name, value:
        case "null", None:
            return b""
        case "boolean", bool():
            return bytes([value])
        case (("int" | "long"), int()) if not isinstance(value, bool):
            return write_number(value)
        case (("float" | "double"), int() | float()) if not isinstance(value, bool):
            return struct.pack("<f" if name == "float" else "<d", value)
        case "string", str():
            return _text(value)
        case "bytes", str():
            content = _fixed_bytes(value)
            return write_number(len(content)) + content
    raise ValueError(value)


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _fixed_bytes(value: Any) -> bytes:
    """Bytes stand in a schema as a text of the characters 0 to 255."""
    return str(_require(value, str)).encode("latin-1")


def _text(value: str) -> bytes:
    content = value.encode()
    return write_number(len(content)) + content


def _write_list(items: list[bytes]) -> bytes:
    return (write_number(len(items)) + b"".join(items) if items else b"") + write_number(0)


def write_number(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(value)
    word = (value << 1) ^ (value >> 63)
    written = bytearray()
    while word > 0x7F:
        written.append(word & 0x7F | 0x80)
        word >>= 7
    written.append(word)
    return bytes(written)
