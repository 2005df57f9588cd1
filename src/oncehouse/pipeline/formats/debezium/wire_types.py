"""What stands in Debezium's JSON for a column: by the envelope's schema, or by the declared type alone.

A wire type says how the JSON is to be read and what it then means: days, ticks, base64, digits without their
point. With a schema all of that is known. Without one a number in a time column counts the column's own ticks,
a number in a date column days, and decimals are as the pipeline file says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from oncehouse.column_types import types as c

_INTEGERS = {"int8", "int16", "int32", "int64"}
_TEXT = c.Nullable(inner=c.String())
_LONG = c.Nullable(inner=c.Integer(bits=64, signed=True))
_DEEPEST = 20
WIDEST_SCALE = 1000
"""Far beyond every column's; without a bound, a message of few bytes would become a text of millions of zeros."""


class Meaning(StrEnum):
    ITSELF = "itself"
    DAYS = "days"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    BASE64 = "base64"
    BITS = "bits"
    DECIMAL = "decimal"
    VARIABLE_DECIMAL = "variable decimal"
    LIST = "list"
    STRUCT = "struct"
    MAP = "map"


@dataclass(frozen=True, kw_only=True)
class Wire:
    json: c.ColumnType
    """How the JSON reader takes it."""
    meaning: Meaning = Meaning.ITSELF
    scale: int | None = 0
    """Of a decimal; None where the schema gives none that counts digits."""
    inner: tuple[tuple[str, Wire], ...] = ()
    """Of a list its item, of a map its value, of a struct its members."""


_TICKS = {
    "io.debezium.time.Date": Meaning.DAYS,
    "org.apache.kafka.connect.data.Date": Meaning.DAYS,
    "io.debezium.time.Timestamp": Meaning.MILLISECONDS,
    "org.apache.kafka.connect.data.Timestamp": Meaning.MILLISECONDS,
    "io.debezium.time.MicroTimestamp": Meaning.MICROSECONDS,
    "io.debezium.time.NanoTimestamp": Meaning.NANOSECONDS,
}
_VARIABLE = c.Nullable(inner=c.Tuple(fields=(("scale", _LONG), ("value", _TEXT))))


def wire_of_schema(column: Mapping[str, Any], depth: int = 0) -> Wire:  # noqa: PLR0911 - one case a kind
    """How a column is written, by its description in the envelope's schema."""
    kind, name = column.get("type"), column.get("name")
    match kind:
        case str() if kind in _INTEGERS:
            return Wire(json=_LONG, meaning=_TICKS.get(str(name), Meaning.ITSELF))
        case "boolean":
            return Wire(json=c.Nullable(inner=c.Bool()))
        case "float" | "float32" | "double" | "float64":
            bits = 32 if kind in {"float", "float32"} else 64
            return Wire(json=c.Nullable(inner=c.Float(bits=bits, textual=True)))
        case "bytes":
            return _wire_of_bytes(str(name), column)
        case "struct" if name == "io.debezium.data.VariableScaleDecimal":
            return Wire(json=_VARIABLE, meaning=Meaning.VARIABLE_DECIMAL)
        case "struct" | "array" | "map" if depth < _DEEPEST:
            return _wire_of_nested(column, depth + 1)
        case _:
            return Wire(json=_TEXT)


def _wire_of_bytes(name: str, column: Mapping[str, Any]) -> Wire:
    if name == "org.apache.kafka.connect.data.Decimal":
        return Wire(json=_TEXT, meaning=Meaning.DECIMAL, scale=_scale_of(column.get("parameters")))
    return Wire(json=_TEXT, meaning=Meaning.BITS if name == "io.debezium.data.Bits" else Meaning.BASE64)


def _scale_of(parameters: object) -> int | None:
    text = str(parameters.get("scale")) if isinstance(parameters, dict) else ""
    if re.fullmatch(r"[+-]?[0-9]{1,9}", text) is None:
        return None
    return int(text) if abs(int(text)) <= WIDEST_SCALE else None


def _wire_of_nested(column: Mapping[str, Any], depth: int) -> Wire:
    match column:
        case {"type": "array", "items": dict(items)}:
            item = wire_of_schema(items, depth)
            return Wire(json=c.Array(item=item.json), meaning=Meaning.LIST, inner=(("", item),))
        case {"type": "map", "values": dict(values)}:
            value = wire_of_schema(values, depth)
            map_type = c.Map(key=c.String(), value=value.json)
            return Wire(json=map_type, meaning=Meaning.MAP, inner=(("", value),))
        case {"type": "struct", "fields": [dict(), *_] as fields}:
            members = tuple((str(one.get("field")), wire_of_schema(one, depth)) for one in fields)
            tuple_type = c.Tuple(fields=tuple((name, wire.json) for name, wire in members))
            return Wire(json=c.Nullable(inner=tuple_type), meaning=Meaning.STRUCT, inner=members)
        case _:
            return Wire(json=_TEXT)


def wire_of_declared(  # noqa: PLR0911 - one case a kind
    type_: c.ColumnType, *, precise_decimals: bool
) -> Wire:
    """How a column is taken to be written when nothing but the declared type is known."""
    match c.bare(type_):
        case c.Date():
            return Wire(json=_LONG, meaning=Meaning.DAYS)
        case c.Decimal(scale=scale) if precise_decimals:
            return Wire(json=_TEXT, meaning=Meaning.DECIMAL, scale=scale)
        case c.Array(item=item):
            inner = wire_of_declared(item, precise_decimals=precise_decimals)
            return Wire(json=c.Array(item=inner.json), meaning=Meaning.LIST, inner=(("", inner),))
        case c.Map() as map_type:
            return Wire(json=map_type)
        case c.Float(bits=bits):
            return Wire(json=c.Nullable(inner=c.Float(bits=bits, textual=True)))
        case c.Uuid():  # as the text that it is: an array's mark of an absent value is a UUID too
            return Wire(json=_TEXT)
        case bare:
            return Wire(json=c.Nullable(inner=bare))
