"""Decoding: what every format has in common, from a block of records to a block of typed rows.

A format is a frozen value that travels with the read plan and makes the decoder where the rows are. A decoder
raises for no bytes, and a bad record costs only itself. How bytes become values is each format's own module;
which schemas are known is the driver's business, so what a decoder does not know waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from oncehouse.columns import ColumnType
from oncehouse.ledger.records import Schema
from oncehouse.pipeline.verdict import Rejection

Places = np.ndarray[Any, np.dtype[np.int64]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, kw_only=True)
class Waiting:
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
    waiting: tuple[Waiting, ...] = ()
    schemas: pa.Array | None = None
    """The schema that each row was decoded with; None for a format without schemas."""
    new_fields: Mapping[str, str | None] = field(default_factory=dict)
    """Fields that nobody declared and their types, where the format was asked to tell; None: no column can hold it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large and how deep a record may be."""

    max_message_bytes: int
    max_depth: int


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
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder: ...


class ValuesDecoder(Protocol):
    def decode(self, values: pa.Array) -> Decoded: ...


class OfValues:
    """The decoder of a format in which the value alone tells everything."""

    def __init__(self, decoder: ValuesDecoder) -> None:
        self._decoder = decoder

    def decode(self, block: pa.RecordBatch) -> Decoded:
        return self._decoder.decode(block.column("value"))


def number_single_rows(block: pa.RecordBatch) -> pa.RecordBatch:
    """Each message is one row."""
    return block.append_column("row", pa.array(np.zeros(block.num_rows, dtype=np.int32)))


def spread(block: pa.RecordBatch, values: pa.ListArray) -> pa.RecordBatch:
    """A line for each value of each message, which all have at least one; the rest of a message is repeated."""
    lengths = np.diff(values.offsets.to_numpy())
    parents = np.repeat(np.arange(block.num_rows), lengths)
    firsts = np.repeat(values.offsets.to_numpy()[:-1] - values.offsets[0].as_py(), lengths)
    rows = (np.arange(len(parents)) - firsts).astype(np.int32)
    taken = block.drop_columns(["value"]).take(pa.array(parents))
    return taken.append_column("value", values.flatten()).append_column("row", pa.array(rows))
