"""Maps: JSON objects with keys that nobody declared, which Arrow's JSON reader cannot take.

A message is written anew with each map as a list of key and value objects, which the reader can take; numbers
stay as they were written. This is the one place that walks good messages one by one, so only fields with a
map in them pay for it (docs/decisions/0004-json-decoding.md has the price).
"""

from __future__ import annotations

from json.encoder import encode_basestring  # the encoder's own quoting of texts, in C
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncehouse import columns as c
from oncehouse.pipeline.json_columns import KEY, VALUE
from oncehouse.pipeline.json_explain import Constant, Pairs, RawNumber, load

if TYPE_CHECKING:
    from collections.abc import Mapping


class _NotAMapError(Exception):
    """Something else than an object stands where a map is declared."""


def holds_map(type_: c.ColumnType) -> bool:
    match c.bare(type_):
        case c.Map():
            return True
        case c.Array(item=item):
            return holds_map(item)
        case c.Tuple(fields=fields):
            return any(holds_map(inner) for _, inner in fields)
        case _:
            return False


def rewrite_maps(texts: pa.Array, fields: Mapping[str, c.ColumnType]) -> pa.Array | None:
    """The messages with their maps as lists, or None when one of them cannot be written so."""
    try:
        written = [_write_message(message, fields) for message in texts.to_pylist()]
    except (ValueError, RecursionError, _NotAMapError):
        return None
    return pa.array(written, pa.large_binary())


def _write_message(message: bytes, fields: Mapping[str, c.ColumnType]) -> bytes:
    value = load(message.decode())
    if not isinstance(value, Pairs):
        raise _NotAMapError
    return _write_object(value, fields).encode()


def _write_object(pairs: Pairs, fields: Mapping[str, c.ColumnType]) -> str:
    """The declared members only: what is not declared would be ignored anyway."""
    inside = [
        f"{encode_basestring(name)}:{_write(value, fields[name])}" for name, value in pairs if name in fields
    ]
    return "{" + ",".join(inside) + "}"


def _write(value: Any, type_: c.ColumnType) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case RawNumber() | Constant():
            return str(value)
        case str():
            return encode_basestring(value)
        case _:
            return _write_container(value, c.bare(type_))


def _write_container(value: Any, type_: c.ColumnType) -> str:
    is_object = isinstance(value, Pairs)
    match type_:
        case c.Map(value=inner) if is_object:
            pairs = [
                f'{{"{KEY}":{encode_basestring(key)},"{VALUE}":{_write(item, inner)}}}' for key, item in value
            ]
            return "[" + ",".join(pairs) + "]"
        case c.Map():
            raise _NotAMapError
        case c.Tuple(fields=fields) if is_object:
            return _write_object(value, dict(fields))
        case c.Array(item=inner) if not is_object:
            return "[" + ",".join(_write(item, inner) for item in value) + "]"
        case _:
            return "{}" if is_object else "[]"  # of the wrong kind for its type, whatever is in it
