"""Debezium's JSON messages without the schema around them, for a whole block at once.

With `schemas.enable` a message is `{"schema":…,"payload":…}`, and nearly all messages of a block begin with the
same schema, byte for byte: it is read once, and those that begin with it are cut behind it. Nothing here looks
into a payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.arrow_buffers import cut, text_buffers
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.formats.base import Places

_SCHEMA = b'{"schema":'
_PAYLOAD = b',"payload":'
_MOST_SHARED = 64
_DECODER = json.JSONDecoder()


class Envelopes(NamedTuple):
    places: Places
    """Which of the messages, ascending."""
    payloads: pa.Array
    schema: str | None
    """The schema's text; None where the messages carry none."""


def open_envelopes(values: pa.Array) -> Iterator[Envelopes]:
    """Groups of messages with one schema; together they hold each message, none of which may be null, once."""
    described = pc.starts_with(values, _SCHEMA).to_numpy(zero_copy_only=False)
    bare = np.flatnonzero(~described)
    if len(bare):
        yield Envelopes(bare, values.take(pa.array(bare)), None)
    left = np.flatnonzero(described)
    groups = 0
    while len(left):
        # Comparing all that is left pays while messages share schemas; where each has its own, it never ends.
        groups += 1
        compared = left if groups <= _MOST_SHARED else left[:1]
        same, envelopes = _open_first(values.take(pa.array(compared)), compared)
        yield envelopes
        left = left[len(compared) :] if len(compared) < len(left) else left[~same]


def _open_first(values: pa.Array, places: Places) -> tuple[Mask, Envelopes]:
    """The first message and all that begin with the same schema."""
    prefix = _find_prefix(values[0].as_py())
    if prefix is None:
        same = np.arange(len(values)) == 0
        return same, Envelopes(places[same], values.slice(0, 1), None)
    same = pc.starts_with(values, prefix).to_numpy(zero_copy_only=False)
    schema = prefix[len(_SCHEMA) : -len(_PAYLOAD)].decode()
    payloads = _cut_payloads(values.filter(pa.array(same)), len(prefix))
    return same, Envelopes(places[same], payloads, None if schema == "null" else schema)


def _find_prefix(message: bytes) -> bytes | None:
    """Everything before the payload; None where the message is not written so."""
    try:
        text = message.decode()
        _, end = _DECODER.raw_decode(text, len(_SCHEMA))
    except (ValueError, RecursionError):
        return None
    prefix = text[:end].encode() + _PAYLOAD
    return prefix if message.startswith(prefix) else None


def _cut_payloads(values: pa.Array, behind: int) -> pa.Array:
    """What stands between the prefix and the last brace; without that brace it is no JSON, and stays so."""
    offsets, data = text_buffers(values)
    starts = offsets[:-1] + behind
    closed = (data[offsets[1:] - 1] == ord("}")) & (offsets[1:] > starts)
    lengths = np.where(closed, offsets[1:] - 1 - starts, 0)
    return cut(pa.py_buffer(data), starts, lengths)


def describe_row(schema: str) -> dict[str, dict[str, Any]] | None:
    """The columns of the table by their names, as the envelope's schema describes them."""
    described = json.loads(schema)
    if not isinstance(described, dict):
        return None
    for image in _members(described):
        if image.get("field") in {"before", "after"} and image.get("type") == "struct":
            return {str(column.get("field")): column for column in _members(image)}
    return None


def _members(struct: dict[str, Any]) -> list[dict[str, Any]]:
    listed = struct.get("fields")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
