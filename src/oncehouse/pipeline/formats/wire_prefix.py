"""Where a message says which schema it was written with: in a wire prefix, in a header, or nowhere.

The prefix is that of Confluent-compatible registries: a zero byte and the schema's number in four bytes, the
highest first. What follows it is the format's own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.config.field_types import MAX_NAME_LENGTH
from oncehouse.pipeline.convert.arrow_buffers import Offsets, cut, text_buffers
from oncehouse.pipeline.convert.masks import Mask, cast_where_possible, null_mask
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause

PREFIX_BYTES = 5
# As long as the ledger keeps names, and without what could harm a terminal.
_NAME = rf"^[^\pC]{{1,{MAX_NAME_LENGTH}}}$"


class VersionPlace(StrEnum):
    PREFIX = "prefix"
    HEADER = "header"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class VersionSource:
    place: VersionPlace
    header: str = ""
    """The header's key, when versions stand in headers."""
    schema: str = ""
    """The one schema of all messages, when they do not name any."""

    @property
    def no_version(self) -> RejectionCause:
        wanted = (
            "no wire prefix: a zero byte and a schema's number"
            if self.place is VersionPlace.PREFIX
            else f"no header {self.header} with the schema's version"
        )
        return RejectionCause(reason=Reason.MALFORMED, detail=wanted)


class SchemasAndBodies(NamedTuple):
    schemas: pa.Array
    """The name of each message's schema; null where the message does not say it."""
    bodies: pa.Array
    """What the schema describes."""


def split_messages(block: pa.RecordBatch, version_source: VersionSource) -> SchemasAndBodies:
    """Split messages, which all have a value, into schema and body."""
    values = block.column("value")
    match version_source.place:
        case VersionPlace.NONE:
            return SchemasAndBodies(_schemas_of_block(block, version_source.schema), values)
        case VersionPlace.HEADER:
            return SchemasAndBodies(
                keep_valid_names(_schemas_of_headers(block.column("headers"), version_source.header)), values
            )
        case VersionPlace.PREFIX:
            return _open_prefixes(values)


def split_versions(framed: SchemasAndBodies) -> tuple[Offsets, list[tuple[str, Offsets | slice, pa.Array]]]:
    """Which messages name no schema; and for each schema its name, which messages name it, and their bodies."""
    schemas, bodies = framed
    # Nearly always all are of one version, and one comparison shows that.
    if len(schemas) and schemas.null_count == 0 and pc.all(pc.equal(schemas, schemas[0])).as_py():
        return np.zeros(0, dtype=np.int64), [(schemas[0].as_py(), slice(None), bodies)]
    encoded = schemas.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    # One sort and one copy for all of them: messages can name as many schemas as there are messages.
    order: Offsets = np.argsort(numbers, kind="stable")
    sorted_bodies = bodies.take(pa.array(order))
    borders = np.searchsorted(numbers[order], np.arange(len(encoded.dictionary) + 1)).tolist()
    found: list[tuple[str, Offsets | slice, pa.Array]] = [
        (name, order[start:end], sorted_bodies.slice(start, end - start))
        for name, (start, end) in zip(encoded.dictionary.to_pylist(), pairwise(borders), strict=True)
    ]
    return order[: borders[0]], found


def keep_valid_names(texts: pa.Array) -> pa.Array:
    """Null in place of what cannot name a schema: such a text is no version, however long the record waits."""
    return pc.if_else(pc.match_substring_regex(texts, _NAME), texts, pa.scalar(None, pa.string()))


def _schemas_of_block(block: pa.RecordBatch, schema: str) -> pa.Array:
    """The one schema of today, but for records that were read with another one before."""
    if "schema" not in block.schema.names:
        return pa.repeat(schema, block.num_rows)
    return pc.fill_null(block.column("schema"), schema)


def _open_prefixes(values: pa.Array) -> SchemasAndBodies:
    offsets, data = text_buffers(values)
    framed = np.diff(offsets) >= PREFIX_BYTES
    starts = np.where(framed, offsets[:-1], 0)
    padded = data if len(data) >= PREFIX_BYTES else np.zeros(PREFIX_BYTES, dtype=np.uint8)
    framed &= padded[starts] == 0
    numbers = np.zeros(len(values), dtype=np.uint32)
    for place in range(1, PREFIX_BYTES):
        numbers = (numbers << np.uint32(8)) | padded[starts + place]
    names = pa.array(numbers, mask=~framed).cast(pa.string())
    lengths = np.where(framed, np.diff(offsets) - PREFIX_BYTES, 0)
    return SchemasAndBodies(names, cut(pa.py_buffer(padded), offsets[1:] - lengths, lengths))


def _schemas_of_headers(headers: pa.Array, key: str) -> pa.Array:
    """The text of the last header of this key; null where there is none or it is no text."""
    flat = headers.flatten()
    parents = pc.list_parent_indices(headers).to_numpy()
    texts, not_text = cast_where_possible(flat.field("value"), pa.string())
    wanted: Mask = pc.fill_null(pc.equal(flat.field("key"), key), False).to_numpy(zero_copy_only=False)
    wanted = wanted & ~not_text & ~null_mask(texts)
    found = np.flatnonzero(wanted)
    last = np.full(len(headers), -1, dtype=np.int64)
    last[parents[found]] = found  # of equal places NumPy keeps the last
    if not len(found):
        return pa.nulls(len(headers), pa.string())
    return texts.take(pa.array(np.maximum(last, 0), mask=last < 0))
