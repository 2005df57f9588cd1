"""The ClickHouse type for a column of PostgreSQL, as Debezium writes it with the settings of `connector_config`.

No value is rounded or truncated: where no ClickHouse type holds all values, the type is String. A column that Debezium
leaves out has no type. Pure: `source_tables` reads the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

_SIMPLE = {
    "int2": "Int16",
    "int4": "Int32",
    "int8": "Int64",
    "oid": "Int64",
    "float4": "Float32",
    "float8": "Float64",
    "bool": "Bool",
    "uuid": "UUID",
    "date": "Date32",
    "timestamptz": "DateTime64(6, 'UTC')",
    # The unit: microseconds, or milliseconds if the column has no more digits.
    "time": "Int64",
    "money": "Decimal(19, 2)",
}
_TEXTS = {
    *(
        "text",
        "varchar",
        "bpchar",
        "char",
        "name",
        "citext",
        "json",
        "jsonb",
        "xml",
        "bytea",
        "hstore",
        "ltree",
    ),
    *("inet", "cidr", "macaddr", "macaddr8", "timetz", "interval"),
    *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
}
_HEADER_BYTES = 4
_WIDEST_DECIMAL = 76
_DEFAULT_TICKS = 6


@dataclass(frozen=True, kw_only=True)
class PostgresColumn:
    name: str
    type_name: str
    """PostgreSQL's own name (`int4`, `timestamptz`); of an array its element's, of a domain its base's."""
    modifier: int = -1
    """The type modifier (the numbers in parentheses) as PostgreSQL stores it; -1 for none."""
    not_null: bool = False
    is_enum: bool = False
    is_array: bool = False
    may_be_toasted: bool = False
    """Whether large values are stored outside the row."""


def choose_type(column: PostgresColumn) -> str | None:
    """The type of the column in ClickHouse; None if Debezium leaves it out."""
    inner = _choose_scalar(column)
    if inner is None:
        return None
    if column.is_array:
        # ClickHouse has no nullable arrays: null becomes an empty array.
        return f"Array(Nullable({inner}))"
    if column.is_enum:
        # No Enum: labels can be added in PostgreSQL at any time, and rows with a new one must not be refused.
        return "LowCardinality(String)" if column.not_null else "LowCardinality(Nullable(String))"
    return inner if column.not_null else f"Nullable({inner})"


def _choose_scalar(column: PostgresColumn) -> str | None:
    if column.is_enum or column.type_name in _TEXTS:
        return "String"
    match column.type_name:
        case "numeric":
            return _choose_decimal(column.modifier)
        case "timestamp":
            ticks = column.modifier if column.modifier >= 0 else _DEFAULT_TICKS
            return f"DateTime64({ticks}, 'UTC')"
        case "bit" if column.modifier == 1:
            return "Bool"
        case "bit" | "varbit":
            return "String"
        case name:
            return _SIMPLE.get(name)


def _choose_decimal(modifier: int) -> str:
    if modifier < _HEADER_BYTES:
        return "String"
    packed = modifier - _HEADER_BYTES
    # Eleven bits with a sign: the scale may be negative, or greater than the precision.
    precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
    digits = max(precision, scale)
    return f"Decimal({digits}, {scale})" if scale >= 0 and digits <= _WIDEST_DECIMAL else "String"
