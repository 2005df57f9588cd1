"""JSON as a format: one object a message, or JSON Lines with several, each a row of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.base import (
    DecodeLimits,
    Decoder,
    SingleRows,
    ValueDecoder,
    explode_rows,
    number_single_rows,
)
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

_BLANK = r"^[ \t\r]*$"


@dataclass(frozen=True, kw_only=True)
class JsonFormat(SingleRows):
    lines: bool = False
    """JSON Lines: a message holds an object a line."""
    watch: bool = False
    """Report keys that are not declared."""

    @property
    def several_rows(self) -> bool:
        return self.lines

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return (
            explode_rows(block, split_lines(block.column("value")))
            if self.lines
            else number_single_rows(block)
        )

    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        del schemas  # JSON says by itself how it is to be read
        return ValueDecoder(
            JsonDecoder(
                fields=fields,
                max_message_bytes=limits.max_message_bytes,
                max_depth=limits.max_depth,
                watch=self.watch,
            )
        )


def split_lines(values: pa.Array) -> pa.ListArray:
    """The lines of each message without blank ones; at least one line each, so that no message vanishes."""
    lines = pc.split_pattern(values.fill_null(b""), b"\n")
    texts = lines.flatten()
    offsets = lines.offsets.to_numpy() - lines.offsets[0].as_py()
    kept = ~pc.match_substring_regex(texts, _BLANK).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(kept)])
    silent = np.flatnonzero(before[offsets[1:]] == before[offsets[:-1]])
    kept[offsets[silent]] = True
    before = np.concatenate([[0], np.cumsum(kept)])
    texts = _with_nulls(texts, offsets[np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))])
    return pa.ListArray.from_arrays(pa.array(before[offsets], pa.int32()), texts.filter(pa.array(kept)))


def _with_nulls(texts: pa.Array, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Tombstones stay tombstones."""
    if not len(places):
        return texts
    valid = np.ones(len(texts), dtype=np.bool_)
    valid[places] = False
    return pc.if_else(pa.array(valid), texts, pa.scalar(None, texts.type))
