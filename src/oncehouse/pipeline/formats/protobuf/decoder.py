"""Protobuf as a format: one message a record, each read by the schema version that it names.

The version stands in a header, in a registry's wire prefix, in a field that all versions share, or nowhere,
where one schema reads all. A record of an unknown version waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits, Decoder, Places, SingleRows
from oncehouse.pipeline.formats.protobuf.message_index import open_message_indexes
from oncehouse.pipeline.formats.protobuf.reader import ProtobufReader
from oncehouse.pipeline.formats.result_builder import ResultBuilder
from oncehouse.pipeline.formats.wire_prefix import (
    SchemasAndBodies,
    VersionPlace,
    VersionSource,
    keep_valid_names,
    split_messages,
    split_versions,
)
from oncehouse.protobuf.definition import describe, read_definition
from oncehouse.protobuf.fields import field_type

FORMAT = "protobuf"


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A message that every record can be read as, to learn its version."""

    definition: str
    field: str
    body: str | None
    """The field with the bytes of the actual message; None where the record itself is that message."""


@dataclass(frozen=True, kw_only=True)
class ProtobufFormat(SingleRows):
    version_source: VersionSource
    envelope: Envelope | None = None
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of the declared fields that are found by number, the steps of their paths."""

    @property
    def needs_headers(self) -> bool:
        return self.version_source.place is VersionPlace.HEADER

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        return ProtobufDecoder(format_=self, fields=fields, schemas=schemas, limits=limits)


class ProtobufDecoder:
    """Made once a task."""

    def __init__(
        self,
        *,
        format_: ProtobufFormat,
        fields: Mapping[str, c.ColumnType],
        schemas: Sequence[Schema],
        limits: DecodeLimits,
    ) -> None:
        """`schemas` stand in the order in which they became known: the last is the newest."""
        self._format = format_
        self._fields = fields
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
        known = [schema for schema in schemas if schema.format == FORMAT]
        self._descriptors = {schema.schema: describe(read_definition(schema.definition)) for schema in known}
        self._readers: dict[str, ProtobufReader] = {}
        self._envelope = self._make_envelope()

    def _make_envelope(self) -> ProtobufReader | None:
        envelope = self._format.envelope
        if envelope is None:
            return None
        descriptor = describe(read_definition(envelope.definition))
        wanted = {
            name: field_type(descriptor, name) for name in (envelope.field, envelope.body) if name is not None
        }
        return ProtobufReader(descriptor, (), wanted, max_message_bytes=self._limits.max_message_bytes)

    def decode(self, block: pa.RecordBatch) -> Decoded:
        builder = ResultBuilder(self._schema)
        places, skipped = builder.screen(block.column("value"), self._limits.max_message_bytes)
        places, split = self._open(
            builder, places, block if len(places) == block.num_rows else block.take(pa.array(places))
        )
        unnamed, versions = split_versions(split)
        builder.reject(places[unnamed], lambda _: self._no_version())
        for name, mine, bodies in versions:
            self._decode_version(builder, name, places[mine], bodies)
        return builder.finish(skipped)

    def _decode_version(self, builder: ResultBuilder, name: str, places: Places, bodies: pa.Array) -> None:
        refusal = self._limits.refuse(name)
        if refusal is not None:
            builder.reject(places, lambda _: refusal)
            return
        reader = self._reader(name)
        if reader is None:
            builder.wait(places, name)
            return
        rejected: list[Rejection] = []
        for taken, rows in reader.read(places, bodies, rejected):
            builder.keep(taken, rows, name)
        builder.add_rejected(rejected)

    def _reader(self, name: str) -> ProtobufReader | None:
        if name not in self._descriptors:
            return None
        if name not in self._readers:
            newest_first = [self._descriptors[other] for other in reversed(self._descriptors)]
            self._readers[name] = ProtobufReader(
                self._descriptors[name],
                newest_first,
                self._fields,
                max_message_bytes=self._limits.max_message_bytes,
                numbers=self._format.numbers,
                must_be_set=self._limits.must_be_set,
            )
        return self._readers[name]

    # -- which version, and where its bytes are -----------------------------------------------------------

    def _open(
        self, builder: ResultBuilder, places: Places, block: pa.RecordBatch
    ) -> tuple[Places, SchemasAndBodies]:
        if self._envelope is not None:
            return self._open_envelopes(builder, self._envelope, places, block.column("value"))
        version_source = self._format.version_source
        split = split_messages(block, version_source)
        if version_source.place is VersionPlace.PREFIX:
            split = open_message_indexes(split)
        elif version_source.schema:
            split = SchemasAndBodies(pc.fill_null(split.schemas, version_source.schema), split.bodies)
        return places, split

    def _open_envelopes(
        self, builder: ResultBuilder, reader: ProtobufReader, places: Places, values: pa.Array
    ) -> tuple[Places, SchemasAndBodies]:
        envelope = self._format.envelope
        assert envelope is not None  # noqa: S101 - the reader was made of it
        rejected: list[Rejection] = []
        opened = list(reader.read(np.arange(len(places)), values, rejected))
        builder.add_rejected([_move(rejection, places) for rejection in rejected])
        if not opened:
            return places[:0], SchemasAndBodies(pa.nulls(0, pa.string()), pa.nulls(0, pa.binary()))
        order = np.concatenate([taken for taken, _ in opened])
        rows = pa.concat_batches([rows for _, rows in opened])
        versions = keep_valid_names(rows.column(envelope.field).cast(pa.string()))
        bodies = values.take(pa.array(order))
        if envelope.body is not None:
            # An absent body is an empty message.
            bodies = pc.fill_null(rows.column(envelope.body).view(pa.binary()), b"")
        return places[order], SchemasAndBodies(versions, bodies)

    def _no_version(self) -> RejectionCause:
        if self._format.envelope is None:
            return self._format.version_source.no_version
        return RejectionCause(
            reason=Reason.MALFORMED,
            detail=f"no field {self._format.envelope.field} with the schema's version",
        )


def _move(rejection: Rejection, places: Places) -> Rejection:
    return Rejection(index=int(places[rejection.index]), reason=rejection.reason, detail=rejection.detail)
