"""Marks in protobuf schemas: the fields that carry the option `(oncehouse.identity)`.

Fields of nested messages are named by their path; what stands in lists, maps and oneofs cannot be marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet

from oncehouse.protobuf.fields import is_message, message_of

_IDENTITY = 51247


def marked_fields(descriptor: Descriptor) -> tuple[str, ...]:
    """Paths of the marked fields, in the order of the file."""
    return tuple(_walk(descriptor, (), ()))


def _walk(descriptor: Descriptor, path: tuple[str, ...], inside: tuple[str, ...]) -> Iterator[str]:
    if descriptor.full_name in inside:
        return  # a message that holds itself
    for field in descriptor.fields:
        if field.is_repeated:
            continue
        here = (*path, field.name)
        if _is_marked(field):
            yield ".".join(here)
        elif is_message(field):
            yield from _walk(message_of(field), here, (*inside, descriptor.full_name))


def _is_marked(field: FieldDescriptor) -> bool:
    # The option is an extension, which no generated code here knows: it stands among the unknown fields.
    options: Any = UnknownFieldSet(field.GetOptions())
    found = [option.data for option in options if option.field_number == _IDENTITY]
    return bool(found and found[-1])
