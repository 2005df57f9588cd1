"""Decoding: what every format has in common, from a block of records to a block of typed rows.

A format is a frozen value that travels with the read plan and makes the decoder where the rows are. A decoder
raises for no bytes, and a bad record costs only itself. How bytes become values is each format's own module;
which schemas are known is the driver's business, so what a decoder does not know waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause

Places = np.ndarray[Any, np.dtype[np.int64]]

# A message of many lines must not become many times its size: its key and headers would be repeated with each
# line. Where that is more than this, only the first line keeps them.
_MOST_REPEATED_BYTES = 16 << 20
_REPEATED_COLUMNS = ("key", "headers")
_RUN_BYTES = 64 << 20
# What a line takes in memory, in addition to its own bytes, until it is written.
_ROW_BYTES = 100

# The column of parts that gives the place of the row's event in its key file.
EVENT_COLUMN = "_event"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, kw_only=True)
class WaitingRecord:
    """A record whose schema is not known yet."""

    index: int
    schema: str


@dataclass(frozen=True, kw_only=True)
class Decoded:
    rows: pa.RecordBatch
    """One column a declared field, of its Arrow type, in declared order."""
    taken: Places
    """Place in the block of each row, ascending."""
    rejected: tuple[Rejection, ...]
    skipped: Places
    """Places of tombstones, messages without a value."""
    waiting: tuple[WaitingRecord, ...] = ()
    schemas: pa.Array | None = None
    """The schema that each row was decoded with; None for a format without schemas."""
    new_fields: Mapping[str, str | None] = field(default_factory=dict)
    """Undeclared fields and their types, where the format reports them; None: no column can hold it."""


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    """What a record must keep to, whatever its format."""

    max_message_bytes: int
    max_depth: int
    refused: Mapping[str, str] = field(default_factory=dict)
    """Versions of the schema whose records are rejected, each with what it lacks."""
    must_be_set: tuple[tuple[str, ...], ...] = ()
    """Fields that have no default where the schema says that they may be absent, each as the steps that lead to it."""
    exact: frozenset[str] = frozenset()
    """Fields, or paths, whose values no default may replace: ids and merging tables depend on them."""

    def refuse(self, schema: str) -> RejectionCause | None:
        """Why records of a version are rejected; None where they are not."""
        lacking = self.refused.get(schema)
        return None if lacking is None else RejectionCause(reason=Reason.MISSING_FIELD, detail=lacking)


def reject_rows(decoded: Decoded, found: Sequence[Rejection]) -> Decoded:
    """Without the rows of these places, which are rejected."""
    if not found:
        return decoded
    kept = ~np.isin(decoded.taken, [rejection.index for rejection in found])
    mask = pa.array(kept)
    return replace(
        decoded,
        rows=decoded.rows.filter(mask),
        taken=decoded.taken[kept],
        schemas=None if decoded.schemas is None else decoded.schemas.filter(mask),
        rejected=tuple(sorted([*decoded.rejected, *found], key=lambda rejection: rejection.index)),
    )


class Decoder(Protocol):
    """Made once a task."""

    def decode(self, block: pa.RecordBatch) -> Decoded:
        """Takes the columns `key`, `value` and `headers`, and `schema` where it is known from an earlier time."""


class Format(Protocol):
    """How records are written; picklable."""

    @property
    def needs_headers(self) -> bool:
        """Whether headers have to be read from Kafka, and kept."""

    @property
    def several_rows(self) -> bool:
        """Whether a message may hold several rows."""

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The block with a line for each row of a message, numbered by the column `row`."""

    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder: ...


class SingleRows:
    """A format whose messages are one row each and need nothing but their value."""

    @property
    def needs_headers(self) -> bool:
        return False

    @property
    def several_rows(self) -> bool:
        return False

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return number_single_rows(block)


class DecodesValues(Protocol):
    def decode(self, values: pa.Array) -> Decoded: ...


class ValueDecoder:
    """The decoder of a format that needs nothing but the values."""

    def __init__(self, decoder: DecodesValues) -> None:
        self._decoder = decoder

    def decode(self, block: pa.RecordBatch) -> Decoded:
        return self._decoder.decode(block.column("value"))


def number_single_rows(block: pa.RecordBatch) -> pa.RecordBatch:
    """Each message is one row."""
    return block.append_column("row", pa.array(np.zeros(block.num_rows, dtype=np.int32)))


def explode_rows(block: pa.RecordBatch, values: pa.ListArray) -> pa.RecordBatch:
    """A line for each value of each message, which all have at least one; the rest of a message is repeated."""
    lengths = np.diff(values.offsets.to_numpy())
    parents = np.repeat(np.arange(block.num_rows), lengths)
    firsts = np.repeat(values.offsets.to_numpy()[:-1] - values.offsets[0].as_py(), lengths)
    rows = (np.arange(len(parents)) - firsts).astype(np.int32)
    heavy = lengths * _repeated_bytes(block) > _MOST_REPEATED_BYTES
    names = [name for name in block.schema.names if name != "value"]
    bare = pa.array(parents, mask=heavy[parents] & (rows > 0))
    columns = [
        block.column(name).take(bare if name in _REPEATED_COLUMNS else pa.array(parents)) for name in names
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, values.flatten(), pa.array(rows)], names=[*names, "value", "row"]
    )


def split_runs(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The block in runs of messages whose lines take a bounded amount of memory together, or of one message."""
    lines = pc.fill_null(pc.count_substring(block.column("value"), "\n"), 0).to_numpy(zero_copy_only=False)
    repeated = (lines + 1) * _repeated_bytes(block)
    weights = (lines + 1) * _ROW_BYTES + np.where(repeated > _MOST_REPEATED_BYTES, 0, repeated)
    ends = np.cumsum(weights)
    start = 0
    while start < block.num_rows:
        before = ends[start - 1] if start else 0
        end = max(int(np.searchsorted(ends, before + _RUN_BYTES, side="right")), start + 1)
        yield block.slice(start, end - start)
        start = end


def _repeated_bytes(block: pa.RecordBatch) -> Places:
    """How many bytes each message has in key and headers."""
    weights = np.zeros(block.num_rows, dtype=np.int64)
    if "key" in block.schema.names:
        weights += _byte_lengths(block.column("key"))
    if "headers" in block.schema.names:
        headers = block.column("headers")
        counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
        flat = headers.flatten()
        totals = np.concatenate(
            [[0], np.cumsum(_byte_lengths(flat.field("key")) + _byte_lengths(flat.field("value")))]
        )
        ends = np.cumsum(counts)
        weights += totals[ends] - totals[ends - counts]
    return weights


def _byte_lengths(texts: pa.Array) -> Places:
    lengths: Places = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)
