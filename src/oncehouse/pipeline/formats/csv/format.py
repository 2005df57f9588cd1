"""Delimited text as a format: a message holds one line or several, each a row of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.base import Decoder, Limits, OfValues, SingleRows, spread
from oncehouse.pipeline.formats.csv.decoder import CsvDecoder
from oncehouse.pipeline.formats.csv.splitter import Marks, split_lines

if TYPE_CHECKING:
    from oncehouse.config.formats import Csv


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
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        del schemas
        return OfValues(
            CsvDecoder(fields=fields, columns=self.columns, marks=self._marks, null=self.null, limits=limits)
        )
