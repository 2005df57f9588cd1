"""What of a message is to be read: the wanted fields under descriptors of our own, which ptars decodes.

Only wanted fields are read, under their own numbers; all else is skipped on the wire. The descriptors
say less than the originals, so that every value arrives as it was written: every single field says whether it
was there, enums are their numbers, maps are lists of entries, Timestamps are seconds and nanoseconds (ptars
would bend what lies beyond 2262), and messages that become JSON are their bytes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor, OneofDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from oncehouse.column_types import types as c
from oncehouse.errors import ConfigurationError
from oncehouse.protobuf.fields import (
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    find,
    is_map,
    is_message,
    is_real,
    message_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor

_F = FieldDescriptor
_PACKAGE = "wanted"
_WIDTHS = {
    _F.TYPE_BOOL: 1, _F.TYPE_FLOAT: 4, _F.TYPE_INT32: 4, _F.TYPE_UINT32: 4, _F.TYPE_SINT32: 4, _F.TYPE_ENUM: 4,
    _F.TYPE_FIXED32: 4, _F.TYPE_SFIXED32: 4, _F.TYPE_STRING: 4, _F.TYPE_BYTES: 4,
}  # fmt: skip


@dataclasses.dataclass
class Wanted:
    """A message and those of its fields that are wanted."""

    descriptor: Descriptor
    scalars: dict[str, FieldDescriptor] = dataclasses.field(default_factory=dict)
    raw: dict[str, FieldDescriptor] = dataclasses.field(default_factory=dict)
    """Messages that are taken as their bytes, a piece each time that they stand on the wire."""
    messages: dict[str, tuple[FieldDescriptor, Wanted]] = dataclasses.field(default_factory=dict)
    oneofs: dict[str, OneofDescriptor] = dataclasses.field(default_factory=dict)

    def want(self, field: FieldDescriptor, type_: c.ColumnType) -> None:
        """Ask for a field as far as its declared type needs it."""
        if field.containing_oneof is not None and is_real(field.containing_oneof):
            self.want_members(field.containing_oneof)
        if not is_message(field):
            if field.type != _F.TYPE_GROUP:
                self.scalars[field.name] = field
            return
        if is_json(field, type_):
            self._want_raw(field)
            return
        self._want_parts(self.enter(field), field, type_)

    def _want_parts(self, inner: Wanted, field: FieldDescriptor, type_: c.ColumnType) -> None:
        known = inner.descriptor.fields_by_name
        bare = item_type(type_) if field.is_repeated else c.bare(type_)
        if inner.descriptor.full_name in WRAPPERS | {TIMESTAMP, DURATION} and not isinstance(bare, c.Tuple):
            inner.scalars |= known
        elif isinstance(bare, c.Map):
            inner.want(known["key"], bare.key)
            inner.want(known["value"], bare.value)
        elif isinstance(bare, c.Tuple):
            for name, part in bare.fields:
                if name in known:
                    inner.want(known[name], part)
                elif (oneof := inner.descriptor.oneofs_by_name.get(name)) is not None:
                    inner.want_members(oneof)

    def enter(self, field: FieldDescriptor) -> Wanted:
        """The message inside a field, of which parts are wanted."""
        if field.name in self.raw:
            raise _wanted_twice(field)
        return self.messages.setdefault(field.name, (field, Wanted(message_of(field))))[1]

    def want_members(self, oneof: OneofDescriptor) -> None:
        """All members: which one is set is only known when none is overlooked."""
        self.oneofs[oneof.name] = oneof
        for member in oneof.fields:
            if is_message(member):
                if member.name not in self.messages and member.name not in self.raw:
                    self.messages[member.name] = (member, Wanted(message_of(member)))
            elif member.type != _F.TYPE_GROUP:
                self.scalars[member.name] = member

    def _want_raw(self, field: FieldDescriptor) -> None:
        entered = self.messages.pop(field.name, None)
        if entered is not None and not entered[1].is_empty:
            raise _wanted_twice(field)
        self.raw[field.name] = field

    @property
    def holds_raw(self) -> bool:
        """Whether it, or a message in it, has one that is taken as its bytes."""
        return bool(self.raw) or any(inner.holds_raw for _, inner in self.messages.values())

    @property
    def is_empty(self) -> bool:
        return not (self.scalars or self.raw or self.messages)


def _wanted_twice(field: FieldDescriptor) -> ConfigurationError:
    return ConfigurationError(
        f"source.fields asks for {field.full_name} both as one text and by its parts; choose one"
    )


def item_type(type_: c.ColumnType) -> c.ColumnType:
    """What one occurrence of a repeated field is to become; an entry for a map."""
    bare = c.bare(type_)
    return c.bare(bare.item) if isinstance(bare, c.Array) else bare


def is_json(field: FieldDescriptor, type_: c.ColumnType) -> bool:
    """Whether a message is wanted as a text of JSON."""
    if not is_message(field) or is_map(field) or message_of(field).full_name in WRAPPERS:
        return False
    return isinstance(item_type(type_) if field.is_repeated else c.bare(type_), c.String)


def project(
    descriptor: Descriptor, types: Mapping[str, c.ColumnType], numbers: Mapping[str, Sequence[int]]
) -> Wanted:
    """Everything that the declared fields need of this version of the message."""
    root = Wanted(descriptor)
    for name, type_ in types.items():
        found = find(descriptor, name, numbers.get(name, ()))
        if found is None:
            continue
        holder = root
        for step in found.through:
            if step.containing_oneof is not None and is_real(step.containing_oneof):
                holder.want_members(step.containing_oneof)
            holder = holder.enter(step)
        if isinstance(found.end, OneofDescriptor):
            holder.want_members(found.end)
        else:
            holder.want(found.end, type_)
    return root


# -- descriptors for ptars --------------------------------------------------------------------------------


def describe_wanted(root: Wanted) -> tuple[bytes, str]:
    """A file with the wanted fields alone, and the name of its message."""
    file = FileDescriptorProto(name="wanted.proto", package=_PACKAGE, syntax="proto2")
    name = _add_message(file, root)
    return file.SerializeToString(), name


def _add_message(file: FileDescriptorProto, wanted: Wanted) -> str:
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for field in wanted.scalars.values():
        kind = FieldDescriptorProto.TYPE_INT32 if field.type == _F.TYPE_ENUM else field.type
        _add_field(message, field, kind)
    for field in wanted.raw.values():
        _add_field(message, field, FieldDescriptorProto.TYPE_BYTES, repeated=True)
    for field, inner in wanted.messages.values():
        if inner.is_empty:
            # Only whether it is there is of interest; its bytes show that.
            _add_field(message, field, FieldDescriptorProto.TYPE_BYTES)
            continue
        added = _add_field(message, field, FieldDescriptorProto.TYPE_MESSAGE)
        added.type_name = _add_message(file, inner)
    return f".{_PACKAGE}.{message.name}"


def _add_field(
    message: DescriptorProto, field: FieldDescriptor, kind: int, *, repeated: bool = False
) -> FieldDescriptorProto:
    many = repeated or field.is_repeated
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    return message.field.add(name=field.name, number=field.number, type=kind, label=label)


# -- how far a message can swell --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Growth:
    """A repeated message: what precedes each of its items on the wire, and what an item takes in Arrow."""

    tag: bytes
    item_bytes: int


def growths(wanted: Wanted) -> tuple[Growth, ...]:
    found: list[Growth] = []
    for field, inner in wanted.messages.values():
        found += growths(inner)
        if field.is_repeated:
            found.append(Growth(_tag(field.number), _width(inner)))
    return tuple(found)


def _width(wanted: Wanted) -> int:
    width = 8
    for field in wanted.scalars.values():
        width += 4 if field.is_repeated else _WIDTHS.get(field.type, 8)
    width += 4 * len(wanted.raw)
    for field, inner in wanted.messages.values():
        width += 4 if field.is_repeated else _width(inner)
    return width


def _tag(number: int) -> bytes:
    value, octets = (number << 3) | 2, bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])
