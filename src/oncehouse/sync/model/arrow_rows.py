"""Python values of a model's columns as one Arrow record batch, by the ClickHouse type of each column.

A value that the type cannot hold is refused with the column's name; nothing is wrapped, cut or replaced by a default
(whole seconds are what a DateTime column is declared for). Most columns pass straight into Arrow, and only those that
do not are looked at value by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal as PythonDecimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types.types import (
    Array,
    Bool,
    ColumnType,
    Date,
    DateTime,
    DateTime64,
    Decimal,
    Enum,
    FixedString,
    Float,
    Integer,
    Map,
    String,
    Tuple,
    Uuid,
    arrow_type,
    bare,
    is_nullable,
    zone_of,
)
from oncehouse.errors import PermanentError

_Converter = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = (1 << 32) - 1
_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


def make_block(columns: Mapping[str, ColumnType], values: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """`values` are columns, in the order of `columns`."""
    arrays = [
        _make_array(name, type_, given) for (name, type_), given in zip(columns.items(), values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def default_value(type_: ColumnType) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case a type
    """What stands in a deleted row for a column that is no key."""
    if is_nullable(type_):
        return None
    match bare(type_):
        case Integer():
            return 0
        case Float():
            return 0.0
        case Decimal():
            return PythonDecimal(0)
        case Bool():
            return False
        case FixedString(length=length):
            return bytes(length)
        case Uuid():
            return UUID(int=0)
        case Date():
            return _EPOCH.date()
        case DateTime() | DateTime64():
            return _EPOCH
        case Enum(members=members):
            return members[0][0]
        case Array():
            return []
        case Map():
            return {}
        case Tuple(fields=fields):
            return {name: default_value(inner) for name, inner in fields}
        case _:
            return ""


def _make_array(name: str, type_: ColumnType, values: Sequence[Any]) -> pa.Array:
    inner = bare(type_)
    try:
        array = _convert(inner, values)
    except _REFUSED as error:
        raise PermanentError(
            f"column {name!r}: {_find_refused(inner, values)} does not fit its type ({error}). Declare a type that "
            "holds it, or let the serializer make one that fits."
        ) from error
    if array.null_count and not is_nullable(type_):
        raise PermanentError(
            f"column {name!r}: a row has no value, and its type is not Nullable. Declare it as Nullable(…), or let the "
            "serializer give a value."
        )
    return array


def _convert(inner: ColumnType, values: Sequence[Any]) -> pa.Array:
    target = arrow_type(inner)
    if isinstance(inner, String):
        return _convert_texts(values)
    convert = _converter(inner)
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    array = pa.array(values, target)
    if isinstance(inner, DateTime):
        _check_seconds(array)
    return array


def _check_seconds(array: pa.Array) -> None:
    """ClickHouse would put the nearest time that it has in place of one before 1970 or after 2106."""
    found = pc.min_max(array.cast(pa.int64()))
    if (
        array.null_count < len(array)
        and not 0 <= found["min"].as_py() <= found["max"].as_py() <= _LAST_SECOND
    ):
        raise ValueError("DateTime holds 1970 to 2106; DateTime64 holds more")


def _convert_texts(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, TypeError):
        # Bytes among them: ClickHouse's String takes any, Arrow's only UTF-8.
        return pa.array([None if value is None else _format(value) for value in values], pa.binary())


def _converter(inner: ColumnType) -> _Converter | None:  # noqa: C901, PLR0911 - one case a type
    """What makes a value of the type one that Arrow takes; None where Arrow takes it as it is."""
    match inner:
        case Integer(bits=bits, signed=signed) if bits > 64:
            return lambda value: int(value).to_bytes(bits // 8, "little", signed=signed)
        case Integer():
            return _whole
        case Uuid():
            return lambda value: (value if isinstance(value, UUID) else UUID(str(value))).bytes
        case FixedString(length=length):
            return lambda value: _format(value).ljust(length, b"\0")
        case Enum():
            return str
        case Decimal():
            return lambda value: value if isinstance(value, PythonDecimal) else PythonDecimal(str(value))
        case DateTime() | DateTime64() if zone_of(inner) != "UTC":
            zone = ZoneInfo(zone_of(inner))
            return lambda value: value if value.tzinfo else value.replace(tzinfo=zone)
        case Array(item=item):
            convert = _item_converter(item)
            return None if convert is None else lambda value: [convert(one) for one in value]
        case Map(key=key, value=value):
            return _map_converter(_item_converter(key), _item_converter(value))
        case Tuple(fields=fields):
            return _tuple_converter([(name, _item_converter(one)) for name, one in fields])
        case _:
            return None


def _map_converter(key: _Converter | None, value: _Converter | None) -> _Converter | None:
    if key is None and value is None:
        return None
    make_key, make_value = key or _keep, value or _keep
    return lambda pairs: [
        (make_key(name), make_value(one))
        for name, one in (pairs.items() if isinstance(pairs, dict) else pairs)
    ]


def _tuple_converter(members: Sequence[tuple[str, _Converter | None]]) -> _Converter | None:
    if all(make is None for _, make in members):
        return None
    makers = {name: make or _keep for name, make in members}

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: makers.get(name, _keep)(one) for name, one in value.items()}
        return tuple(make(one) for make, one in zip(makers.values(), value, strict=True))

    return convert


def _keep(value: Any) -> Any:
    return value


def _item_converter(item: ColumnType) -> _Converter | None:
    inner = bare(item)
    convert = (lambda value: _format(value).decode()) if isinstance(inner, String) else _converter(inner)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _whole(value: Any) -> Any:
    # Arrow would take the fraction off without a word; a truth value is a number to it as to Python.
    if isinstance(value, float | PythonDecimal) and value != int(value):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _format(value: Any) -> bytes:
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case str():
            return value.encode()
        case dict() | list() | tuple() | bool():
            return json.dumps(value, ensure_ascii=False, default=str).encode()
        case datetime() | date():
            return value.isoformat().encode()
        case _:
            return str(value).encode()


def _find_refused(inner: ColumnType, values: Sequence[Any]) -> str:
    """The first value that does not pass by itself, shortened."""
    for value in values:
        try:
            _convert(inner, [value])
        except _REFUSED:
            text = repr(value)
            return text if len(text) <= 80 else text[:80] + "…"
    return "a value"
