"""From what Arrow's JSON reader yields to a column of the declared type, a whole column at a time.

`reader_type` says how the reader is to take a field; `convert_column` makes the declared type of it and marks the
rows that cannot be it. Some types may come in two ways (a 64-bit integer as number or text, a decimal with more zeros
than its type has digits): the paths that come the second way are a `ReadVariant`, and a message has exactly one. Why a
row is bad is in `message_errors.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.convert import Converted, convert, rows_of
from oncehouse.pipeline.convert.decimals import MOST_DIGITS
from oncehouse.pipeline.convert.masks import Mask, either

Path = tuple[str, ...]
ReadVariant = frozenset[Path]
ITEM = "[]"
KEY = "key"
VALUE = "value"

_WIDE_DECIMAL = pa.decimal256(MOST_DIGITS, 0)


def reader_type(type_: c.ColumnType, path: Path, variant: ReadVariant) -> pa.DataType:
    match c.bare(type_):
        case c.Array(item=item):
            return pa.list_(reader_type(item, (*path, ITEM), variant))
        case c.Map(value=value):
            inner = reader_type(value, (*path, ITEM, VALUE), variant)
            return pa.list_(pa.struct([(KEY, pa.string()), (VALUE, inner)]))
        case c.Tuple(fields=fields):
            return pa.struct([(name, reader_type(inner, (*path, name), variant)) for name, inner in fields])
        case leaf:
            first, second = leaf_types(leaf)
            return second if second is not None and path in variant else first


def leaf_types(leaf: c.ColumnType) -> tuple[pa.DataType, pa.DataType | None]:  # noqa: PLR0911 - one case a type
    """How a scalar is read: the usual way, and the second way when there is one."""
    match leaf:
        case c.Integer(bits=64, signed=signed):
            return (pa.int64() if signed else pa.uint64()), pa.string()
        case c.Integer(bits=bits):
            return (pa.int64() if bits < 64 else _WIDE_DECIMAL), None
        case c.DateTime() | c.DateTime64():
            return pa.string(), pa.int64()
        case c.Float(textual=True):
            return c.arrow_type(leaf), pa.string()
        case c.Decimal(precision=precision, scale=scale) if 18 < precision <= 38:
            # Wide enough that what has wrapped around is surely seen, see `arrow_limits.py`.
            return pa.decimal256(MOST_DIGITS, scale), None
        case c.Decimal(precision=precision, scale=scale) if precision < MOST_DIGITS:
            return c.arrow_type(leaf), pa.decimal256(MOST_DIGITS, scale)
        case c.Float() | c.Bool() | c.Decimal():
            return c.arrow_type(leaf), None
        case _:
            return pa.string(), None


def leaves(type_: c.ColumnType) -> Iterator[c.ColumnType]:
    """The scalars that a value of this type may hold; keys of maps are texts to the reader."""
    match c.bare(type_):
        case c.Array(item=inner) | c.Map(value=inner):
            yield from leaves(inner)
        case c.Tuple(fields=fields):
            for _, inner in fields:
                yield from leaves(inner)
        case leaf:
            yield leaf


def convert_column(array: pa.Array, type_: c.ColumnType) -> Converted:
    """The declared type of what the reader gave. It also takes NaN and Infinity, which are not JSON."""
    converted = convert(array, type_)
    endless = _not_finite(converted.array, type_)
    return converted if endless is None else Converted(converted.array, either(converted.bad, endless))


def _not_finite(array: pa.Array, type_: c.ColumnType) -> Mask | None:
    match c.bare(type_):
        case c.Float(textual=False):
            if pc.all(pc.is_finite(array)).as_py() is not False:
                return None
            endless: Mask = ~pc.fill_null(pc.is_finite(array), True).to_numpy(zero_copy_only=False)
            return endless
        case c.Array(item=item):
            return rows_of(_not_finite(array.values, item), array.offsets.to_numpy())
        case c.Map(value=value):
            return rows_of(_not_finite(array.items, value), array.offsets.to_numpy())
        case c.Tuple(fields=fields):
            found: Mask | None = None
            for position, (_, inner) in enumerate(fields):
                found = either(found, _not_finite(array.field(position), inner))
            return found
        case _:
            return None
