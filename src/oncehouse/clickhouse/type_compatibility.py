"""Do values of one column type arrive unchanged in a column of another? Pure, over `column_types/types.py`."""

from __future__ import annotations

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import (
    Array,
    ColumnType,
    Date,
    DateTime,
    DateTime64,
    Decimal,
    Enum,
    Float,
    Integer,
    LowCardinality,
    Map,
    Nullable,
    String,
    Tuple,
    bare,
    is_nullable,
)
from oncehouse.errors import ConfigurationError


def compare_types(declared: str, actual: str) -> str | None:
    """Why values of the declared type may not arrive unchanged in a column of the actual one, or None.

    ClickHouse wraps integers that do not fit, without an error, so only equal types are let through;
    LowCardinality, the shown time zone and a wider Nullable change no value.
    """
    try:
        theirs = parse_type(actual)
    except ConfigurationError:
        return "oncehouse cannot send this type"
    ours = parse_type(declared)
    if _plain(ours) == _plain(theirs):
        return None
    if difference_is_null(declared, actual):
        return "a null has no place in the column"
    if not is_nullable(ours) and is_nullable(theirs) and _plain(bare(ours)) == _plain(bare(theirs)):
        return None
    return "values could change or be refused"


def difference_is_null(declared: str, actual: str) -> bool:
    """Whether the column could take every value if it were only Nullable."""
    try:
        ours, theirs = parse_type(declared), parse_type(actual)
    except ConfigurationError:
        return False
    return is_nullable(ours) and not is_nullable(theirs) and _plain(bare(ours)) == _plain(bare(theirs))


def widens(old: ColumnType, new: ColumnType) -> bool:  # noqa: C901, PLR0911, PLR0912 - one case a kind
    """Whether every value of the old type is the same value in the new one, and a column may be changed to it."""
    if is_nullable(old) and not is_nullable(new):
        return False
    one, other = _plain(bare(old)), _plain(bare(new))
    if one == other:
        return True
    match one, other:
        case Integer(), Integer():
            return other.least <= one.least and other.greatest >= one.greatest
        case Float(bits=32), Float(bits=64):
            return True
        case Decimal(), Decimal():
            return one.scale == other.scale and other.precision >= one.precision
        case Date(wide=False), Date(wide=True):
            return True
        case DateTime(), DateTime64():
            return True
        case DateTime64(), DateTime64():
            return other.precision >= one.precision
        case Enum(), Enum():
            return other.bits >= one.bits and set(one.members) <= set(other.members)
        case Enum(), String():
            return True
        case Array(item=inner), Array(item=outer):
            return widens(inner, outer)
        case Map(key=key, value=inner), Map(key=other_key, value=outer):
            return _plain(key) == _plain(other_key) and widens(inner, outer)
        case _:
            return False


def _plain(type_: ColumnType) -> ColumnType:  # noqa: PLR0911 - one case a type
    """The type without what changes no value: LowCardinality and time zones, at any depth."""
    match type_:
        case LowCardinality(inner=inner):
            return _plain(inner)
        case Nullable(inner=inner):
            return Nullable(inner=_plain(inner))
        case Array(item=item):
            return Array(item=_plain(item))
        case Map(key=key, value=value):
            return Map(key=_plain(key), value=_plain(value))
        case Tuple(fields=fields):
            return Tuple(fields=tuple((name, _plain(inner)) for name, inner in fields))
        case DateTime():
            return DateTime(zone=None)
        case DateTime64(precision=precision):
            return DateTime64(precision=precision, zone=None)
        case _:
            return type_
