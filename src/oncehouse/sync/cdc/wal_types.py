"""Which columns of PostgreSQL the log brings into which ClickHouse types with the very values that a round would send.

Pure. A pair that is not known to be the same is refused: a table would hold one spelling from the rounds and another
from the log.
"""

from __future__ import annotations

from oncehouse.column_types.types import (
    Array,
    Bool,
    ColumnType,
    Date,
    DateTime,
    DateTime64,
    Decimal,
    Enum,
    Float,
    Integer,
    String,
    Uuid,
    bare,
    clickhouse_name,
    is_nullable,
)
from oncehouse.messaging.cdc.column_types import PostgresColumn

_INTEGERS = {"int2", "int4", "int8", "oid"}
# JSON stands as the database spells it.
_TEXTS = {"text", "varchar", "bpchar", "citext", "name", "json", "jsonb", "inet"}
_HEADER_BYTES = 4
_DEFAULT_TICKS = 6
_ADVICE = {
    "interval": "the log has a text, a round counts microseconds",
    "time": "the log counts microseconds, a round writes a text",
    "hstore": "the log and a round spell it differently",
    "numeric": "declare a Decimal that holds all its digits",
    "float4": "declare Float32",
    "timestamp": "declare DateTime64(6)",
    "timestamptz": "declare DateTime64(6)",
}


def explain_mismatch(column: PostgresColumn, type_: ColumnType) -> str | None:
    """Why the log cannot fill a column of this type; None where it can."""
    if not _can_fill(column, bare(type_)):
        name = f"{column.type_name}{'[]' if column.is_array else ''}"
        advice = _ADVICE.get(column.type_name, "declare the type that is derived without an override")
        return f"{name} of the database's log cannot fill {clickhouse_name(type_)} ({advice})"
    if not column.not_null and not column.is_array and not is_nullable(type_):
        return f"it may be null in the database, declare Nullable({clickhouse_name(type_)})"
    return None


def _can_fill(column: PostgresColumn, inner: ColumnType) -> bool:
    if not column.is_array:
        return _can_fill_element(column, inner)
    return isinstance(inner, Array) and _can_fill_element(column, bare(inner.item))


def _can_fill_element(column: PostgresColumn, inner: ColumnType) -> bool:  # noqa: PLR0911 - one case a type
    if column.is_enum or column.type_name in _TEXTS:
        return isinstance(inner, String) or (
            isinstance(inner, Enum) and not column.type_name.startswith("json")
        )
    match column.type_name:
        case name if name in _INTEGERS:
            return isinstance(inner, Integer)
        case "float4" | "float8":
            return isinstance(inner, Float) and inner.bits == (32 if column.type_name == "float4" else 64)
        case "bool":
            return isinstance(inner, Bool)
        case "uuid":
            return isinstance(inner, Uuid)
        case "bytea":
            return isinstance(inner, String)
        case "date":
            return isinstance(inner, Date)
        case "timestamp" | "timestamptz":
            return _holds_ticks(column, inner)
        case "numeric":
            return isinstance(inner, Decimal) and inner.scale >= _scale(column)
        case _:
            return False


def _holds_ticks(column: PostgresColumn, inner: ColumnType) -> bool:
    ticks = column.modifier if column.modifier >= 0 else _DEFAULT_TICKS
    if isinstance(inner, DateTime):
        return ticks == 0
    return isinstance(inner, DateTime64) and inner.precision >= ticks


def _scale(column: PostgresColumn) -> int:
    """Digits behind the point; of a numeric without any, what a row has is judged when it comes."""
    if column.modifier < _HEADER_BYTES:
        return 0
    return ((column.modifier - _HEADER_BYTES & 0x7FF) ^ 0x400) - 0x400
