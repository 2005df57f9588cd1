"""Rows of columns, from a DataFrame or a file, in the shape in which records are read.

Columns are matched by name and fitted to the declared fields. A row that fits is kept as `row_bytes`; one that
does not becomes a dead letter whose value is the row as JSON text, so that a person can read and correct it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.column_types.types import ColumnType, arrow_type
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.rejection import RejectionCause
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.dataframe import convert_rows, schema_of
from oncehouse.pipeline.formats.row_codec import encode_rows


class FrameRows:
    """Makes blocks, and is the decoder that knows what the last of them holds."""

    def __init__(self, fields: Mapping[str, ColumnType]) -> None:
        self._fields = dict(fields)
        self._schema = pa.schema([(name, arrow_type(type_)) for name, type_ in fields.items()])
        self._kept: Schema = schema_of(fields)

    def make_block(
        self, found: pa.RecordBatch, *, source: int, offset: int, timestamp_us: int
    ) -> pa.RecordBatch:
        """A block of records; offsets count up from the first."""
        decoded = convert_rows(found, self._fields)
        rows = found.num_rows
        names = pa.repeat(pa.scalar(self._kept.schema), rows)
        block = pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(rows, source, dtype=np.int64)),
                pa.array(np.arange(offset, offset + rows, dtype=np.int64)),
                pa.array(np.zeros(rows, dtype=np.int32)),
                pa.array(np.full(rows, timestamp_us, dtype=np.int64)).view(pa.timestamp("us", tz="UTC")),
                pa.nulls(rows, pa.binary()),
                self._values(found, decoded),
                names,
            ],
            names=["source", "offset", "row", "timestamp", "key", "value", "schema"],
        )
        self._decoded = replace(decoded, schemas=names.slice(0, len(decoded.taken)))
        return block

    def reject_all(self, rows: int, problem: RejectionCause) -> None:
        """Let the next block be of lines that are no rows."""
        none = np.zeros(0, dtype=np.int64)
        empty = [pa.array([], field.type) for field in self._schema]
        self._decoded = Decoded(
            rows=pa.RecordBatch.from_arrays(empty, schema=self._schema),
            taken=none,
            rejected=tuple(problem.at(place) for place in range(rows)),
            skipped=none,
        )

    def decode(self, block: pa.RecordBatch) -> Decoded:
        del block  # it was made here
        return self._decoded

    def _values(self, found: pa.RecordBatch, decoded: Decoded) -> pa.Array:
        values = encode_rows(decoded.rows)
        if not decoded.rejected:
            return values
        texts = pa.array(
            [self._format_row(found, rejection.index) for rejection in decoded.rejected], pa.binary()
        )
        places = np.concatenate([decoded.taken, [rejection.index for rejection in decoded.rejected]])
        return pa.concat_arrays([values, texts]).take(pa.array(np.argsort(places, kind="stable")))

    def _format_row(self, found: pa.RecordBatch, row: int) -> bytes:
        known = [name for name in self._fields if found.schema.get_field_index(name) >= 0]
        cells = {name: plain(found.column(name)[row]) for name in known}
        return json.dumps(cells, ensure_ascii=False, allow_nan=False).encode()


def plain(scalar: pa.Scalar) -> Any:  # noqa: PLR0911 - one way out for each kind
    """A value as JSON; what JSON has no type for becomes text."""
    if not scalar.is_valid:
        return None
    if pa.types.is_map(scalar.type):
        return {str(plain(pair["key"])): plain(pair["value"]) for pair in scalar.values}
    if pa.types.is_struct(scalar.type):
        return {name: plain(scalar[name]) for name in scalar}
    if hasattr(scalar, "values") and pa.types.is_nested(scalar.type):
        return [plain(item) for item in scalar.values]
    if pa.types.is_temporal(scalar.type):
        return scalar.cast(pa.string()).as_py()
    if pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    return _plain_value(scalar.as_py())


def _plain_value(value: object) -> object:
    match value:
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode("ascii")
        case _:
            return str(value)
