"""Delimited text into typed columns, a block at a time: each line of a message is a row, and a bad line costs only
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.masks import cast_where_possible
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.formats.base import (
    Decoded,
    DecodeLimits,
    Decoder,
    Places,
    SingleRows,
    ValueDecoder,
    explode_rows,
)
from oncehouse.pipeline.formats.csv.splitter import Dialect, split_columns, split_lines
from oncehouse.pipeline.formats.result_builder import ResultBuilder
from oncehouse.pipeline.formats.text_columns import TextColumn, convert_texts

if TYPE_CHECKING:
    from oncehouse.config.formats import Csv

_BAD_UTF8 = RejectionCause(reason=Reason.BAD_UTF8, detail="the bytes are not UTF-8")
_EMPTY = RejectionCause(reason=Reason.EMPTY, detail="an empty line")
_MISQUOTED = RejectionCause(
    reason=Reason.MALFORMED, detail="a quote inside a value that is not doubled, or never closed"
)


def make_csv_format(section: Csv, fields: tuple[str, ...]) -> CsvFormat:
    return CsvFormat(
        delimiter=section.delimiter,
        quote=section.quote,
        columns=section.columns or fields,
        header=section.header,
        null=section.null,
    )


@dataclass(frozen=True, kw_only=True)
class CsvFormat(SingleRows):
    delimiter: str
    quote: str | None
    columns: tuple[str, ...]
    header: bool
    null: str

    @property
    def several_rows(self) -> bool:
        return True

    @property
    def _dialect(self) -> Dialect:
        quote = None if self.quote is None else ord(self.quote)
        return Dialect(delimiter=ord(self.delimiter), quote=quote, marks=True)

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return explode_rows(block, split_lines(block.column("value"), self._dialect, skip_first=self.header))

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        del schemas
        return ValueDecoder(
            CsvDecoder(
                fields=fields, columns=self.columns, dialect=self._dialect, null=self.null, limits=limits
            )
        )


class CsvDecoder:
    """Takes lines: one line a value."""

    def __init__(
        self,
        *,
        fields: Mapping[str, c.ColumnType],
        columns: tuple[str, ...],
        dialect: Dialect,
        null: str,
        limits: DecodeLimits,
    ) -> None:
        self._fields = dict(fields)
        self._columns = columns
        self._wanted = [columns.index(name) for name in fields]
        self._dialect = dialect
        self._null = null
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])

    def decode(self, values: pa.Array) -> Decoded:
        builder = ResultBuilder(self._schema)
        places, skipped = builder.screen(values, self._limits.max_message_bytes)
        lines = values if len(places) == len(values) else values.take(pa.array(places))
        places, lines = self._screen(builder, places, lines)
        if len(places):
            self._decode_lines(builder, places, lines)
        return builder.finish(skipped)

    def _screen(self, builder: ResultBuilder, places: Places, lines: pa.Array) -> tuple[Places, pa.Array]:
        _, bad = cast_where_possible(lines, pa.string())
        builder.reject(places[bad], lambda _: _BAD_UTF8)
        empty = (np.diff(text_buffers(lines)[0]) == 0) & ~bad
        builder.reject(places[empty], lambda _: _EMPTY)
        good = ~bad & ~empty
        return places[good], lines if good.all() else lines.filter(pa.array(good))

    def _decode_lines(self, builder: ResultBuilder, places: Places, lines: pa.Array) -> None:
        split = split_columns(lines, self._dialect, columns=len(self._columns), wanted=self._wanted)
        builder.reject(places[split.misquoted], lambda _: _MISQUOTED)
        odd = np.flatnonzero((split.counts != len(self._columns)) & ~split.misquoted)
        builder.reject(places[odd], lambda number: self._explain_count(int(split.counts[odd[number]])))
        good = (split.counts == len(self._columns)) & ~split.misquoted
        kept = pa.array(good)
        columns = [
            TextColumn(text=text.filter(kept).cast(pa.string()), literal=quoted[good])
            for text, quoted in zip(split.texts, split.quoted, strict=True)
        ]
        convert_texts(builder, places[good], columns, self._fields, null=self._null)

    def _explain_count(self, count: int) -> RejectionCause:
        return RejectionCause(reason=Reason.MALFORMED, detail=f"{count} columns, not {len(self._columns)}")
