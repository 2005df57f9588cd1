"""Which ClickHouse type holds a column of a mapping, and what its values need. No value is rounded or cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any

from sqlalchemy import types
from sqlalchemy.dialects import postgresql

from oncehouse.errors import ConfigurationError

_MICROSECOND = timedelta(microseconds=1)

# The first that fits counts: a BigInteger is an Integer, an Enum a String.
_TYPES: tuple[tuple[Any, str], ...] = (
    (types.BigInteger, "Int64"),
    (types.SmallInteger, "Int16"),
    (types.Integer, "Int32"),
    (types.Boolean, "Bool"),
    (types.Float, "Float64"),
    (types.Uuid, "UUID"),
    (types.DateTime, "DateTime64(6, 'UTC')"),
    (types.Date, "Date32"),
    ((types.Interval, postgresql.INTERVAL), "Int64"),
    (
        (
            *(types.String, types.LargeBinary, types.JSON, types.Time),
            *(postgresql.INET, postgresql.CIDR, postgresql.MACADDR, postgresql.HSTORE),
        ),
        "String",
    ),
)


def choose_type(name: str, type_: Any, *, nullable: bool) -> str:
    """Raises ConfigurationError where the user has to say it."""
    inner = _choose_inner(name, type_)
    return f"Nullable({inner})" if nullable and not inner.startswith("Array(") else inner


def choose_conversion(type_: Any) -> Callable[[Any], Any] | None:
    """What makes a value one that the ClickHouse type takes; None where it does already."""
    bare = _bare(type_)
    if isinstance(bare, types.JSON | postgresql.HSTORE):
        return lambda value: json.dumps(value, ensure_ascii=False)
    if isinstance(bare, types.Interval | postgresql.INTERVAL):
        return lambda value: int(value // _MICROSECOND)
    if isinstance(bare, types.Enum) and bare.enum_class is not None:
        texts = dict(zip(bare.enum_class, bare.enums, strict=False))
        return lambda value: texts.get(value, value) if isinstance(value, Enum) else value
    return None


def _choose_inner(name: str, type_: Any) -> str:
    bare = _bare(type_)
    match bare:
        case types.ARRAY():
            if (bare.dimensions or 1) == 1:
                return f"Array({_choose_inner(name, bare.item_type)})"
        case types.PickleType():
            pass
        case types.Numeric() if not isinstance(bare, types.Float):
            if bare.precision is not None:
                return f"Decimal({bare.precision}, {bare.scale or 0})"
        case _:
            for known, chosen in _TYPES:
                if isinstance(bare, known):
                    return chosen
    raise ConfigurationError(
        f"{name} is a {type_!r}, for which no ClickHouse type is known. Name one in `columns`, such as "
        f"columns = {{{name.rpartition('.')[2]!r}: 'String'}}, or leave it out: {{{name.rpartition('.')[2]!r}: None}}."
    )


def _bare(type_: Any) -> Any:
    while isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.PickleType):
        if isinstance(type_, types.Interval):
            break
        type_ = type_.impl_instance
    return type_
