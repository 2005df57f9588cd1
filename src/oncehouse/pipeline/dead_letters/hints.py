"""What a dead letter would have to look like: the field and value at fault, and the nearest form that fits.

Pure, slow and only a help: a hint is made for dead letters that are shown, from their own detail and
bytes. Where the bytes show nothing, their beginning is shown in hex. Nothing here is safe to print yet.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.rejection import Reason

_FIELD = re.compile(r"^(?:key )?field (?P<path>.+?): ")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_CHARACTER = re.compile(r"at character (\d+)")
_NUMBER_IN_TEXT = re.compile(r"-?[0-9][0-9_, ]*(?:\.[0-9]+)?")
_PREVIEW_BYTES = 24
_AROUND = 12
_LONGEST_VALUE = 60


def make_hint(
    reason: str, detail: str, value: bytes | None, fields: Mapping[str, c.ColumnType]
) -> str | None:
    """One line about the letter, or None when there is nothing to add to its detail."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return _hint_bytes(value, error.start)
    if reason == Reason.NOT_JSON and (found := _CHARACTER.search(detail)):
        return _hint_character(text, int(found[1]))
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None if text.isprintable() else _hint_bytes(value, 0)
    if not (found := _FIELD.match(detail)) or not isinstance(message, dict):
        return None
    return _hint_field(found["path"], message, fields)


def _hint_bytes(value: bytes, place: int) -> str:
    """Bytes in hex from a few before the place on."""
    start = max(0, place - 4)
    cut = value[start : start + _PREVIEW_BYTES]
    more = " …" if start + _PREVIEW_BYTES < len(value) else ""
    return f"bytes from {start} on: {cut.hex(' ')}{more}"


def _hint_character(text: str, number: int) -> str:
    place = number - 1
    before, after = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
    if not after:
        return f"the text ends after {before!r}"
    return f"after {before!r} comes {after!r}" if before else f"the text begins with {after!r}"


def _hint_field(path: str, message: dict[str, Any], fields: Mapping[str, c.ColumnType]) -> str | None:
    holder, name, found = _walk(path, message)
    if found:
        shown = f"{path} = {_show(holder[name])}"
        type_ = _type_at(path, fields)
        better = None if type_ is None else _nearest_form(holder[name], type_)
        return f"{shown}; {better} would fit" if better is not None else shown
    if isinstance(holder, dict) and isinstance(name, str):
        unread = [key for key in holder if key not in fields] if holder is message else list(holder)
        close = difflib.get_close_matches(name.lower(), [key.lower() for key in unread], n=1, cutoff=0.6)
        meant = next((key for key in unread if close and key.lower() == close[0]), None)
        if meant is not None:
            return f"there is a {meant!r} instead"
        return f"the fields there are: {', '.join(list(holder)[:10]) or 'none'}"
    return None


def _walk(path: str, message: Any) -> tuple[Any, str | int, bool]:
    """What holds the value at the path, under which name, and whether it is there at all."""
    holder, value, found = message, message, True
    name: str | int = ""
    steps: list[str | int] = [int(index) if index else key for index, key in _STEP.findall(path)]
    for step in steps:
        holder, name = value, step
        try:
            value = holder[step]
        except (KeyError, IndexError, TypeError):
            found = False
            break
    return holder, name, found


def _type_at(path: str, fields: Mapping[str, c.ColumnType]) -> c.ColumnType | None:
    """The declared type of a field; what lies deeper is told by the detail alone."""
    return fields.get(path)


def _nearest_form(value: Any, type_: c.ColumnType) -> str | None:  # noqa: PLR0911 - one case a type
    bare = c.bare(type_)
    match bare, value:
        case c.Integer(), bool():
            return str(int(value))
        case c.Integer(), float() if value == value // 1:
            return _in_range(int(value), bare)
        case c.Integer(), int():
            return f"a number from {bare.least} to {bare.greatest}"
        case c.Integer(), str() if (number := _number_in(value)) is not None and "." not in number:
            return _in_range(int(number), bare)
        case c.Float() | c.Decimal(), str() if (number := _number_in(value)) is not None:
            return number
        case c.Bool(), str() if value.lower() in {"true", "yes", "1", "false", "no", "0"}:
            return "true" if value.lower() in {"true", "yes", "1"} else "false"
        case c.Bool(), int() if value in {0, 1}:
            return "true" if value else "false"
        case c.String(), int() | float() | bool():
            return json.dumps(str(value))
        case c.Enum(members=members), str():
            names = [name for name, _ in members]
            close = difflib.get_close_matches(value, names, n=1)
            return json.dumps(close[0]) if close else f"one of {', '.join(names[:8])}"
        case _:
            return None


def _in_range(number: int, type_: c.Integer) -> str:
    if type_.least <= number <= type_.greatest:
        return str(number)
    return f"a number from {type_.least} to {type_.greatest}"


def _number_in(text: str) -> str | None:
    found = _NUMBER_IN_TEXT.search(text)
    return None if found is None else re.sub(r"[_, ]", "", found[0])


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
