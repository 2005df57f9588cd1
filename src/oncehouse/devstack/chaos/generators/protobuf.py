"""Events as protobuf messages: values of the declared types, set in messages of the newest listed schema."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from oncehouse.column_types import types as c
from oncehouse.devstack.chaos.generators.text import format_scalar
from oncehouse.devstack.chaos.generators.values import NANOSECONDS
from oncehouse.protobuf import fields as f

_F = FieldDescriptor
_INT32 = {_F.CPPTYPE_INT32: True, _F.CPPTYPE_UINT32: False}
_INT64 = {_F.CPPTYPE_INT64: True, _F.CPPTYPE_UINT64: False}


def narrow_fields(descriptor: Descriptor, types: Mapping[str, c.ColumnType]) -> dict[str, c.ColumnType]:
    """The declared fields that the message has, each with a type whose values the field can hold.

    Of a oneof only the first declared member is set; its own name is not a field.
    """
    found: dict[str, c.ColumnType] = {}
    taken: set[str] = set()
    for name, type_ in types.items():
        place = f.find(descriptor, name)
        if place is None or not isinstance(place.end, FieldDescriptor):
            continue
        oneof = place.end.containing_oneof
        if oneof is not None and f.is_real(oneof):
            if oneof.full_name in taken:
                continue
            taken.add(oneof.full_name)
        found[name] = _narrow(type_, place.end)
    return found


def _narrow(type_: c.ColumnType, field: FieldDescriptor) -> c.ColumnType:
    bare = c.bare(type_)
    if f.is_map(field) and isinstance(bare, c.Map):
        key, value = (f.message_of(field).fields_by_name[name] for name in ("key", "value"))
        return c.Map(
            key=_narrow_single(c.bare(bare.key), key), value=_narrow_single(c.bare(bare.value), value)
        )
    if field.is_repeated and isinstance(bare, c.Array):
        return c.Array(item=_narrow_single(c.bare(bare.item), field))
    inner = _narrow_single(bare, field)
    return c.Nullable(inner=inner) if c.is_nullable(type_) and field.has_presence else inner


def _narrow_single(bare: c.ColumnType, field: FieldDescriptor) -> c.ColumnType:
    if f.is_message(field):
        if isinstance(bare, c.Tuple):
            return c.Tuple(fields=tuple(narrow_fields(f.message_of(field), dict(bare.fields)).items()))
        return _narrow_single(bare, f.message_of(field).fields_by_name["value"]) if _wraps(field) else bare
    if field.enum_type is not None and not isinstance(bare, c.Integer):
        names = [name for name in field.enum_type.values_by_name if _is_member(bare, name)]
        return c.Enum(bits=16, members=tuple((name, number) for number, name in enumerate(names)))
    if field.cpp_type in _INT32 | _INT64 and isinstance(bare, c.Integer | c.Decimal):
        signed = (_INT32 | _INT64)[field.cpp_type]
        widest = c.Integer(bits=32 if field.cpp_type in _INT32 else 64, signed=signed)
        return bare if isinstance(bare, c.Integer) and bare.greatest <= widest.greatest else widest
    return bare


def _is_member(type_: c.ColumnType, name: str) -> bool:
    return not isinstance(type_, c.Enum) or name in dict(type_.members)


def _wraps(field: FieldDescriptor) -> bool:
    return f.message_of(field).full_name in f.WRAPPERS


def write_message(
    descriptor: Descriptor,
    types: Mapping[str, c.ColumnType],
    values: Mapping[str, Any],
    also: Mapping[str, str] | None = None,
) -> bytes:
    """`also`: numbers or texts of fields that are no part of the event, such as its version."""
    message = GetMessageClass(descriptor)()
    for name, type_ in types.items():
        if values[name] is not None:
            _set(message, descriptor, name, type_, values[name])
    for name, text in (also or {}).items():
        _set(message, descriptor, name, c.String(), text)
    # Fields that only old software requires may be missing: they are not declared.
    return bytes(message.SerializePartialToString())


def wrap(descriptor: Descriptor, *, field: str, version: str, body: str, content: bytes) -> bytes:
    """An envelope around a message."""
    message = GetMessageClass(descriptor)()
    _set(message, descriptor, field, c.String(), version)
    *steps, last = body.split(".")
    holder: Any = message
    for step in steps:
        holder = getattr(holder, step)
    setattr(holder, last, content)
    return bytes(message.SerializePartialToString())


def _set(message: Message, descriptor: Descriptor, name: str, type_: c.ColumnType, value: Any) -> None:
    place = f.find(descriptor, name)
    if place is None or not isinstance(place.end, FieldDescriptor):
        return
    holder: Any = message
    for step in place.through:
        holder = getattr(holder, step.name)
        holder.SetInParent()
    _set_field(holder, place.end, c.bare(type_), value)


def _set_field(holder: Any, field: FieldDescriptor, bare: c.ColumnType, value: Any) -> None:
    if f.is_map(field) and isinstance(bare, c.Map):
        _set_map(getattr(holder, field.name), field, bare, value)
    elif field.is_repeated and isinstance(bare, c.Array):
        target = getattr(holder, field.name)
        for one in value:
            if f.is_message(field):
                _fill(target.add(), field, c.bare(bare.item), one)
            else:
                target.append(_scalar(field, c.bare(bare.item), one))
    elif f.is_message(field):
        _fill(getattr(holder, field.name), field, bare, value)
    else:
        setattr(holder, field.name, _scalar(field, bare, value))


def _set_map(target: Any, field: FieldDescriptor, bare: c.Map, value: Mapping[Any, Any]) -> None:
    key, item = (f.message_of(field).fields_by_name[name] for name in ("key", "value"))
    for name, one in value.items():
        map_key = _scalar(key, c.bare(bare.key), name)
        if f.is_message(item):
            _fill(target[map_key], item, c.bare(bare.value), one)
        else:
            target[map_key] = _scalar(item, c.bare(bare.value), one)


def _fill(message: Any, field: FieldDescriptor, bare: c.ColumnType, value: Any) -> None:
    message.SetInParent()
    descriptor = f.message_of(field)
    if _wraps(field):
        message.value = _scalar(descriptor.fields_by_name["value"], bare, value)
    elif descriptor.full_name in (f.TIMESTAMP, f.DURATION):
        message.seconds, message.nanos = divmod(_nanoseconds(bare, value), NANOSECONDS)
    elif isinstance(bare, c.Tuple):
        for name, inner in bare.fields:
            if value[name] is not None:
                _set(message, descriptor, name, inner, value[name])


def _nanoseconds(bare: c.ColumnType, value: Any) -> int:
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()) * NANOSECONDS
    return int(value * NANOSECONDS) if isinstance(bare, c.Decimal) else int(value)


def _scalar(field: FieldDescriptor, bare: c.ColumnType, value: Any) -> Any:
    if field.enum_type is not None:
        return value if isinstance(value, int) else field.enum_type.values_by_name[value].number
    if field.cpp_type in _INT32 | _INT64:
        return _ticks(bare, value)
    if field.cpp_type == _F.CPPTYPE_STRING:
        text = format_scalar(bare, value)
        if field.type != _F.TYPE_BYTES:
            return text
        return value.bytes if isinstance(bare, c.Uuid) else text.encode()
    return bool(value) if field.cpp_type == _F.CPPTYPE_BOOL else float(value)


def _ticks(bare: c.ColumnType, value: Any) -> int:
    """Times in a field of numbers count the column's own ticks."""
    if isinstance(bare, c.DateTime | c.DateTime64):
        digits = bare.precision if isinstance(bare, c.DateTime64) else 0
        return int(value // (NANOSECONDS // 10**digits))
    return int(value)
