"""Debezium as a format: one change of one row a message, in JSON with or without its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.base import Decoder, Limits, SingleRows
from oncehouse.pipeline.formats.debezium.decoder import DebeziumDecoder


@dataclass(frozen=True, kw_only=True)
class DebeziumFormat(SingleRows):
    precise_decimals: bool

    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        del schemas  # what an envelope needs, it brings along
        return DebeziumDecoder(fields=fields, precise_decimals=self.precise_decimals, limits=limits)
