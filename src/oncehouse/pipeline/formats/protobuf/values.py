"""What ptars gives for a wanted field into what its declared type is made from, a whole column at a time.

Names for enum numbers, times out of seconds and nanoseconds, values out of wrappers, pairs out of map entries,
JSON out of bytes. A field that is absent is null where the declared type is Nullable, and protobuf's default
otherwise; for messages that stand for a value (Timestamp, Duration, wrappers, JSON) absent stays null.
What the declared type cannot hold is left to `convert/convert.py`.
"""

from __future__ import annotations

import base64
import decimal
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.masks import Mask, null_mask
from oncehouse.pipeline.formats.protobuf.projection import Wanted, is_json
from oncehouse.protobuf.fields import DURATION, TIMESTAMP, WRAPPERS, is_map, is_message, message_of

_F = FieldDescriptor
_NANOSECONDS = 10**9
_ANY = "google.protobuf.Any"
_FREE_FORMS = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}
_NUMBERS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32, _F.TYPE_ENUM), pa.int32()),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), pa.int64()),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), pa.uint32()),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), pa.uint64()),
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
}


def adapt(array: pa.Array, field: FieldDescriptor, type_: c.ColumnType) -> pa.Array:
    """A wanted field as its declared type needs it; an array of nulls is a field that was not sent."""
    if not field.is_repeated:
        return _adapt_single(array, field, type_)
    if pa.types.is_null(array.type):
        return array
    bare = c.bare(type_)
    if is_map(field):
        return _adapt_entries(array, field, bare)
    item = bare.item if isinstance(bare, c.Array) else bare
    return _relist(array, _adapt_single(array.values, field, item))


def _relist(array: pa.Array, items: pa.Array) -> pa.Array:
    """ptars gives whole lists, from their first item on, and no nulls among them."""
    return pa.ListArray.from_arrays(array.offsets, items)


def _adapt_entries(array: pa.Array, field: FieldDescriptor, bare: c.ColumnType) -> pa.Array:
    known = message_of(field).fields_by_name
    wanted = _entry_types(bare)
    pairs = array.values
    adapted = [
        _adapt_single(pairs.field(name), known[name], type_, always=True) for name, type_ in wanted.items()
    ]
    return _relist(array, pa.StructArray.from_arrays(adapted, names=list(wanted)))


def _entry_types(bare: c.ColumnType) -> dict[str, c.ColumnType]:
    if isinstance(bare, c.Map):
        return {"key": bare.key, "value": bare.value}
    item = c.bare(bare.item) if isinstance(bare, c.Array) else bare
    return (
        {name: part for name, part in item.fields if name in ("key", "value")}
        if isinstance(item, c.Tuple)
        else {}
    )


def _adapt_single(
    array: pa.Array, field: FieldDescriptor, type_: c.ColumnType, *, always: bool = False
) -> pa.Array:
    """`always`: an absent value is the default even where the type is Nullable, as in entries of maps."""
    absent_is_null = c.is_nullable(type_) and field.has_presence and not always
    if is_message(field):
        return _adapt_message(_without_absent(array) if always else array, field, type_)
    if pa.types.is_null(array.type):
        array = pa.nulls(len(array), _NUMBERS[field.type])
    if array.null_count and not absent_is_null:
        array = array.fill_null(pa.scalar(field.default_value, array.type))
    return _name_members(array, field) if field.type == _F.TYPE_ENUM and not _is_number(type_) else array


def _without_absent(array: pa.Array) -> pa.Array:
    """Messages, of which the absent ones are empty."""
    if not array.null_count:
        return array
    if pa.types.is_struct(array.type):
        return pa.StructArray.from_arrays(array.flatten(), names=array.type.names)
    return array.fill_null(b"")


def _is_number(type_: c.ColumnType) -> bool:
    return isinstance(c.bare(type_), c.Integer)


def _name_members(numbers: pa.Array, field: FieldDescriptor) -> pa.Array:
    """Names of enum numbers; one that the schema does not know stays a number, as in protobuf's JSON."""
    known = field.enum_type.values_by_number if field.enum_type is not None else {}
    encoded = numbers.dictionary_encode()
    names = [
        known[number].name if number in known else str(number) for number in encoded.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(encoded.indices)


def _adapt_message(array: pa.Array, field: FieldDescriptor, type_: c.ColumnType) -> pa.Array:
    bare = c.bare(type_)
    name = message_of(field).full_name
    if is_json(field, type_):
        return json_texts(array, field)
    if isinstance(bare, c.Tuple):
        return _adapt_tuple(array, field, bare)
    if not pa.types.is_struct(array.type):
        return array
    if name in WRAPPERS:
        return _unwrap(array, field)
    if name == TIMESTAMP:
        return _times(array, bare)
    return _durations(array, bare) if name == DURATION else array


def _adapt_tuple(array: pa.Array, field: FieldDescriptor, bare: c.Tuple) -> pa.Array:
    """An absent message is one whose fields are all absent."""
    adapted = [part_of(array, message_of(field), name, type_) for name, type_ in bare.fields]
    return pa.StructArray.from_arrays(adapted, names=[name for name, _ in bare.fields])


def part_of(array: pa.Array, descriptor: Descriptor, name: str, type_: c.ColumnType) -> pa.Array:
    """One element of a message: a field, or the name of the member of a oneof that is set."""
    inner = descriptor.fields_by_name.get(name)
    if inner is not None:
        return _null_below_null(array, adapt(child(array, name), inner, type_), type_)
    oneof = descriptor.oneofs_by_name.get(name)
    return pa.nulls(len(array)) if oneof is None else set_member(array, oneof)


def _null_below_null(array: pa.Array, adapted: pa.Array, type_: c.ColumnType) -> pa.Array:
    """In a message that is absent, nothing that could be null has a default."""
    if not c.is_nullable(type_) or not array.null_count:
        return adapted
    return pc.if_else(array.is_valid(), adapted, pa.scalar(None, adapted.type))


def join_pieces(array: pa.Array, wanted: Wanted) -> pa.Array:
    """Messages that are taken as bytes, whole: one that came in pieces means all of them, one behind the other."""
    if not wanted.holds_raw:
        return array
    columns = []
    for place, part in enumerate(array.type):
        column = array.field(place)
        if part.name in wanted.raw:
            column = column if wanted.raw[part.name].is_repeated else _join(column)
        elif part.name in wanted.messages and wanted.messages[part.name][1].holds_raw:
            field, inner = wanted.messages[part.name]
            column = (
                _relist(column, join_pieces(column.values, inner))
                if field.is_repeated
                else join_pieces(column, inner)
            )
        columns.append(column)
    return pa.StructArray.from_arrays(columns, names=array.type.names, mask=array.is_null())


def _join(pieces: pa.Array) -> pa.Array:
    """The pieces of a list stand side by side already; of none there is no message."""
    bounds, data = text_buffers(pieces.values)
    places = pieces.offsets.to_numpy()
    present = pa.array(np.diff(places) > 0)
    buffers = [present.buffers()[1], pa.py_buffer(bounds[places].astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(pieces), buffers)


def child(array: pa.Array, name: str) -> pa.Array:
    """A field of a message; below a message that is absent, ptars leaves every field absent too."""
    if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
        return pa.nulls(len(array))
    return array.field(name)


def set_member(array: pa.Array, oneof: OneofDescriptor) -> pa.Array:
    if not pa.types.is_struct(array.type):
        return pa.nulls(len(array), pa.string())
    members = [field.name for field in oneof.fields if field.type != _F.TYPE_GROUP]
    conditions = [child(array, name).is_valid() for name in members]
    return pc.case_when(pa.StructArray.from_arrays(conditions, names=members), *map(pa.scalar, members))


def several_members(array: pa.Array, oneof: OneofDescriptor) -> Mask:
    """Rows in which more than one member of a oneof stands on the wire: the last one counts, ptars keeps all."""
    count = np.zeros(len(array), dtype=np.int64)
    for field in oneof.fields:
        if array.type.get_field_index(field.name) >= 0:
            count += ~null_mask(array.field(field.name))
    several: Mask = count > 1
    return several


# -- messages that stand for a value ----------------------------------------------------------------------


def _unwrap(array: pa.Array, field: FieldDescriptor) -> pa.Array:
    inner = message_of(field).fields_by_name["value"]
    values = array.field("value")
    if values.null_count == array.null_count:
        return values
    filled = values.fill_null(pa.scalar(inner.default_value, values.type))
    return pc.if_else(array.is_valid(), filled, pa.scalar(None, values.type)) if array.null_count else filled


def _parts(
    array: pa.Array,
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    seconds, nanos = (
        array.field(name).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        for name in ("seconds", "nanos")
    )
    return seconds, nanos


def _times(array: pa.Array, bare: c.ColumnType) -> pa.Array:
    """As fine as the column needs, so that years beyond 2262 are not lost to nanoseconds that are not needed."""
    seconds, nanos = _parts(array)
    unit = c.unit_of(bare) if isinstance(bare, c.DateTime64) else "s"
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    # Nanoseconds outside of a second are no Timestamp; far seconds would wrap around, and no column has them.
    reach = (1 << 63) // factor - 2
    bad = (nanos < 0) | (nanos >= _NANOSECONDS) | (seconds > reach) | (seconds < -reach)
    ticks = np.where(bad, -(1 << 62), np.where(bad, 0, seconds) * factor + nanos // (_NANOSECONDS // factor))
    if isinstance(bare, c.Date):
        ticks = np.where(nanos == 0, ticks, -(1 << 62))
    return pa.array(ticks, mask=null_mask(array)).view(pa.timestamp(unit, tz="UTC"))


def _durations(array: pa.Array, bare: c.ColumnType) -> pa.Array:
    """Seconds with their fraction as a decimal; where the column is an integer, nanoseconds."""
    seconds, nanos = _parts(array)
    whole = pa.array(seconds, mask=null_mask(array)).cast(pa.decimal128(19, 0))
    total = pc.add(
        pc.multiply(whole, pa.scalar(decimal.Decimal(_NANOSECONDS), pa.decimal128(10, 0))),
        pa.array(nanos).cast(pa.decimal128(19, 0)),
    )
    return total if isinstance(bare, c.Integer) else total.view(pa.decimal128(total.type.precision, 9))


# -- JSON -------------------------------------------------------------------------------------------------


class UnreadableMessageError(Exception):
    """A message that was to become JSON and cannot."""


def json_texts(array: pa.Array, field: FieldDescriptor) -> pa.Array:
    """Messages as JSON, one at a time: what no schema describes, no column can be read from at once."""
    if not pa.types.is_binary(array.type):
        return pa.nulls(len(array), pa.string())
    message_class = GetMessageClass(message_of(field))
    try:
        texts = [
            None if value is None else write_json(message_class.FromString(value))
            for value in array.to_pylist()
        ]
        return pa.array(texts, pa.string())
    except (DecodeError, json_format.Error, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise UnreadableMessageError(f"{field.full_name} cannot be written as JSON") from error


def write_json(message: Message) -> str:
    try:
        pool: Any = message.DESCRIPTOR.file.pool
        found = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
    except (json_format.Error, TypeError, KeyError):
        if message.DESCRIPTOR.full_name != _ANY:
            raise
        # A type that the schema does not hold: its name, and its bytes.
        url, value = (getattr(message, name) for name in ("type_url", "value"))
        return _dump({"@type": url, "value": base64.b64encode(value).decode()})
    descriptor: Any = message.DESCRIPTOR
    return _dump(_sort_maps(found, descriptor))


def _dump(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _sort_maps(found: Any, descriptor: Descriptor) -> Any:
    """JSON with the keys of maps in their order: the library gives them in another one in each process."""
    if not isinstance(found, dict):
        return found if descriptor.full_name not in _FREE_FORMS else _sort_keys(found)
    if descriptor.full_name in _FREE_FORMS:
        return _sort_keys(found)
    if descriptor.full_name == _ANY:
        return _sort_any(found, descriptor)
    known = descriptor.fields_by_name
    return {
        name: _sort_field(value, known[name]) if name in known else value for name, value in found.items()
    }


def _sort_field(value: Any, field: FieldDescriptor) -> Any:
    if is_map(field):
        inner = message_of(field).fields_by_name["value"]
        return {
            key: _sort_maps(value[key], message_of(inner)) if is_message(inner) else value[key]
            for key in sorted(value)
        }
    if not is_message(field):
        return value
    inside = message_of(field)
    return [_sort_maps(item, inside) for item in value] if field.is_repeated else _sort_maps(value, inside)


def _sort_any(found: dict[str, Any], descriptor: Descriptor) -> Any:
    pool: Any = descriptor.file.pool
    try:
        inside = pool.FindMessageTypeByName(str(found.get("@type")).rpartition("/")[2])
    except KeyError:
        return found
    if inside.full_name in _FREE_FORMS or inside.full_name == _ANY:
        return {name: _sort_maps(value, inside) for name, value in found.items()}
    return _sort_maps(found, inside)


def _sort_keys(value: Any) -> Any:
    match value:
        case dict():
            return {key: _sort_keys(value[key]) for key in sorted(value)}
        case list():
            return [_sort_keys(item) for item in value]
        case _:
            return value
