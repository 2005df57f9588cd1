"""Avro as a format: one record a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oncehouse.column_types.types import ColumnType
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro.decoder import AvroDecoder
from oncehouse.pipeline.formats.base import Decoder, Limits, SingleRows
from oncehouse.pipeline.formats.wire_prefix import Framing, VersionPlace

if TYPE_CHECKING:
    from oncehouse.config.formats import Avro


def make_avro_format(section: Avro) -> AvroFormat:
    only = next(iter(section.schemas), "") if section.version == "none" else ""
    framing = Framing(place=VersionPlace(section.version), header=section.header, schema=only)
    return AvroFormat(framing=framing, aliases=section.aliases)


@dataclass(frozen=True, kw_only=True)
class AvroFormat(SingleRows):
    framing: Framing
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Declared fields and the names that they have in other versions."""

    @property
    def needs_headers(self) -> bool:
        return self.framing.place is VersionPlace.HEADER

    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: Limits
    ) -> Decoder:
        return AvroDecoder(
            fields=fields, schemas=schemas, framing=self.framing, limits=limits, aliases=self.aliases
        )
