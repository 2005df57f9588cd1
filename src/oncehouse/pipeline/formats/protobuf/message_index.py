"""What a registry's wire prefix adds for protobuf: which message of the schema's file follows.

After the schema's number stand a count and as many indexes, zigzag varints: the way to the message through
nested ones. A count of 0 is short for the first message. All prefixes of a block are read side by side.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, cut, text_buffers
from oncehouse.pipeline.convert.masks import Mask, null_mask
from oncehouse.pipeline.formats.wire_prefix import SchemasAndBodies

_MOST_INDEXES = 32
_MOST_VARINT_BYTES = 5


def open_message_indexes(split: SchemasAndBodies) -> SchemasAndBodies:
    """The schema's name is its number, with `:1.0` behind it where another than the first message is meant."""
    offsets, data = text_buffers(split.bodies)
    starts, ends = offsets[:-1].copy(), offsets[1:]
    count, sound = _read_varints(data, starts, ends)
    sound &= ~null_mask(split.schemas) & (count >= 0) & (count <= _MOST_INDEXES)
    names = split.schemas
    for number in range(int(count[sound].max(initial=0))):
        more = sound & (count > number)
        index, read = _read_varints(data, starts, ends, only=more)
        sound &= ~more | (read & (index >= 0))
        names = _append(names, index, more & sound, first=number == 0)
    names = pc.replace_substring_regex(names, r":0$", "")
    lengths = np.where(sound, ends - starts, 0)
    return SchemasAndBodies(
        pc.if_else(pa.array(sound), names, pa.scalar(None, pa.string())),
        cut(pa.py_buffer(data), np.where(sound, starts, ends), lengths),
    )


def _append(names: pa.Array, index: Offsets, where: Mask, *, first: bool) -> pa.Array:
    longer = pc.binary_join_element_wise(names, pa.array(index).cast(pa.string()), ":" if first else ".")
    return pc.if_else(pa.array(where), longer, names)


def _read_varints(
    data: Bytes, starts: Offsets, ends: Offsets, only: Mask | None = None
) -> tuple[Offsets, Mask]:
    """A zigzag varint of each message, and whether there was one; `starts` move behind it."""
    value = np.zeros(len(starts), dtype=np.int64)
    going: Mask = np.ones(len(starts), dtype=np.bool_) if only is None else only.copy()
    sound: Mask = going.copy()
    for number in range(_MOST_VARINT_BYTES):
        sound &= ~going | (starts < ends)
        going &= sound
        if not going.any():
            break
        octets = data[starts[going]].astype(np.int64)
        value[going] |= (octets & 127) << (7 * number)
        starts[going] += 1
        going[going] = octets > 127
    sound &= ~going
    return (value >> 1) ^ -(value & 1), sound
