"""What the protobuf library makes of a message, in the words of the declared types.

Values that a declared type cannot hold, and messages that the library does not read, are REJECTED. It is UNSURE where
readers differ. The library refuses tags that are longer than any writer makes them, and keeps entries of maps that hold
more than key and value among the unknown fields. Ours passes over what is left behind the last whole number of a packed
list, and takes the end of a group of another number for the end of the one that it skips.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from oncehouse.column_types import types as c
from oncehouse.protobuf.fields import DURATION, TIMESTAMP, WRAPPERS, is_map
from protobuf_wire import wire_of
from reference_readers import REJECTED, UNSURE

_F = FieldDescriptor
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -2208988800, 10413791999
"""Seconds of the years 1900 to 2299, which DateTime64(6) holds."""


_WIDTHS = {1: 8, 5: 4}


class _UnfitError(ValueError):
    pass


def read_protobuf(message_class: type[Message], data: bytes, fields: dict[str, c.ColumnType]) -> Any:
    if _is_special(data, message_class.DESCRIPTOR):
        return UNSURE
    try:
        message = message_class.FromString(data)
    except DecodeError:
        return REJECTED
    try:
        return _parts(message, fields)
    except _UnfitError:
        return REJECTED


def _is_special(data: bytes, known: Descriptor) -> bool:  # noqa: C901, PLR0911 - one case a wire type
    """Whether a part that can be followed on the wire is one in which readers differ."""
    at = 0
    groups: list[int] = []
    try:
        while at < len(data):
            key, after = _varint(data, at)
            if after - at > 5 or key >= 1 << 32:
                return True
            field, wire, at = known.fields_by_number.get(key >> 3), key & 7, after
            begin = at
            match wire:
                case 0:
                    begin, at = at, _varint(data, at)[1]
                case 1 | 5:
                    at += 8 if wire == 1 else 4
                case 2:
                    length, begin = _varint(data, at)
                    at = begin + length
                    if field is not None and length % _WIDTHS.get(wire_of(field), 1):
                        return True
                case 3:
                    groups.append(key >> 3)
                case 4 if groups.pop() != key >> 3:
                    return True
            if wire > 5:
                return False
            if known.GetOptions().map_entry and (field is None or wire != wire_of(field)):
                return True
            inner = field.message_type if field is not None and wire == 2 else None
            if inner is not None and _is_special(data[begin:at], inner):
                return True
    except IndexError:
        pass
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        value |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            return value, at + place + 1
    raise IndexError


def _parts(message: Message, fields: dict[str, c.ColumnType]) -> dict[str, Any]:
    known: Descriptor = message.DESCRIPTOR
    found = {}
    for name, type_ in fields.items():
        if name in known.oneofs_by_name:
            found[name] = message.WhichOneof(name)
        else:
            found[name] = _field(message, known.fields_by_name[name], type_)
    return found


def _field(message: Message, field: FieldDescriptor, type_: c.ColumnType) -> Any:
    value, bare = getattr(message, field.name), c.bare(type_)
    if is_map(field):
        key, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        assert isinstance(bare, c.Map)
        pairs = [(_single(name, key, bare.key), _single(value[name], inner, bare.value)) for name in value]
        return sorted(pairs, key=lambda pair: pair[0])
    if field.is_repeated:
        assert isinstance(bare, c.Array)
        return [_single(item, field, bare.item) for item in value]
    if field.has_presence and not message.HasField(field.name) and not isinstance(bare, c.Tuple):
        if c.is_nullable(type_):
            return None
        if field.type == _F.TYPE_MESSAGE:
            raise _UnfitError
    return _single(value, field, type_)


def _single(value: Any, field: FieldDescriptor, type_: c.ColumnType) -> Any:
    bare = c.bare(type_)
    if field.type == _F.TYPE_MESSAGE:
        return _message(value, bare)
    if field.type == _F.TYPE_ENUM and isinstance(bare, c.String):
        known = field.enum_type.values_by_number
        return known[value].name if value in known else str(value)
    return text_or_bytes(value) if field.type == _F.TYPE_BYTES else value


def _message(value: Any, bare: c.ColumnType) -> Any:
    name = value.DESCRIPTOR.full_name
    if isinstance(bare, c.Tuple):
        return _parts(value, dict(bare.fields))
    if isinstance(bare, c.String) and name not in WRAPPERS:
        return _json(value)
    if name in WRAPPERS:
        return text_or_bytes(value.value)
    if name == TIMESTAMP:
        if not (0 <= value.nanos < 10**9 and _FIRST <= value.seconds <= _LAST):
            raise _UnfitError
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name == DURATION:
        total = Decimal(value.seconds * 10**9 + value.nanos).scaleb(-9)
        if abs(total) >= 10**12:
            raise _UnfitError
        return total
    raise AssertionError(name)


def _json(value: Message) -> Any:
    """As an object, since the order of a map's keys is not the library's to say."""
    try:
        found = json_format.MessageToDict(
            value, preserving_proto_field_name=True, descriptor_pool=value.DESCRIPTOR.file.pool
        )
    except (json_format.Error, TypeError, KeyError, ValueError, OverflowError):
        if value.DESCRIPTOR.full_name != "google.protobuf.Any":
            raise _UnfitError from None
        found = {"@type": value.type_url, "value": base64.b64encode(value.value).decode()}
    return Json(found)


class Json:
    """Equal to its text, whatever the order of its members."""

    def __init__(self, value: Any) -> None:
        self._text = json.dumps(value, sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.dumps(json.loads(other), sort_keys=True) == self._text

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Json({self._text})"


def text_or_bytes(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def list_rows(array: pa.Array) -> list[Any]:
    """Values of a column, whose texts may be any bytes; maps in the order of their keys."""
    kind = array.type
    if pa.types.is_map(kind):
        pairs = list(zip(list_rows(array.keys), list_rows(array.items), strict=True))
        return [
            None if bounds is None else sorted(pairs[bounds[0] : bounds[1]], key=lambda pair: pair[0])
            for bounds in _bounds(array)
        ]
    if pa.types.is_list(kind):
        items = list_rows(array.values)
        return [None if bounds is None else items[bounds[0] : bounds[1]] for bounds in _bounds(array)]
    if pa.types.is_struct(kind):
        columns = {part.name: list_rows(array.field(part.name)) for part in kind}
        return [
            {name: column[row] for name, column in columns.items()} if valid else None
            for row, valid in enumerate(array.is_valid().to_pylist())
        ]
    if pa.types.is_string(kind):
        return [text_or_bytes(value) for value in array.cast(pa.binary()).to_pylist()]
    return array.to_pylist()


def _bounds(array: pa.Array) -> list[tuple[int, int] | None]:
    offsets = array.offsets.to_pylist()
    return [
        (offsets[row], offsets[row + 1]) if valid else None
        for row, valid in enumerate(array.is_valid().to_pylist())
    ]
