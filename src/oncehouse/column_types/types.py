"""Column types of ClickHouse as a frozen tree, and the Arrow type that carries each.

`parser.parse_type` reads a type as the pipeline file writes it, `clickhouse_name` returns its canonical name, and
`arrow_type` the Arrow type of a part's file, which ClickHouse reads as ArrowStream without loss.
Values are converted elsewhere: what JSON may stand for a type is decided in `pipeline/formats/json/decoder.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ColumnType:
    """Root of the tree; every kind of type is one of the classes below."""


@dataclass(frozen=True, kw_only=True)
class Integer(ColumnType):
    bits: int
    signed: bool

    @property
    def least(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def greatest(self) -> int:
        return (1 << (self.bits - self.signed)) - 1


@dataclass(frozen=True, kw_only=True)
class Float(ColumnType):
    bits: int
    textual: bool = False
    """Whether a writer of JSON may put a text, as some do for NaN and infinities; never declared."""


@dataclass(frozen=True, kw_only=True)
class Decimal(ColumnType):
    precision: int
    scale: int


@dataclass(frozen=True, kw_only=True)
class Bool(ColumnType):
    pass


@dataclass(frozen=True, kw_only=True)
class String(ColumnType):
    pass


@dataclass(frozen=True, kw_only=True)
class FixedString(ColumnType):
    length: int


@dataclass(frozen=True, kw_only=True)
class Date(ColumnType):
    """`Date` (1970-01-01 to 2149-06-06), or `Date32` (1900-01-01 to 2299-12-31) when wide."""

    wide: bool


@dataclass(frozen=True, kw_only=True)
class DateTime(ColumnType):
    """Whole seconds from 1970-01-01 to 2106-02-07; without a zone it is read and shown as UTC."""

    zone: str | None


@dataclass(frozen=True, kw_only=True)
class DateTime64(ColumnType):
    precision: int
    zone: str | None


@dataclass(frozen=True, kw_only=True)
class Uuid(ColumnType):
    pass


@dataclass(frozen=True, kw_only=True)
class Enum(ColumnType):
    bits: int
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Array(ColumnType):
    item: ColumnType


@dataclass(frozen=True, kw_only=True)
class Map(ColumnType):
    key: ColumnType
    value: ColumnType


@dataclass(frozen=True, kw_only=True)
class Tuple(ColumnType):
    fields: tuple[tuple[str, ColumnType], ...]


@dataclass(frozen=True, kw_only=True)
class Nullable(ColumnType):
    inner: ColumnType


@dataclass(frozen=True, kw_only=True)
class LowCardinality(ColumnType):
    inner: ColumnType


def bare(type_: ColumnType) -> ColumnType:
    """The type without Nullable and LowCardinality around it, which change no value."""
    while isinstance(type_, Nullable | LowCardinality):
        type_ = type_.inner
    return type_


def is_nullable(type_: ColumnType) -> bool:
    while isinstance(type_, LowCardinality):
        type_ = type_.inner
    return isinstance(type_, Nullable)


def find_path(path: str, types: Mapping[str, ColumnType]) -> tuple[tuple[str, ...], ColumnType] | None:
    """The steps to a field and its type: `user.id` is the field of that very name, else `id` in the Tuple `user`."""
    if path in types:
        return (path,), types[path]
    at = path.rfind(".")
    while at > 0:
        holder = bare(types[path[:at]]) if path[:at] in types else None
        if (
            isinstance(holder, Tuple)
            and (found := find_path(path[at + 1 :], dict(holder.fields))) is not None
        ):
            return (path[:at], *found[0]), found[1]
        at = path.rfind(".", 0, at)
    return None


def zone_of(type_: DateTime | DateTime64) -> str:
    return type_.zone or "UTC"


def unit_of(type_: DateTime64) -> str:
    """Arrow's coarsest unit that holds every tick of the type."""
    return ("s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns")[type_.precision]


def arrow_type(type_: ColumnType) -> pa.DataType:
    """The type in a part's file and on the wire, verified to enter ClickHouse without loss.

    UUIDs are their 16 bytes in the order of the text; integers beyond 64 bits are little-endian bytes.
    """
    import pyarrow as pa  # types are read without it

    match type_:
        case Nullable(inner=inner) | LowCardinality(inner=inner):
            return arrow_type(inner)
        case Array(item=item):
            return pa.list_(arrow_type(item))
        case Map(key=key, value=value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Tuple(fields=fields):
            return pa.struct([(name, arrow_type(inner)) for name, inner in fields])
        case _:
            return _scalar_arrow_type(type_)


def _scalar_arrow_type(type_: ColumnType) -> pa.DataType:  # noqa: C901, PLR0911 - one case a type
    import pyarrow as pa

    match type_:
        case Integer(bits=bits) if bits > 64:
            return pa.binary(bits // 8)
        case Integer(bits=bits, signed=signed):
            return pa.type_for_alias(f"{'' if signed else 'u'}int{bits}")
        case Float(bits=bits):
            return pa.float32() if bits == 32 else pa.float64()
        case Decimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        case Bool():
            return pa.bool_()
        case FixedString(length=length):
            return pa.binary(length)
        case Uuid():
            return pa.binary(16)
        case Date():
            return pa.date32()
        case DateTime():
            return pa.timestamp("s", tz=zone_of(type_))
        case DateTime64():
            return pa.timestamp(unit_of(type_), tz=zone_of(type_))
        case String() | Enum():
            return pa.string()
        case _:
            raise ConfigurationError(f"{type_!r} has no Arrow type; declare the field with a supported type")


def clickhouse_name(type_: ColumnType) -> str:
    """The canonical spelling, as ClickHouse's own `system.columns` shows it."""
    match type_:
        case Nullable(inner=inner):
            return f"Nullable({clickhouse_name(inner)})"
        case LowCardinality(inner=inner):
            return f"LowCardinality({clickhouse_name(inner)})"
        case Array(item=item):
            return f"Array({clickhouse_name(item)})"
        case Map(key=key, value=value):
            return f"Map({clickhouse_name(key)}, {clickhouse_name(value)})"
        case Tuple(fields=fields):
            inside = ", ".join(f"{_quote_name(name)} {clickhouse_name(inner)}" for name, inner in fields)
            return f"Tuple({inside})"
        case _:
            return _scalar_name(type_)


def _scalar_name(type_: ColumnType) -> str:  # noqa: C901, PLR0911 - one case a type
    match type_:
        case Integer(bits=bits, signed=signed):
            return f"{'' if signed else 'U'}Int{bits}"
        case Float(bits=bits):
            return f"Float{bits}"
        case Decimal(precision=precision, scale=scale):
            return f"Decimal({precision}, {scale})"
        case FixedString(length=length):
            return f"FixedString({length})"
        case Date(wide=wide):
            return "Date32" if wide else "Date"
        case DateTime(zone=zone):
            return f"DateTime({quote_text(zone)})" if zone else "DateTime"
        case DateTime64(precision=precision, zone=zone):
            return f"DateTime64({precision}, {quote_text(zone)})" if zone else f"DateTime64({precision})"
        case Enum(bits=bits, members=members):
            inside = ", ".join(f"{quote_text(name)} = {number}" for name, number in members)
            return f"Enum{bits}({inside})"
        case Uuid():
            return "UUID"
        case Bool() | String():
            return type(type_).__name__
        case _:
            raise ConfigurationError(f"{type_!r} has no name in ClickHouse")


def quote_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quote_name(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()
    return name if plain else "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def is_known_zone(zone: str) -> bool:
    if zone.startswith("right/"):
        return False  # they count leap seconds, and ClickHouse does not know them
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        return False
    return True
