"""Fields of messages: how a declared name finds one, and which ClickHouse type one has when none is declared.

A name is a path through nested messages, `user.id`, or the name of a oneof, which says which member is set.
Well-known types count as what they mean: a Timestamp is a time, a wrapper is its value or null.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor

from oncehouse.column_types import types as c
from oncehouse.errors import ConfigurationError

_PACKAGE = "google.protobuf."
TIMESTAMP, DURATION = f"{_PACKAGE}Timestamp", f"{_PACKAGE}Duration"
WRAPPERS = frozenset(
    _PACKAGE + name
    for name in (
        "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "StringValue",
        "UInt32Value", "UInt64Value",
    )
)  # fmt: skip
# Their meaning is a text of JSON; Any and Struct hold what no schema of ours knows.
JSON_MESSAGES = frozenset(
    _PACKAGE + name for name in ("Any", "Struct", "Value", "ListValue", "FieldMask", "Empty")
)

_F = FieldDescriptor
_INTEGERS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), (32, True)),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), (64, True)),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), (32, False)),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), (64, False)),
}
_MOST_FIELDS = 1000


@dataclass(frozen=True)
class FoundField:
    """Where a declared name leads: through singular messages to a field, or to a oneof."""

    through: tuple[FieldDescriptor, ...]
    message: Descriptor
    """The message that holds the end of the path."""
    end: FieldDescriptor | OneofDescriptor


def find(descriptor: Descriptor, name: str, numbers: Sequence[int] = ()) -> FoundField | None:
    """None where this version has no such field, or its path leads through one that holds no single message.

    `numbers`: those of the path's steps, which are then found by them, whatever their names.
    """
    found = _follow(descriptor, name, numbers)
    return found if isinstance(found, FoundField) else None


def find_obstacle(descriptor: Descriptor, name: str, numbers: Sequence[int] = ()) -> str | None:
    """Why the path of a field cannot be followed in this version, though its first steps are there."""
    found = _follow(descriptor, name, numbers)
    return found if isinstance(found, str) else None


def _follow(descriptor: Descriptor, name: str, numbers: Sequence[int]) -> FoundField | str | None:
    through: list[FieldDescriptor] = []
    *steps, last = numbers or name.split(".")
    for step in steps:
        field = _field_at(descriptor, step)
        if field is None:
            return None
        if not is_message(field) or field.is_repeated:
            kind = "repeated; declare it as an Array" if field.is_repeated else "no message"
            return f"field {name!r}: {field.full_name} is {kind}"
        through.append(field)
        descriptor = message_of(field)
    end = _field_at(descriptor, last) or _real_oneof(descriptor, last)
    return None if end is None else FoundField(tuple(through), descriptor, end)


def has_steps(
    descriptor: Descriptor, steps: Sequence[str], numbers: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> bool:
    """Whether a version has the field: a declared name, and from there through the parts of a Tuple."""
    name, *inner = steps
    found = find(descriptor, name, numbers.get(name, ()))
    for step in inner:
        if found is None or not isinstance(found.end, FieldDescriptor) or not is_message(found.end):
            return False
        found = find(message_of(found.end), step)
    return found is not None


def renamed_members(
    descriptors: Sequence[Descriptor], name: str, numbers: Sequence[int] = ()
) -> tuple[str, ...]:
    """Names of one member of an enum that versions call differently; none where the field is no enum."""
    names: dict[int, dict[str, None]] = {}
    for descriptor in descriptors:
        found = find(descriptor, name, numbers)
        enum = getattr(found.end, "enum_type", None) if found is not None else None
        for value in enum.values if enum is not None else ():
            names.setdefault(value.number, {})[value.name] = None
    return next((tuple(called) for called in names.values() if len(called) > 1), ())


def _field_at(descriptor: Descriptor, step: str | int) -> FieldDescriptor | None:
    if isinstance(step, int):
        return descriptor.fields_by_number.get(step)
    return descriptor.fields_by_name.get(step)


def agreed_numbers(descriptors: Sequence[Descriptor], names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The numbers of each field's path, as the first version that knows its name has them."""
    agreed: dict[str, tuple[int, ...]] = {}
    for name in names:
        known = (numbers for descriptor in descriptors if (numbers := numbers_of(descriptor, name)))
        agreed.update((name, numbers) for numbers in islice(known, 1))
    return agreed


def numbers_of(descriptor: Descriptor, name: str) -> tuple[int, ...] | None:
    """None where the version does not know the name, or it is that of a oneof, which has no number."""
    found = find(descriptor, name)
    if found is None or not isinstance(found.end, FieldDescriptor):
        return None
    return (*(step.number for step in found.through), found.end.number)


def _real_oneof(descriptor: Descriptor, name: str | int) -> OneofDescriptor | None:
    oneof = descriptor.oneofs_by_name.get(name) if isinstance(name, str) else None
    return oneof if oneof is not None and is_real(oneof) else None


def is_real(oneof: OneofDescriptor) -> bool:
    """Written as a oneof; proto3's `optional` makes one behind the scenes."""
    return not (len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}")


def is_message(field: FieldDescriptor) -> bool:
    return bool(field.type == _F.TYPE_MESSAGE)


def message_of(field: FieldDescriptor) -> Descriptor:
    """The message that a field of such a type holds."""
    found = field.message_type
    if found is None:
        raise AssertionError(f"{field.full_name} is no message")
    return found


def is_map(field: FieldDescriptor) -> bool:
    return is_message(field) and field.is_repeated and bool(message_of(field).GetOptions().map_entry)


# -- types ------------------------------------------------------------------------------------------------


def derive_fields(descriptor: Descriptor) -> dict[str, str]:
    """A ClickHouse type for each field of a message, in the order of the file; oneofs stand before their members."""
    derived: dict[str, str] = {}
    for name, type_ in _types_of(descriptor):
        derived[name] = c.clickhouse_name(type_)
        if len(derived) > _MOST_FIELDS:
            raise ConfigurationError(
                f"{descriptor.full_name} has more than {_MOST_FIELDS} fields; declare source.fields"
            )
    if not derived:
        raise ConfigurationError(f"{descriptor.full_name} has no fields; declare source.fields")
    return derived


def _types_of(descriptor: Descriptor) -> Iterator[tuple[str, c.ColumnType]]:
    for field in descriptor.fields:
        if field.type == _F.TYPE_GROUP:
            continue
        oneof = field.containing_oneof
        if oneof is not None and is_real(oneof) and oneof.fields[0].name == field.name:
            yield oneof.name, c.LowCardinality(inner=c.Nullable(inner=c.String()))
        yield field.name, type_of(field, (descriptor.full_name,))


def field_type(descriptor: Descriptor, name: str) -> c.ColumnType:
    """The type that the field of this name has by itself."""
    found = find(descriptor, name)
    if found is None or not isinstance(found.end, FieldDescriptor):
        raise ConfigurationError(f"{descriptor.full_name} has no field {name!r}")
    return type_of(found.end)


def type_of(field: FieldDescriptor, inside: Sequence[str] = ()) -> c.ColumnType:
    if is_map(field):
        key, value = (message_of(field).fields_by_name[name] for name in ("key", "value"))
        # ClickHouse knows no Bool as the key of a map.
        key_type = _single(key, inside) if key.type != _F.TYPE_BOOL else c.Integer(bits=8, signed=False)
        return c.Map(key=key_type, value=_single(value, inside))
    single = _single(field, inside)
    if field.is_repeated:
        return c.Array(item=single)
    nested = isinstance(single, c.Tuple | c.Array | c.Map)
    return c.Nullable(inner=single) if field.has_presence and not nested else single


def _single(field: FieldDescriptor, inside: Sequence[str]) -> c.ColumnType:
    if is_message(field):
        return _message_type(message_of(field), inside)
    if field.type in _INTEGERS:
        bits, signed = _INTEGERS[field.type]
        return c.Integer(bits=bits, signed=signed)
    if field.type == _F.TYPE_DOUBLE:
        return c.Float(bits=64)
    if field.type == _F.TYPE_FLOAT:
        return c.Float(bits=32)
    return c.Bool() if field.type == _F.TYPE_BOOL else c.String()


def _message_type(descriptor: Descriptor, inside: Sequence[str]) -> c.ColumnType:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return c.DateTime64(precision=6, zone="UTC")
    if name == DURATION:
        return c.Decimal(precision=21, scale=9)
    if name in WRAPPERS:
        return _single(descriptor.fields_by_name["value"], inside)
    inner = [field for field in descriptor.fields if field.type != _F.TYPE_GROUP]
    if name in JSON_MESSAGES or name in inside or not inner:
        return c.String()
    return c.Tuple(fields=tuple((field.name, type_of(field, (*inside, name))) for field in inner))


def check_fields(
    descriptors: Sequence[Descriptor],
    types: Mapping[str, c.ColumnType],
    numbers: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    """Refuse declared fields that no version has, or that can hold what a message brings in none of them."""
    for name, type_ in types.items():
        by_number = numbers.get(name, ())
        ends = [found.end for descriptor in descriptors if (found := find(descriptor, name, by_number))]
        if not ends:
            for descriptor in descriptors:
                if obstacle := find_obstacle(descriptor, name, by_number):
                    raise ConfigurationError(obstacle)
            raise ConfigurationError(
                f"source.fields: {name!r} is no field of {_describe_known(descriptors, name)}"
            )
        mismatches = [_find_mismatch(end, type_, name) for end in ends]
        if mismatches[0] is not None and all(mismatches):
            raise ConfigurationError(f"source.fields: {mismatches[0]}")


def has_default(field: FieldDescriptor) -> bool:
    """Whether an absent field has a value: all but messages that stand for one."""
    if field.message_type is None or field.is_repeated:
        return True
    name = field.message_type.full_name
    return name not in {TIMESTAMP, DURATION, *WRAPPERS, *JSON_MESSAGES}


def _describe_known(descriptors: Sequence[Descriptor], name: str) -> str:
    """The messages, each once, and the field that was perhaps meant."""
    messages = ", ".join(dict.fromkeys(descriptor.full_name for descriptor in descriptors))
    known = {field.name: None for descriptor in descriptors for field in descriptor.fields}
    near = difflib.get_close_matches(name, known, n=1)
    return f"{messages} in any version; " + (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    )


def check_envelope(descriptor: Descriptor, field: str, body: str | None) -> None:
    """Refuse an envelope whose version is no number or text, or whose body is no bytes."""
    bare = c.bare(field_type(descriptor, field))
    if not isinstance(bare, c.Integer | c.String):
        raise ConfigurationError(
            f"envelope.field: {descriptor.full_name}.{field} is {c.clickhouse_name(bare)}; "
            "a version is a number or a text"
        )
    found = find(descriptor, body) if body is not None else None
    if body is not None and not (found and isinstance(found.end, _F) and found.end.type == _F.TYPE_BYTES):
        raise ConfigurationError(f"envelope.body: {descriptor.full_name} has no field {body!r} of bytes")


def find_mismatch(
    descriptor: Descriptor, name: str, type_: c.ColumnType, numbers: Sequence[int] = ()
) -> str | None:
    """Why a declared field can never hold what a message of this version brings."""
    found = find(descriptor, name, numbers)
    return None if found is None else _find_mismatch(found.end, type_, name)


def _find_mismatch(field: FieldDescriptor | OneofDescriptor, type_: c.ColumnType, name: str) -> str | None:
    if not isinstance(field, FieldDescriptor):
        return None
    bare = c.bare(type_)
    if field.type == _F.TYPE_GROUP:
        return f"{name!r} is a group, which cannot be read; leave it out"
    if is_map(field) and not isinstance(bare, c.Map | c.Array):
        wanted: str | None = "a Map"
    elif field.is_repeated and not isinstance(bare, c.Array | c.Map):
        wanted = "an Array"
    elif not field.is_repeated and isinstance(bare, c.Array | c.Map):
        wanted = "no Array or Map"
    elif (
        is_message(field)
        and not field.is_repeated
        and _is_plain(field)
        and not isinstance(bare, c.Tuple | c.String)
    ):
        wanted = "a Tuple, or a String for its JSON"
    else:
        return None
    return (
        f"{name!r} is declared as {c.clickhouse_name(type_)}, but {field.full_name} needs {wanted}; "
        f"such as {c.clickhouse_name(type_of(field))}"
    )


def _is_plain(field: FieldDescriptor) -> bool:
    name = message_of(field).full_name
    return name not in WRAPPERS | JSON_MESSAGES and name not in (TIMESTAMP, DURATION)
