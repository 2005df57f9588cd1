"""What readers that are not ours make of a message, in the words of the declared types.

Each reference answers with a row, with REJECTED where it is sure that there is none, or with UNSURE where it reads by
other rules than ours. What a differential test finds is kept as a file under `tests/data/decoders/`.
"""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from oncehouse.column_types import types as c

KEPT = Path(__file__).parents[1] / "data" / "decoders"


class Verdict:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


REJECTED, UNSURE = Verdict("rejected"), Verdict("unsure")


def kept_cases(name: str) -> list[dict[str, Any]]:
    """What earlier runs have found: a JSON object a line."""
    return [json.loads(line) for line in (KEPT / name).read_text().splitlines()]


def comparable(value: Any) -> Any:
    """NaN is itself, zeros have signs, and maps come as pairs."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else struct.pack(">d", value)
        case list() | tuple():
            return [comparable(item) for item in value]
        case dict():
            return {key: comparable(item) for key, item in value.items()}
        case _:
            return value


# -- JSON -------------------------------------------------------------------------------------------------


class Number(str):
    """A number as it stands in the message."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """An object, with repeated keys."""

    __slots__ = ()


class _NotJsonError(ValueError):
    pass


class _UnfitError(ValueError):
    pass


def _refuse_constant(name: str) -> Any:
    raise _NotJsonError(name)


def read_json(message: bytes, fields: dict[str, c.ColumnType]) -> Any:
    """By the standard library, and by orjson where both have to agree."""
    try:
        text = message.decode()
        value = json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
        )
    except _NotJsonError:
        return UNSURE  # NaN in an undeclared member is passed over
    except (ValueError, RecursionError):
        return REJECTED
    _agree(message, value)
    if not isinstance(value, _Pairs):
        return REJECTED
    try:
        return _object(value, fields)
    except _UnfitError:
        return REJECTED


def _agree(message: bytes, value: Any) -> None:
    """orjson takes fewer messages: no halves of surrogate pairs, no numbers beyond a float."""
    try:
        theirs = orjson.loads(message)
    except orjson.JSONDecodeError:
        return
    assert comparable(theirs) == comparable(_plain(value)), "the references differ"


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(item) for key, item in value}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, Number):
        return value
    if all(character not in value for character in ".eE") and -(1 << 63) <= int(value) < 1 << 64:
        return int(value)
    return float(value)


def _object(pairs: _Pairs, fields: dict[str, c.ColumnType]) -> dict[str, Any]:
    names = [name for name, _ in pairs if name in fields]
    if len(set(names)) < len(names):
        raise _UnfitError
    found = dict(pairs)
    return {name: _json_value(found.get(name), type_) for name, type_ in fields.items()}


def _json_value(value: Any, type_: c.ColumnType) -> Any:  # noqa: C901, PLR0911 - one case a type
    bare = c.bare(type_)
    if value is None:
        if isinstance(bare, c.Array | c.Map):
            return []
        if c.is_nullable(type_):
            return None
        raise _UnfitError
    number, text = isinstance(value, Number), type(value) is str
    match bare:
        case c.Tuple(fields=fields) if isinstance(value, _Pairs):
            return _object(value, dict(fields))
        case c.Map(key=key, value=inner) if isinstance(value, _Pairs):
            pairs = [(_json_value(name, key), _json_value(item, inner)) for name, item in value]
            if len({name for name, _ in pairs}) < len(pairs):
                raise _UnfitError
            return pairs
        case c.Array(item=item) if isinstance(value, list) and not isinstance(value, _Pairs):
            return [_json_value(one, item) for one in value]
        case c.Bool() if isinstance(value, bool):
            return value
        case c.String() if text and value.isprintable() | (value == value.encode(errors="replace").decode()):
            return value
        case c.Float(bits=bits) if number:
            return _float(value, bits)
        case c.Integer() if number or (text and bare.bits >= 64):
            return _integer(value, bare)
        case c.Decimal() if number or text:
            return _decimal(value, bare)
    raise _UnfitError


def _float(value: str, bits: int) -> float:
    found = float(value)
    if bits == 32:
        try:
            found = struct.unpack("f", struct.pack("f", found))[0]
        except OverflowError:
            raise _UnfitError from None
    if math.isinf(found):
        raise _UnfitError
    return found


def _integer(value: str, leaf: c.Integer) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise _UnfitError
    if not leaf.least <= int(value) <= leaf.greatest:
        raise _UnfitError
    return int(value)


def _decimal(value: str, leaf: c.Decimal) -> Decimal:
    try:
        found = Decimal(value)
    except ArithmeticError:
        raise _UnfitError from None
    if not found.is_finite():
        raise _UnfitError
    scaled = found.scaleb(leaf.scale)
    if scaled != scaled.to_integral_value() or abs(scaled) >= 10**leaf.precision:
        raise _UnfitError
    return found.quantize(Decimal(1).scaleb(-leaf.scale))
