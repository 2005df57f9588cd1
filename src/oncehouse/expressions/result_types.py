"""Whether the type of an expression can be stored in its declared column, checked before any data moves.

Kinds are compared, not values: an integer may be too large for its column in one row, which is that row's
matter, but a floating number never belongs into a Decimal unless the expression says how to round it.
"""

from __future__ import annotations

from typing import Any

from duckdb.sqltypes import DuckDBPyType

from oncehouse.column_types import types as c

_INTEGERS = {
    "tinyint": 8,
    "smallint": 16,
    "integer": 32,
    "bigint": 64,
    "hugeint": 128,
    "utinyint": 8,
    "usmallint": 16,
    "uinteger": 32,
    "ubigint": 64,
    "uhugeint": 128,
}
_TIMES = {
    "timestamp",
    "timestamp_s",
    "timestamp_ms",
    "timestamp_ns",
    "timestamp with time zone",
    "timestamp_tz_ns",
    "timestamptz_ns",
}
_TEXTS = {"varchar", "enum"}


def find_mismatch(given: DuckDBPyType, declared: c.ColumnType) -> str | None:
    """Advice when values of the one type cannot become the other; None when they may."""
    if _may_hold(given, declared):
        return None
    name = c.clickhouse_name(declared)
    if _is_null(given):
        return f"is always null, the column is declared {name}; declare Nullable({name})"
    if isinstance(c.bare(declared), c.Bool):
        return f"gives {given}, not true or false; compare it with something, or write CAST(… AS BOOLEAN) around it"
    wanted = engine_name(c.bare(declared))
    problem = f"gives {given}, the column is declared {name}"
    return f"{problem}; write CAST(… AS {wanted}) around it" if wanted else f"{problem}; declare another type"


def _may_hold(given: DuckDBPyType, declared: c.ColumnType) -> bool:
    kind, inner = str(given.id).lower(), c.bare(declared)
    if _is_null(given):
        return c.is_nullable(declared) or isinstance(inner, c.Array | c.Map)
    match inner:
        case c.Array(item=item):
            return kind in {"list", "array"} and _may_hold(_child(given, "child"), item)
        case c.Map(key=key, value=value):
            return (
                kind == "map"
                and _may_hold(_child(given, "key"), key)
                and _may_hold(_child(given, "value"), value)
            )
        case c.Tuple(fields=fields):
            return kind == "struct" and _same_members(given, fields)
        case _:
            return _is_of_kind(kind, given, inner)


def _is_null(given: DuckDBPyType) -> bool:
    return str(given.id).strip('"').lower() in {"null", "sqlnull"}


def _is_of_kind(kind: str, given: DuckDBPyType, inner: c.ColumnType) -> bool:  # noqa: PLR0911 - one a kind
    match inner:
        case c.Integer():
            return kind in _INTEGERS or (kind == "decimal" and _scale(given) == 0)
        case c.Float(bits=bits):
            exact_bits = 16 if bits == 32 else 32
            return (
                kind == "float" or (kind == "double" and bits == 64) or _INTEGERS.get(kind, 999) <= exact_bits
            )
        case c.Decimal(scale=scale):
            return kind in _INTEGERS or (kind == "decimal" and _scale(given) <= scale)
        case c.Bool():
            return kind == "boolean"
        case c.String() | c.Enum():
            return kind in _TEXTS
        case c.FixedString():
            return kind in {"blob", *_TEXTS}
        case c.Date():
            return kind == "date"
        case c.DateTime() | c.DateTime64():
            return kind in _TIMES
        case c.Uuid():
            return kind == "uuid"
        case _:
            return False


def _same_members(given: DuckDBPyType, fields: tuple[tuple[str, c.ColumnType], ...]) -> bool:
    members: dict[str, Any] = dict(given.children)
    return [name for name, _ in fields] == list(members) and all(
        _may_hold(members[name], type_) for name, type_ in fields
    )


def _child(given: DuckDBPyType, name: str) -> DuckDBPyType:
    children: dict[str, Any] = dict(given.children)
    child: DuckDBPyType = children[name]
    return child


def _scale(given: DuckDBPyType) -> int:
    children: dict[str, Any] = dict(given.children)
    return int(children["scale"])


def engine_name(type_: c.ColumnType) -> str | None:  # noqa: PLR0911 - one a type
    """The engine's name of a scalar type, for advice; None where it has none."""
    match type_:
        case c.Integer(bits=bits, signed=signed) if bits <= 128:
            names = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT", 128: "HUGEINT"}
            return names[bits] if signed else f"U{names[bits]}"
        case c.Float(bits=bits):
            return "FLOAT" if bits == 32 else "DOUBLE"
        case c.Decimal(precision=precision, scale=scale) if precision <= 38:
            return f"DECIMAL({precision}, {scale})"
        case c.Bool():
            return "BOOLEAN"
        case c.String() | c.Enum():
            return "VARCHAR"
        case c.FixedString():
            return "BLOB"
        case c.Date():
            return "DATE"
        case c.DateTime() | c.DateTime64():
            return "TIMESTAMPTZ"
        case c.Uuid():
            return "UUID"
        case _:
            return None
