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
from oncehouse.pipeline.convert.rejection import Problem, Reason
from oncehouse.pipeline.formats.base import Decoded, Decoder, Limits, OfValues, Places, SingleRows, spread
from oncehouse.pipeline.formats.csv.splitter import Marks, split_columns, split_lines
from oncehouse.pipeline.formats.result_builder import Gathering
from oncehouse.pipeline.formats.text_columns import TextColumn, fit_texts

if TYPE_CHECKING:
    from oncehouse.config.formats import Csv

_BAD_UTF8 = Problem(reason=Reason.BAD_UTF8, detail="the bytes are not UTF-8")
_EMPTY = Problem(reason=Reason.EMPTY, detail="an empty line")
_MISQUOTED = Problem(
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
    def _marks(self) -> Marks:
        return Marks(delimiter=ord(self.delimiter), quote=None if self.quote is None else ord(self.quote))

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return spread(block, split_lines(block.column("value"), self._marks, skip_first=self.header))

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        del schemas
        return OfValues(
            CsvDecoder(fields=fields, columns=self.columns, marks=self._marks, null=self.null, limits=limits)
        )


class CsvDecoder:
    """Takes lines: one line a value."""

    def __init__(
        self,
        *,
        fields: Mapping[str, c.ColumnType],
        columns: tuple[str, ...],
        marks: Marks,
        null: str,
        limits: Limits,
    ) -> None:
        self._fields = dict(fields)
        self._columns = columns
        self._wanted = [columns.index(name) for name in fields]
        self._marks = marks
        self._null = null
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])

    def decode(self, values: pa.Array) -> Decoded:
        gathering = Gathering(self._schema)
        places, skipped = gathering.screen(values, self._limits.max_message_bytes)
        lines = values if len(places) == len(values) else values.take(pa.array(places))
        places, lines = self._screen(gathering, places, lines)
        if len(places):
            self._decode_lines(gathering, places, lines)
        return gathering.finish(skipped)

    def _screen(self, gathering: Gathering, places: Places, lines: pa.Array) -> tuple[Places, pa.Array]:
        _, bad = cast_where_possible(lines, pa.string())
        gathering.reject(places[bad], lambda _: _BAD_UTF8)
        empty = (np.diff(text_buffers(lines)[0]) == 0) & ~bad
        gathering.reject(places[empty], lambda _: _EMPTY)
        good = ~bad & ~empty
        return places[good], lines if good.all() else lines.filter(pa.array(good))

    def _decode_lines(self, gathering: Gathering, places: Places, lines: pa.Array) -> None:
        split = split_columns(lines, self._marks, columns=len(self._columns), wanted=self._wanted)
        gathering.reject(places[split.misquoted], lambda _: _MISQUOTED)
        odd = np.flatnonzero((split.counts != len(self._columns)) & ~split.misquoted)
        gathering.reject(places[odd], lambda number: self._explain_count(int(split.counts[odd[number]])))
        good = (split.counts == len(self._columns)) & ~split.misquoted
        kept = pa.array(good)
        columns = [
            TextColumn(text=text.filter(kept).cast(pa.string()), literal=quoted[good])
            for text, quoted in zip(split.texts, split.quoted, strict=True)
        ]
        fit_texts(gathering, places[good], columns, self._fields, null=self._null)

    def _explain_count(self, count: int) -> Problem:
        return Problem(reason=Reason.MALFORMED, detail=f"{count} columns, not {len(self._columns)}")
