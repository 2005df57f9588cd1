"""Do values of one column type arrive unchanged in a column of another? Pure, over `columns.py`'s trees."""

from __future__ import annotations

from oncehouse.columns import (
    Array,
    ColumnType,
    DateTime,
    DateTime64,
    LowCardinality,
    Map,
    Nullable,
    Tuple,
    bare,
    is_nullable,
    parse_type,
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
