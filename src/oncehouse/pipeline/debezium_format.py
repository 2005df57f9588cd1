"""Debezium as a format: one change of one row a message, in JSON with or without its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from oncehouse.columns import ColumnType
from oncehouse.ledger.records import Schema
from oncehouse.pipeline.debezium_decode import DebeziumDecoder
from oncehouse.pipeline.decoding import Decoder, Limits, number_single_rows


@dataclass(frozen=True, kw_only=True)
class DebeziumFormat:
    precise_decimals: bool

    @property
    def needs_headers(self) -> bool:
        return False

    @property
    def several_rows(self) -> bool:
        return False

    def unfold(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return number_single_rows(block)

    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        del schemas  # what an envelope needs, it brings along
        return DebeziumDecoder(fields=fields, precise_decimals=self.precise_decimals, limits=limits)
