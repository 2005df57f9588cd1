"""Undeclared keys of JSON messages, found while the messages are read anyway.

Every key of every message is noticed, also inside of declared Tuples, and its type is what Arrow's reader inferred
from all values of a block, cautiously: texts stay texts, and what has several types, or is an object, has none
here. Only where an undeclared key has several types in one block, which the reader refuses, a sample of the
block's messages is looked at instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.formats.json.message_errors import has_half_surrogate

_TEXT = "Nullable(String)"
_SAMPLE = 200

NewFields = dict[str, str | None]
"""Field and ClickHouse type; None where no column can hold it exactly."""

MOST_NEW_FIELDS = 2000
"""So many new fields no pipeline takes."""
_MOST_CELLS = 20_000_000
_MOST_MESSAGES = 4000  # of a key each


def find_new_fields(schema: pa.Schema, declared: pa.Schema) -> Iterator[tuple[str, str | None]]:
    """The fields of what was read that are not declared; those that were always null say nothing yet."""
    for field in schema:
        if declared.get_field_index(field.name) >= 0:
            inside = declared.field(field.name).type
            yield from ((f"{field.name}.{path}", None) for path in _inner(field.type, inside))
        elif not pa.types.is_null(field.type):
            yield field.name, _column_type(field.type)


def cut_by_keys(texts: pa.Array) -> Iterator[pa.Array]:
    """Runs of messages: however their keys differ, a column for each key and a cell for each message stay few."""
    start = 0
    while start < len(texts):
        near = texts.slice(start, _MOST_MESSAGES)
        keys = np.cumsum(pc.count_substring(near, ":").to_numpy(zero_copy_only=False) + 1)
        # The more messages, the more keys: their product only grows.
        cells = keys * np.arange(1, len(near) + 1)
        length = max(1, int(np.searchsorted(cells, _MOST_CELLS, side="right")))
        yield near.slice(0, length)
        start += length


def sample_new_fields(texts: pa.Array, declared: pa.Schema) -> NewFields:
    """Undeclared keys of the first messages, read one by one; the others of the block are not looked at."""
    found: NewFields = {}
    for text in texts.slice(0, _SAMPLE).to_pylist():
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            continue  # whether it is a message at all is decided elsewhere
        if isinstance(message, dict):
            known = {*declared.names}
            # No column can be called by half of a surrogate pair.
            keys = [key for key in message if key not in known and not has_half_surrogate(key)]
            keys = [key for key in keys if message[key] is not None]
            merge_fields(found, {key: _type_of(message[key]) for key in keys})
    return found


def _type_of(value: object) -> str | None:
    match value:
        case bool():
            return "Nullable(Bool)"
        case int() if -(1 << 63) <= value < 1 << 63:
            return "Nullable(Int64)"
        case int() | float():
            return "Nullable(Float64)"
        case str():
            return _TEXT
        case _:
            return None


def _inner(read: pa.DataType, declared: pa.DataType) -> Iterator[str]:
    if pa.types.is_list(read) and pa.types.is_list(declared):
        yield from _inner(read.value_type, declared.value_type)
    if not pa.types.is_struct(read) or not pa.types.is_struct(declared):
        return
    for field in read:
        at = declared.get_field_index(field.name)
        if at < 0:
            yield field.name
        else:
            yield from (f"{field.name}.{path}" for path in _inner(field.type, declared.field(at).type))


def _column_type(type_: pa.DataType) -> str | None:
    if pa.types.is_boolean(type_):
        return "Nullable(Bool)"
    if pa.types.is_integer(type_):
        return "Nullable(Int64)"
    if pa.types.is_floating(type_):
        return "Nullable(Float64)"
    if pa.types.is_string(type_) or pa.types.is_timestamp(type_):
        return _TEXT
    if pa.types.is_list(type_) and not pa.types.is_nested(type_.value_type):
        item = _column_type(type_.value_type)
        return None if item is None else f"Array({item})"
    return None


def merge_fields(known: NewFields, found: Mapping[str, str | None]) -> None:
    """What one block says, and another: an integer here and a fraction there are both numbers."""
    for name, type_ in found.items():
        before = known.get(name, type_)
        known[name] = before if before == type_ else _common(before, type_)


def _common(one: str | None, other: str | None) -> str | None:
    numbers = {"Nullable(Int64)", "Nullable(Float64)"}
    return "Nullable(Float64)" if {one, other} == numbers else None
