"""Events as JSON, JSON Lines, delimited text or plain text: what every value looks like when it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from oncehouse.column_types import types as c
from oncehouse.config.formats import Csv
from oncehouse.devstack.chaos.generators.values import NANOSECONDS

Types = Mapping[str, c.ColumnType]
Values = Mapping[str, Any]


def format_scalar(type_: c.ColumnType, value: Any) -> str:  # noqa: PLR0911 - one case a type
    """A scalar as text."""
    match c.bare(type_):
        case c.Bool():
            return "true" if value else "false"
        case c.Float():
            return repr(value)
        case c.Decimal():
            return f"{value:f}"
        case c.DateTime():
            return format_timestamp(value, digits=0)
        case c.DateTime64(precision=precision):
            return format_timestamp(value, digits=precision)
        case c.Date():
            return str(value.isoformat())
        case _:
            return str(value)


def format_timestamp(nanoseconds: int, *, digits: int) -> str:
    seconds, rest = divmod(nanoseconds, NANOSECONDS)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{rest:09d}"[: len(whole) + digits + bool(digits)] + "Z"


def write_json(types: Types, values: Values) -> bytes:
    members = [f"{json.dumps(name)}:{_json(types[name], value)}" for name, value in values.items()]
    return ("{" + ",".join(members) + "}").encode()


def _json(type_: c.ColumnType, value: Any) -> str:
    if value is None:
        return "null"
    match c.bare(type_):
        case c.Array(item=item):
            return "[" + ",".join(_json(item, one) for one in value) + "]"
        case c.Map(key=key, value=inner):
            pairs = [
                f"{json.dumps(format_scalar(key, name))}:{_json(inner, one)}" for name, one in value.items()
            ]
            return "{" + ",".join(pairs) + "}"
        case c.Tuple(fields=fields):
            return write_json(dict(fields), value).decode()
        case c.Integer() | c.Float() | c.Bool():
            return format_scalar(type_, value)
        case _:
            return json.dumps(format_scalar(type_, value), ensure_ascii=False)


def write_lines(types: Types, events: Sequence[Values]) -> bytes:
    return b"\n".join(write_json(types, values) for values in events)


def write_csv(section: Csv, types: Types, events: Sequence[Values]) -> bytes:
    names = section.columns or tuple(types)
    lines = [section.delimiter.join(names)] if section.header else []
    for values in events:
        cells = (_cell(section, types[name], values[name]) if name in types else "" for name in names)
        lines.append(section.delimiter.join(cells))
    return "\n".join(lines).encode()


def _cell(section: Csv, type_: c.ColumnType, value: Any) -> str:
    if value is None:
        return section.null
    text = format_scalar(type_, value)
    if section.quote is None:
        # Nothing can stand around a delimiter then, so it cannot stand in a value.
        return text.replace(section.delimiter, " ")
    return section.quote + text.replace(section.quote, section.quote * 2) + section.quote


def write_text(types: Types, values: Values) -> bytes:
    """The one field is the whole text."""
    ((name, type_),) = types.items()
    return format_scalar(type_, values[name]).encode()
