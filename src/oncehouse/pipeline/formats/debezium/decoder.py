"""Debezium's change events into rows: the row after the change, or before it when it was deleted.

The envelope is read by the JSON decoder as any other object, with the members that a change has; so a bad message
costs only itself here too. A row gets a version that grows with every change of its key, which is its place in Kafka,
and a mark when it is deleted, as ReplacingMergeTree wants them. Columns of a deleted row that the log does not have are
filled with defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.masks import Mask, flags, null_mask
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.convert.value_errors import find_problem
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits, Decoder, Places, SingleRows
from oncehouse.pipeline.formats.debezium.absent_values import fill_defaults, find_unavailable, without
from oncehouse.pipeline.formats.debezium.columns import explain_unread, read_meaning
from oncehouse.pipeline.formats.debezium.envelope import Envelopes, describe_row, open_envelopes
from oncehouse.pipeline.formats.debezium.log_position import (
    CONNECTORS,
    SOURCE,
    cut_images,
    name_positions,
    name_tables,
)
from oncehouse.pipeline.formats.debezium.wire_types import Wire, wire_of_declared, wire_of_schema
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from oncehouse.pipeline.formats.result_builder import ResultBuilder

VERSION, DELETED, OPERATION = "_version", "_deleted", "_op"
TABLE, KEY, POSITION = "_table", "_key", "_position"
OWN_FIELDS = (VERSION, DELETED, OPERATION, TABLE, KEY, POSITION)

_TEXT = c.Nullable(inner=c.String())
_CONNECTOR = c.Nullable(inner=c.Tuple(fields=(("connector", _TEXT),)))
_MOST_READERS = 256
_CHANGES = pa.array(["c", "u", "d", "r"])
_CONNECTORS = pa.array(CONNECTORS)
_NO_CHANGE = RejectionCause(
    reason=Reason.MALFORMED, detail="op: no operation of Debezium; this is no change event"
)
_TRUNCATED = RejectionCause(
    reason=Reason.UNSUPPORTED,
    detail="op: the table was truncated, which no row can say; truncate it here too",
)
_NO_POSITION = RejectionCause(reason=Reason.MALFORMED, detail="source: names no place in the database's log")
_NOT_IN_LOG = (
    "not changed, and therefore not in the log; set REPLICA IDENTITY FULL of the table (PostgreSQL), "
    "binlog_row_image=FULL (MySQL) or lob.enabled of the connector (Oracle)"
)
_NO_ROW = RejectionCause(
    reason=Reason.MISSING_FIELD,
    detail="the row is missing: after is null, or before of a deletion; see REPLICA IDENTITY of the table",
)


@dataclass(frozen=True, kw_only=True)
class DebeziumFormat(SingleRows):
    precise_decimals: bool

    def make_decoder(
        self, fields: Mapping[str, c.ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        del schemas  # what an envelope needs, it brings along
        return DebeziumDecoder(fields=fields, precise_decimals=self.precise_decimals, limits=limits)


class _EnvelopeReader(NamedTuple):
    """How envelopes of one schema are read."""

    json: JsonDecoder
    wires: dict[str, Wire]


class _Changes(NamedTuple):
    """Changes of rows, with what their envelopes say."""

    places: Places
    rows: pa.RecordBatch
    payloads: pa.Array
    keys: pa.Array
    offsets: pa.Array

    def filter(self, kept: Mask) -> _Changes:
        if kept.all():
            return self
        mask = pa.array(kept)
        return _Changes(
            self.places[kept],
            self.rows.filter(mask),
            self.payloads.filter(mask),
            self.keys.filter(mask),
            self.offsets.filter(mask),
        )


class DebeziumDecoder:
    """Made once a task."""

    def __init__(
        self, *, fields: Mapping[str, c.ColumnType], precise_decimals: bool, limits: DecodeLimits
    ) -> None:
        self._fields = dict(fields)
        self._columns = {name: type_ for name, type_ in fields.items() if name not in OWN_FIELDS}
        self._precise_decimals = precise_decimals
        self._limits = limits
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
        self._readers: dict[str | None, _EnvelopeReader] = {}
        self._source_reader = JsonDecoder(
            fields={"source": _CONNECTOR},
            max_message_bytes=limits.max_message_bytes,
            max_depth=limits.max_depth,
        )

    def decode(self, block: pa.RecordBatch) -> Decoded:
        builder = ResultBuilder(self._schema)
        places, skipped = builder.screen(block.column("value"), self._limits.max_message_bytes)
        skipped_parts: list[Places] = [skipped]
        indices = pa.array(places)
        keys = _payloads_of_keys(block.column("key").take(indices))
        offsets = block.column("offset")
        for envelopes in open_envelopes(block.column("value").take(indices)):
            self._decode_envelopes(builder, places, keys, offsets, envelopes, skipped_parts)
        return builder.finish(np.sort(np.concatenate(skipped_parts)))

    def _decode_envelopes(
        self,
        builder: ResultBuilder,
        places: Places,
        keys: pa.Array,
        offsets: pa.Array,
        envelopes: Envelopes,
        skipped: list[Places],
    ) -> None:
        reader = self._reader(envelopes.schema)
        decoded = reader.json.decode(envelopes.payloads)
        mine = places[envelopes.places]
        wrong = np.array([rejection.index for rejection in decoded.rejected], dtype=np.int64)
        causes = self._explain(decoded, envelopes.payloads.take(pa.array(wrong)))
        builder.reject(mine[wrong], lambda number: causes[number])
        taken = pa.array(decoded.taken)
        changes = _Changes(
            mine[decoded.taken],
            decoded.rows,
            envelopes.payloads.take(taken),
            keys.take(pa.array(envelopes.places)).take(taken),
            offsets.take(pa.array(mine[decoded.taken])),
        )
        self._keep(builder, _sort_operations(builder, changes, skipped), reader.wires)

    def _explain(self, decoded: Decoded, payloads: pa.Array) -> list[RejectionCause]:
        """Why envelopes are no changes of rows: by their connector's name, where that is the reason."""
        causes = [RejectionCause(reason=one.reason, detail=one.detail) for one in decoded.rejected]
        if causes:
            named = self._source_reader.decode(payloads)
            connectors = named.rows.column("source").field("connector")
            for place, connector in zip(named.taken.tolist(), connectors.to_pylist(), strict=True):
                if connector is not None and connector not in CONNECTORS:
                    causes[place] = _refuse_connector(connector)
        return causes

    def _reader(self, schema: str | None) -> _EnvelopeReader:
        if schema not in self._readers:
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            self._readers[schema] = self._make_reader(schema)
        return self._readers[schema]

    def _make_reader(self, schema: str | None) -> _EnvelopeReader:
        described = None if schema is None else describe_row(schema)
        wires: dict[str, Wire] = {}
        for name, type_ in self._columns.items():
            if described is None:
                wires[name] = wire_of_declared(type_, precise_decimals=self._precise_decimals)
            elif name in described:
                wires[name] = wire_of_schema(described[name])
        members = tuple((name, wire.json) for name, wire in wires.items()) or (("_", _TEXT),)
        image = c.Nullable(inner=c.Tuple(fields=members))
        fields = {"op": _TEXT, "before": image, "after": image, "source": SOURCE}
        limits = self._limits
        return _EnvelopeReader(
            JsonDecoder(
                fields=fields, max_message_bytes=limits.max_message_bytes, max_depth=limits.max_depth
            ),
            wires,
        )

    # -- from changes to rows -----------------------------------------------------------------------------

    def _keep(self, builder: ResultBuilder, changes: _Changes, wires: Mapping[str, Wire]) -> None:
        deleted = _is(changes.rows.column("op"), "d")
        before, after = changes.rows.column("before"), changes.rows.column("after")
        absent = np.where(deleted, null_mask(before), null_mask(after))
        builder.reject(changes.places[absent], lambda _: _NO_ROW)
        changes, deleted = changes.filter(~absent), deleted[~absent]
        problems: dict[int, RejectionCause] = {}
        own = _own_fields(changes, deleted, problems)
        arrays = []
        for name, type_ in self._fields.items():
            meant, bad = (
                (own[name], None)
                if name in own
                else _read_column(changes, deleted, name, type_, wires, problems)
            )
            unread = explain_unread(wires[name]) if name in wires else ""
            arrays.append(_convert_column(meant, bad, unread, type_, f"field {name}", deleted, problems))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        good = np.ones(len(changes.places), dtype=np.bool_)
        if problems:
            wrong = np.array(sorted(problems), dtype=np.int64)
            builder.reject(changes.places[wrong], lambda number: problems[int(wrong[number])])
            good[wrong] = False
        builder.keep(changes.places[good], rows if good.all() else rows.filter(pa.array(good)))


def _is(operations: pa.Array, operation: str) -> Mask:
    found: Mask = pc.fill_null(pc.equal(operations, operation), False).to_numpy(zero_copy_only=False)
    return found


def _refuse_connector(name: str) -> RejectionCause:
    shown = "".join(itertools.takewhile(lambda character: character.isalnum() or character in "-_.", name))
    return RejectionCause(
        reason=Reason.UNSUPPORTED,
        detail=f"source.connector: changes of the connector '{shown}' are not read; those of "
        f"{', '.join(CONNECTORS[:-1])} and {CONNECTORS[-1]} are",
    )


def _sort_operations(builder: ResultBuilder, changes: _Changes, skipped: list[Places]) -> _Changes:
    """Changes of rows go on; messages of the log are skipped, and what is no change is refused."""
    connectors = changes.rows.column("source").field("connector")
    others = ~flags(pc.is_in(pc.fill_null(connectors, CONNECTORS[0]), value_set=_CONNECTORS))
    if others.any():
        names = connectors.filter(pa.array(others)).to_pylist()
        builder.reject(changes.places[others], lambda number: _refuse_connector(names[number]))
        changes = changes.filter(~others)
    operations = changes.rows.column("op")
    known = pc.is_in(operations, value_set=_CHANGES).to_numpy(zero_copy_only=False)
    messages, truncated = _is(operations, "m"), _is(operations, "t")
    skipped.append(changes.places[messages])
    builder.reject(changes.places[truncated], lambda _: _TRUNCATED)
    builder.reject(changes.places[~known & ~messages & ~truncated], lambda _: _NO_CHANGE)
    return changes.filter(known)


def _payloads_of_keys(keys: pa.Array) -> pa.Array:
    """Keys without their schema, so that they stay the same when `schemas.enable` changes."""
    nulls = null_mask(keys)
    payloads: list[pa.Array] = []
    places: list[Places] = []
    for envelopes in open_envelopes(pc.fill_null(keys, b"")):
        payloads.append(envelopes.payloads)
        places.append(envelopes.places)
    if not payloads:
        return keys
    order = np.argsort(np.concatenate(places), kind="stable")
    joined = pa.concat_arrays(payloads).take(pa.array(order))
    return pc.if_else(pa.array(~nulls), joined, pa.scalar(None, pa.binary())) if nulls.any() else joined


def _own_fields(changes: _Changes, deleted: Mask, problems: dict[int, RejectionCause]) -> dict[str, pa.Array]:
    """What oncehouse adds to a row."""
    source = changes.rows.column("source")
    snapshot = _is(changes.rows.column("op"), "r")
    positions, nowhere = name_positions(source, snapshot, changes.payloads)
    for row in np.flatnonzero(nowhere | null_mask(source)).tolist():
        problems[row] = _NO_POSITION
    keys = changes.keys
    if keys.null_count:
        # A table without a primary key has no keys; then the row itself distinguishes changes at one place.
        keys = pc.coalesce(keys, cut_images(changes.payloads))
    return {
        VERSION: changes.offsets,
        DELETED: pa.array(deleted.astype(np.uint8)),
        OPERATION: changes.rows.column("op"),
        TABLE: name_tables(source),
        KEY: keys,
        POSITION: positions,
    }


def _read_column(
    changes: _Changes,
    deleted: Mask,
    name: str,
    type_: c.ColumnType,
    wires: Mapping[str, Wire],
    problems: dict[int, RejectionCause],
) -> tuple[pa.Array, Mask | None]:
    if name not in wires:
        return pa.nulls(len(changes.places)), None
    place = list(wires).index(name)
    before, after = (changes.rows.column(image).field(place) for image in ("before", "after"))
    if not deleted.any():
        chosen = after
    else:
        rows = len(changes.places)
        picked = np.where(deleted, np.arange(rows), np.arange(rows) + rows)
        chosen = pa.concat_arrays([before, after]).take(pa.array(picked))
    unavailable = find_unavailable(chosen)
    for row in np.flatnonzero(unavailable & ~deleted).tolist():
        problems[row] = RejectionCause(reason=Reason.MISSING_FIELD, detail=f"field {name}: {_NOT_IN_LOG}")
    return read_meaning(without(chosen, unavailable & deleted), wires[name], type_)


def _convert_column(
    meant: pa.Array,
    bad: Mask | None,
    unread: str,
    type_: c.ColumnType,
    where: str,
    deleted: Mask,
    problems: dict[int, RejectionCause],
) -> pa.Array:
    converted = convert(meant, type_)
    nulls = null_mask(meant)
    filled = fill_defaults(converted.array, type_, nulls & deleted)
    wrong = (
        np.zeros(len(meant), dtype=np.bool_) if converted.bad is None else converted.bad & ~(nulls & deleted)
    )
    for row in [] if bad is None else np.flatnonzero(bad).tolist():
        problems.setdefault(row, RejectionCause(reason=Reason.WRONG_TYPE, detail=f"{where}: {unread}"))
    for row in np.flatnonzero(wrong).tolist():
        problems.setdefault(row, find_problem(meant, row, type_, where))
    return filled
