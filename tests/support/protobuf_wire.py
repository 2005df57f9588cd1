"""Bytes of messages as any writer may put them, and some that none may: drawn field by field for a descriptor."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

_F = FieldDescriptor
VARINT, FIXED64, LENGTH, OPEN, CLOSE, FIXED32 = range(6)
_WIRE = {
    **dict.fromkeys((_F.TYPE_DOUBLE, _F.TYPE_FIXED64, _F.TYPE_SFIXED64), FIXED64),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_FIXED32, _F.TYPE_SFIXED32), FIXED32),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE), LENGTH),
}
_NUMBERS = st.sampled_from(
    [0, 1, 2, 5, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**31]
) | st.integers(0, 2**64 - 1)  # fmt: skip
_SMALL = st.integers(0, 3)
_DOUBLES = st.floats().map(lambda value: struct.pack("<d", value)) | st.binary(min_size=8, max_size=8)
_FLOATS = st.floats(width=32).map(lambda value: struct.pack("<f", value)) | st.binary(min_size=4, max_size=4)
_TEXTS = st.sampled_from(["", "a", "b", "né", "\0", "\U0001f600"]).map(str.encode) | st.text(max_size=3).map(
    str.encode
)
_NO_TEXTS = st.sampled_from([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\xe9"])
_SECONDS = st.sampled_from(
    [0, 1, 2**64 - 1, 4102444800, 10413791999, 10413792000, 2**64 - 2208988800, 2**64 - 2208988801, 2**63]
)
_NANOS = st.sampled_from([0, 1, 999, 1000, 500_000_000, 999_999_999, 10**9, 2**64 - 1])


def wire_of(field: FieldDescriptor) -> int:
    return _WIRE.get(field.type, VARINT)


def varint(value: int, padding: int = 0) -> bytes:
    """With `padding`, in more bytes than the number needs."""
    out = bytearray()
    while value > 127 or padding:
        padding -= value <= 127
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def tag(number: int, wire: int, padding: int = 0) -> bytes:
    return varint(number << 3 | wire, padding)


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


@st.composite
def bodies(draw: Any, descriptor: Descriptor, *, depth: int = 0, most: int = 8) -> bytes:
    """What stands in one message: its fields in any order, as often as they come, split and repeated."""
    fields = list(descriptor.fields)
    count = draw(st.integers(0, most if depth == 0 else 3))
    out = []
    for _ in range(count):
        kind = draw(st.integers(0, 29))
        if kind == 0:
            out.append(draw(_unknown()))
        elif kind == 1:
            out.append(draw(_wrong_wire(draw(st.sampled_from(fields)) if fields else None)))
        elif fields:
            out.append(draw(_field(draw(st.sampled_from(fields)), depth)))
    return b"".join(out)


@st.composite
def _field(draw: Any, field: FieldDescriptor, depth: int) -> bytes:
    padding = draw(st.sampled_from([0] * 20 + [1, 3]))
    wire = wire_of(field)
    if field.is_repeated and wire != LENGTH and draw(st.booleans()):
        items = draw(st.lists(_value(field, depth), max_size=4))
        return tag(field.number, LENGTH, padding) + sized(b"".join(items))
    return tag(field.number, wire, padding) + draw(_value(field, depth))


@st.composite
def _value(draw: Any, field: FieldDescriptor, depth: int) -> bytes:
    match wire_of(field):
        case 0:
            if field.containing_type.full_name.startswith("google.protobuf.") and field.name in (
                "seconds",
                "nanos",
            ):
                number = draw(_SECONDS | _NUMBERS if field.name == "seconds" else _NANOS)
            else:
                number = draw(_SMALL | _NUMBERS)
            return varint(number, draw(st.sampled_from([0] * 20 + [1, 2])) if number < 1 << 49 else 0)
        case 1:
            return draw(_DOUBLES)
        case 5:
            return draw(_FLOATS)
    if field.type == _F.TYPE_MESSAGE:
        return sized(draw(bodies(field.message_type, depth=depth + 1)) if depth < 4 else b"")
    if field.type == _F.TYPE_STRING:
        return sized(draw(_NO_TEXTS if draw(st.integers(0, 40)) == 0 else _TEXTS))
    return sized(draw(st.binary(max_size=4)))


@st.composite
def _payload(draw: Any, wire: int) -> bytes:
    match wire:
        case 0:
            return varint(draw(_NUMBERS))
        case 1:
            return draw(st.binary(min_size=8, max_size=8))
        case 2:
            return sized(draw(st.binary(max_size=5)))
        case 3:
            number = draw(st.integers(1, 5))
            return draw(_group(number)) if draw(st.booleans()) else b""
        case 5:
            return draw(st.binary(min_size=4, max_size=4))
    return b""


@st.composite
def _group(draw: Any, number: int) -> bytes:
    """Of proto2; a reader of other messages passes over it, whatever stands in it."""
    inner = b"".join(
        tag(1000 + wire, wire) + draw(_payload(wire))
        for wire in draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=2))
    )
    return tag(number, OPEN) + inner + tag(number, CLOSE)


@st.composite
def _unknown(draw: Any) -> bytes:
    number = draw(st.sampled_from([999, 1000, 18_999, 2**29 - 2]))
    if draw(st.booleans()):
        return draw(_group(number))
    wire = draw(st.sampled_from([0, 1, 2, 5]))
    return tag(number, wire, draw(st.sampled_from([0, 0, 0, 1]))) + draw(_payload(wire))


@st.composite
def _wrong_wire(draw: Any, field: FieldDescriptor | None) -> bytes:
    """A known field as something else than it is; readers take that for a field that they do not know."""
    number = field.number if field is not None else 1
    wire = draw(st.sampled_from([0, 1, 2, 5, 3]))
    if wire == OPEN:
        return draw(_group(number))
    return tag(number, wire) + draw(_payload(wire))


@st.composite
def damaged(draw: Any, descriptor: Descriptor) -> bytes:
    """Cut off, with bytes changed, taken out or put in, with tags that no writer writes, or another message behind."""
    data = bytearray(draw(bodies(descriptor)))
    match draw(st.sampled_from(["cut", "bytes", "bytes", "tag", "varint", "join"])):
        case "cut":
            del data[draw(st.integers(0, len(data))) :]
        case "bytes":
            for _ in range(draw(st.integers(1, 3))):
                place = draw(st.integers(0, len(data)))
                data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
        case "tag":
            number = draw(st.sampled_from([0, 1, 5, 2**29 - 1, 2**29, 2**32 + 1, 2**60]))
            wire = draw(st.integers(0, 7))
            data += tag(number, wire) + draw(_payload(wire if wire < 6 else 0))
        case "varint":
            long = draw(
                st.sampled_from(
                    [
                        b"\x80" * 9 + b"\x01",
                        b"\x80" * 10 + b"\0",
                        b"\xff" * 9 + b"\x02",
                        b"\xff" * 9 + b"\x7f",
                    ]
                )
            )
            data += tag(draw(st.integers(1, 20)), VARINT) + long
        case _:
            data += draw(bodies(descriptor))
    return bytes(data)
