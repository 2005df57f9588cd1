"""Columns of texts into the declared types, for formats in which every value is written as text.

The null text stands for null in Nullable fields. In others it is the text itself if the type is a text, and a
missing value if not; a quoted value is always itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.convert.rejection import RejectionCause
from oncehouse.pipeline.convert.value_errors import find_problem
from oncehouse.pipeline.formats.base import Places
from oncehouse.pipeline.formats.result_builder import ResultBuilder


class TextColumn(NamedTuple):
    text: pa.Array
    literal: Mask | None = None
    """Values that stand in quotes."""


def convert_texts(
    builder: ResultBuilder,
    places: Places,
    columns: Sequence[TextColumn],
    fields: Mapping[str, c.ColumnType],
    *,
    null: str,
) -> None:
    """Keep the rows that can be converted, reject the others with their first field that cannot."""
    problems: dict[int, RejectionCause] = {}
    arrays = []
    for column, (name, type_) in zip(columns, fields.items(), strict=True):
        texts = _with_nulls(column, type_, null)
        converted = convert(texts, type_)
        arrays.append(converted.array)
        if converted.bad is not None:
            for row in np.flatnonzero(converted.bad).tolist():
                if row not in problems:
                    problems[row] = find_problem(texts, row, type_, f"field {name}")
    rows = pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
    )
    if problems:
        bad = np.array(sorted(problems), dtype=np.int64)
        builder.reject(places[bad], lambda number: problems[int(bad[number])])
        good = np.ones(len(places), dtype=np.bool_)
        good[bad] = False
        rows, places = rows.filter(pa.array(good)), places[good]
    builder.keep(places, rows)


def _with_nulls(column: TextColumn, type_: c.ColumnType, null: str) -> pa.Array:
    texts = column.text
    if not c.is_nullable(type_) and isinstance(c.bare(type_), c.String | c.FixedString):
        return texts
    missing = pc.equal(texts, null)
    if column.literal is not None and column.literal.any():
        missing = pc.and_(missing, pa.array(~column.literal))
    return pc.if_else(missing, pa.scalar(None, pa.string()), texts)
