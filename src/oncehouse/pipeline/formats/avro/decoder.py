"""Avro messages into typed columns, block by block, each by the schema it was written with.

The schema's version stands before the body, in a header, or is one for all. Messages of one version are read
together; what the declared fields do not name is passed over. A message of an unknown version waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.formats.avro.columns import AvroReader
from oncehouse.pipeline.formats.avro.cursor import Bodies
from oncehouse.pipeline.formats.avro.field_lookup import Aliases, parse_versions
from oncehouse.pipeline.formats.avro.lists import GREATEST_DEPTH
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits, Decoder, Places, SingleRows
from oncehouse.pipeline.formats.result_builder import ResultBuilder
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource, split_messages, split_versions

if TYPE_CHECKING:
    from oncehouse.config.formats import Avro

_RUN_BYTES = 4 << 20  # cursors and columns of a run may take many times its bytes


def make_avro_format(section: Avro) -> AvroFormat:
    only = next(iter(section.schemas), "") if section.version == "none" else ""
    version_source = VersionSource(place=VersionPlace(section.version), header=section.header, schema=only)
    return AvroFormat(version_source=version_source, aliases=section.aliases)


@dataclass(frozen=True, kw_only=True)
class AvroFormat(SingleRows):
    version_source: VersionSource
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Declared fields and the names that they have in other versions."""

    @property
    def needs_headers(self) -> bool:
        return self.version_source.place is VersionPlace.HEADER

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        return AvroDecoder(
            fields=fields,
            schemas=schemas,
            version_source=self.version_source,
            limits=limits,
            aliases=self.aliases,
        )


class AvroDecoder:
    """Made once a task."""

    def __init__(
        self,
        *,
        fields: Mapping[str, c.ColumnType],
        schemas: Sequence[Schema],
        version_source: VersionSource,
        limits: DecodeLimits,
        aliases: Aliases = MappingProxyType({}),
    ) -> None:
        self._version_source = version_source
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
        self._readers = _make_readers(fields, schemas, aliases, limits)

    def decode(self, block: pa.RecordBatch) -> Decoded:
        builder = ResultBuilder(self._schema)
        places, skipped = builder.screen(block.column("value"), self._limits.max_message_bytes)
        split = split_messages(
            block if len(places) == block.num_rows else block.take(places), self._version_source
        )
        unnamed, versions = split_versions(split)
        builder.reject(places[unnamed], lambda _: self._version_source.no_version)
        for name, mine, bodies in versions:
            self._decode_version(builder, name, places[mine], bodies)
        return builder.finish(skipped)

    def _decode_version(self, builder: ResultBuilder, name: str, places: Places, bodies: pa.Array) -> None:
        refusal = self._limits.refuse(name)
        if refusal is not None:
            builder.reject(places, lambda _: refusal)
            return
        reader = self._readers.get(name)
        if reader is None:
            builder.wait(places, name)
            return
        for start, end in _split_runs(bodies):
            self._decode_run(builder, reader, name, places[start:end], bodies.slice(start, end - start))

    def _decode_run(
        self, builder: ResultBuilder, reader: AvroReader, name: str, places: Places, bodies: pa.Array
    ) -> None:
        run = Bodies(bodies)
        rows = pa.RecordBatch.from_arrays(reader.read(run), schema=self._schema)
        if run.problems:
            bad = np.flatnonzero(~run.sound)
            builder.reject(places[bad], lambda number: run.problems[int(bad[number])])
            rows, places = rows.filter(pa.array(run.sound)), places[run.sound]
        builder.keep(places, rows, name)


def _make_readers(
    fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], aliases: Aliases, limits: DecodeLimits
) -> dict[str, AvroReader]:
    parsed = parse_versions(schemas)
    return {
        name: AvroReader(
            writer=record,
            newest=list(parsed.values())[-1],
            fields=fields,
            max_depth=min(limits.max_depth, GREATEST_DEPTH),
            aliases=aliases,
            exact=limits.exact,
        )
        for name, record in parsed.items()
    }


def _split_runs(bodies: pa.Array) -> Iterator[tuple[int, int]]:
    """Runs of messages, each of about so many bytes."""
    offsets, _ = text_buffers(bodies)
    start = 0
    while start < len(bodies):
        end = int(np.searchsorted(offsets, offsets[start] + _RUN_BYTES, side="right")) - 1
        end = max(end, start + 1)
        yield start, end
        start = end
