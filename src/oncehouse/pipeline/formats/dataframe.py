"""Rows of DataFrames as a format: how what came from a DataFrame or a file of columns is decoded again.

Such a row is kept as `row_bytes`, under a schema that names the fields it was converted to; one that could not be
converted is kept as JSON text, which people can read and correct. Every pipeline may hold some, whatever its topics
carry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType, FixedString, String, arrow_type, bare, clickhouse_name
from oncehouse.ledger.models import ROW_PREFIX, Schema
from oncehouse.pipeline.convert.convert import convert, plain
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.convert.value_errors import find_problem
from oncehouse.pipeline.formats.base import Decoded, DecodeLimits, Decoder, Places, SingleRows
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from oncehouse.pipeline.formats.row_codec import MARK, decode_rows

FORMAT = "frame"
_NO_ROW = RejectionCause(
    reason=Reason.WRONG_TYPE, detail="the bytes are no row of the schema that they were kept with"
)


def schema_of(fields: Mapping[str, ColumnType]) -> Schema:
    """What rows that were converted to these fields are kept with."""
    definition = json.dumps([[name, clickhouse_name(type_)] for name, type_ in fields.items()])
    return Schema(
        schema=ROW_PREFIX + hashlib.sha256(definition.encode()).hexdigest()[:16],
        format=FORMAT,
        definition=definition,
    )


@dataclass(frozen=True, kw_only=True)
class DataFrameFormat(SingleRows):
    def make_decoder(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> Decoder:
        return DataFrameDecoder(fields, schemas, limits)


class DataFrameDecoder:
    def __init__(
        self, fields: Mapping[str, ColumnType], schemas: Sequence[Schema], limits: DecodeLimits
    ) -> None:
        self._fields = dict(fields)
        self._limits = limits
        self._schema = pa.schema([(name, arrow_type(type_)) for name, type_ in fields.items()])
        self._known = {schema.schema: _arrow_schema(schema) for schema in schemas if schema.format == FORMAT}
        self._json = JsonDecoder(
            fields=fields, max_message_bytes=limits.max_message_bytes, max_depth=limits.max_depth
        )

    def decode(self, block: pa.RecordBatch) -> Decoded:
        values = block.column("value")
        names = (
            block.column("schema") if "schema" in block.schema.names else pa.nulls(len(values), pa.string())
        )
        marked = pc.equal(pc.binary_slice(values, 0, 1), MARK).fill_null(fill_value=False)
        found = [self._decode_texts(values, np.flatnonzero(~marked.to_numpy(zero_copy_only=False)))]
        for name in pc.unique(names.filter(marked)).to_pylist():
            mine = pc.and_(marked, pc.equal(names, name).fill_null(fill_value=name is None))
            places = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            found += self._decode_rows(values.take(pa.array(places)), places, name)
        merged = merge(found, self._schema)
        return replace(merged, schemas=names.take(pa.array(merged.taken)))

    def _decode_texts(self, values: pa.Array, places: Places) -> Decoded:
        if len(places) == 0:
            return _nothing(self._schema)
        return move(self._json.decode(values.take(pa.array(places))), places)

    def _decode_rows(self, values: pa.Array, places: Places, name: str | None) -> Iterator[Decoded]:
        refusal = self._limits.refuse(name or "")
        if refusal is not None:
            yield replace(_nothing(self._schema), rejected=tuple(refusal.at(int(place)) for place in places))
            return
        known = self._known.get(name or "")
        if known is None:
            yield replace(_nothing(self._schema), rejected=tuple(_NO_ROW.at(int(place)) for place in places))
            return
        try:
            yield move(convert_rows(decode_rows(values, known), self._fields), places)
        except (ValueError, pa.ArrowException):
            if len(places) == 1:
                yield replace(_nothing(self._schema), rejected=(_NO_ROW.at(int(places[0])),))
                return
            half = len(places) // 2
            yield from self._decode_rows(values.slice(0, half), places[:half], name)
            yield from self._decode_rows(values.slice(half), places[half:], name)


def _arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([(name, arrow_type(parse_type(text))) for name, text in json.loads(schema.definition)])


class MixedDecoder:
    """The decoder of a pipeline's own format, which recognizes rows of DataFrames by their schema."""

    def __init__(self, own: Decoder, dataframes: Decoder, schema: pa.Schema) -> None:
        self._own = own
        self._dataframes = dataframes
        self._schema = schema

    def decode(self, block: pa.RecordBatch) -> Decoded:
        if "schema" not in block.schema.names:
            return self._own.decode(block)
        mine = is_dataframe_row(block.column("schema"))
        if not mine.any():
            return self._own.decode(block)
        if mine.all():
            return self._dataframes.decode(block)
        found = []
        for decoder, places in ((self._own, np.flatnonzero(~mine)), (self._dataframes, np.flatnonzero(mine))):
            found.append(move(decoder.decode(block.take(pa.array(places))), places))
        return merge(found, self._schema)


def is_dataframe_row(names: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each record whether it is kept with the schema of a DataFrame's row."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        pc.starts_with(names, ROW_PREFIX).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    )
    return found


def convert_rows(found: pa.RecordBatch, fields: Mapping[str, ColumnType]) -> Decoded:
    """Columns matched by name and converted to the declared fields; a row that cannot be converted is rejected."""
    bad = np.zeros(found.num_rows, dtype=np.bool_)
    arrays, columns = [], []
    for name, type_ in fields.items():
        place = found.schema.get_field_index(name)
        column = found.column(place) if place >= 0 else pa.nulls(found.num_rows)
        column = _readable(plain(column), type_)
        converted = convert(column, type_)
        columns.append(column)
        arrays.append(converted.array)
        if converted.bad is not None:
            bad |= converted.bad
    schema = pa.schema([(name, arrow_type(type_)) for name, type_ in fields.items()])
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    rejected = tuple(_explain(columns, fields, int(row)) for row in np.flatnonzero(bad))
    taken = np.flatnonzero(~bad)
    return Decoded(
        rows=rows if not rejected else rows.filter(pa.array(~bad)),
        taken=taken,
        rejected=rejected,
        skipped=np.zeros(0, dtype=np.int64),
    )


def _readable(column: pa.Array, type_: ColumnType) -> pa.Array:
    """Texts that are to become something else must be texts; a String takes any bytes."""
    if not pa.types.is_string(column.type) or isinstance(bare(type_), String | FixedString):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts = column.view(pa.binary()).to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in texts])
    return column


def _explain(columns: Sequence[pa.Array], fields: Mapping[str, ColumnType], row: int) -> Rejection:
    for column, (name, type_) in zip(columns, fields.items(), strict=True):
        bad = convert(column.slice(row, 1), type_).bad
        if bad is not None and bad[0]:
            return find_problem(column, row, type_, name).at(row)
    return _NO_ROW.at(row)


def move(decoded: Decoded, places: Places) -> Decoded:
    """What was decoded of a part of a block, by its places in the whole."""
    return replace(
        decoded,
        taken=places[decoded.taken],
        skipped=places[decoded.skipped],
        rejected=tuple(replace(found, index=int(places[found.index])) for found in decoded.rejected),
        waiting=tuple(replace(found, index=int(places[found.index])) for found in decoded.waiting),
    )


def merge(found: Sequence[Decoded], schema: pa.Schema) -> Decoded:
    """Parts of one block, whole again and in its order."""
    parts = [
        part for part in found if part.rows.num_rows or part.rejected or part.waiting or len(part.skipped)
    ]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _nothing(schema)
    taken = np.concatenate([part.taken for part in parts])
    order = pa.array(np.argsort(taken, kind="stable"))
    names = [
        pa.nulls(part.rows.num_rows, pa.string()) if part.schemas is None else part.schemas for part in parts
    ]
    return Decoded(
        rows=pa.concat_batches([part.rows for part in parts]).take(order),
        taken=np.sort(taken),
        rejected=tuple(sorted((one for part in parts for one in part.rejected), key=lambda one: one.index)),
        skipped=np.sort(np.concatenate([part.skipped for part in parts])),
        waiting=tuple(sorted((one for part in parts for one in part.waiting), key=lambda one: one.index)),
        schemas=None if all(part.schemas is None for part in parts) else pa.concat_arrays(names).take(order),
    )


def _nothing(schema: pa.Schema) -> Decoded:
    none = np.zeros(0, dtype=np.int64)
    return Decoded(
        rows=pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema),
        taken=none,
        rejected=(),
        skipped=none,
    )
