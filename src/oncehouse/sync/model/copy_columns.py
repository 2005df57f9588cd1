"""Rows of a query as Arrow columns, without a Python value for any of them: PostgreSQL writes CSV, Arrow reads it.

The CSV comes as one value of one row, for a driver takes as long for an empty message as for a small row. What does not
fit its column is not judged here: None says that the rows have to be read one by one, which finds the value to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from oncehouse.column_types.types import (
    Bool,
    ColumnType,
    Date,
    DateTime,
    DateTime64,
    Decimal,
    Float,
    Integer,
    String,
    Uuid,
    arrow_type,
    bare,
    is_nullable,
)

WHOLE, TEXT, FLOAT, DATE, BOOL = pa.int64(), pa.string(), pa.float64(), pa.date32(), pa.bool_()
INSTANT = pa.timestamp("us", tz="UTC")
UUID_TEXT = pa.large_string()
"""What a column is read as; decimals have a type each."""

_ARROW_TYPES: dict[type[Any], pa.DataType] = {
    Bool: BOOL,
    Float: FLOAT,
    String: TEXT,
    Uuid: UUID_TEXT,
    Date: DATE,
    DateTime: INSTANT,
    DateTime64: INSTANT,
}
_LAST_SECOND = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class CopiedRows:
    block: pa.RecordBatch
    """In the order of the sync's columns."""
    keys: pa.Array
    """As `spell_key` spells them."""


def aggregate_as_csv(sql: str, kinds: Sequence[pa.DataType]) -> str:
    """A statement that gives the rows of this one as one CSV text."""
    names = [f"c{place}" for place in range(len(kinds))]
    # A null is empty, an empty text is quoted.
    cells = [
        f"coalesce('\"' || replace({name}, '\"', '\"\"') || '\"', '')"
        if kind == TEXT
        else f"coalesce({name}::text, '')"
        for name, kind in zip(names, kinds, strict=True)
    ]
    line = " || ',' || ".join(cells)
    # The query is the framework's own; nothing else is put into the text.
    return f"SELECT string_agg({line}, E'\\n') FROM ({sql}) AS oncehouse_rows ({', '.join(names)})"  # noqa: S608


def is_compatible(kind: pa.DataType, type_: ColumnType) -> bool:
    """Whether values of this kind can go into such a column without being looked at."""
    inner = bare(type_)
    match inner:
        case Integer(bits=bits):
            return bits <= 64 and kind in {WHOLE, BOOL}
        case Decimal():
            return bool(pa.types.is_decimal(kind))
        case _:
            return type(inner) in _ARROW_TYPES and bool(_ARROW_TYPES[type(inner)] == kind)


def read_csv(
    text: str | None, columns: Mapping[str, ColumnType], kinds: Sequence[pa.DataType], key: int
) -> CopiedRows | None:
    """`key` is the place of the column that is the key. None where a value does not fit."""
    try:
        table = _parse((text or "").encode(), kinds)
        arrays = [_convert(bare(type_), table[place]) for place, type_ in enumerate(columns.values())]
    except (pa.ArrowException, ValueError):
        return None
    if any(
        array.null_count and not is_nullable(type_)
        for array, type_ in zip(arrays, columns.values(), strict=True)
    ):
        return None
    keys = _format_keys(table[key])
    if pc.count_distinct(keys).as_py() != len(keys):
        return None
    return CopiedRows(block=pa.RecordBatch.from_arrays(arrays, names=list(columns)), keys=keys)


def _parse(text: bytes, kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    if not text:
        return [pa.array([], kind) for kind in kinds]
    names = [f"c{place}" for place in range(len(kinds))]
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=max(1 << 20, len(text) + 1)
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict(zip(names, kinds, strict=True)),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true"],
            false_values=["false"],
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def _convert(inner: ColumnType, array: pa.Array) -> pa.Array:
    match inner:
        case Uuid():
            values = [
                None if value is None else bytes.fromhex(value.replace("-", ""))
                for value in array.to_pylist()
            ]
            return pa.array(values, pa.binary(16))
        case DateTime():
            seconds = array.cast(arrow_type(inner), safe=False)
            found = pc.min_max(seconds.cast(pa.int64()))
            if seconds.null_count < len(seconds) and not (
                0 <= found["min"].as_py() <= found["max"].as_py() <= _LAST_SECOND
            ):
                raise ValueError("DateTime holds 1970 to 2106")
            return seconds
        case _:
            return array.cast(arrow_type(inner))


def _format_keys(key: pa.Array) -> pa.Array:
    mark = '"' if key.type == UUID_TEXT else ""
    return pc.binary_join_element_wise(f"[{mark}", key.cast(pa.string()), f"{mark}]", "")
