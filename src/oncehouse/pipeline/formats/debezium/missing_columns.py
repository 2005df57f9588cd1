"""Defaults of column types, for columns of a deleted row that the database's log does not have."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.timestamps import Mask


def fill_defaults(array: pa.Array, type_: c.ColumnType, missing: Mask) -> pa.Array:
    """The array with the type's default in the rows that miss a value; Nullable ones stay null."""
    if c.is_nullable(type_) or not missing.any():
        return array
    default = pa.array([default_of(type_)], array.type)
    picked = np.where(missing, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, default]).take(pa.array(picked))


def default_of(type_: c.ColumnType) -> Any:  # noqa: PLR0911 - one case a type
    """What ClickHouse itself takes for a value that an insert leaves out."""
    match type_:
        case c.Nullable():
            return None
        case c.LowCardinality(inner=inner):
            return default_of(inner)
        case c.Array() | c.Map():
            return []
        case c.Tuple(fields=fields):
            return {name: default_of(inner) for name, inner in fields}
        case c.Enum(members=members):
            return members[0][0]
        case c.String():
            return ""
        case c.Bool():
            return False
        case _:
            return _zero(c.arrow_type(type_))


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    return decimal.Decimal(0) if pa.types.is_decimal(kind) else 0
