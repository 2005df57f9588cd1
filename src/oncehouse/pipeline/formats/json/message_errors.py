"""Why a JSON message is rejected, in the words of its dead letter; and in which variant a message is written.

Slow and exact, one message at a time: only messages of a block that did not parse come here, and messages
that are rejected. It explains; the verdict itself is always that of the block-wise reader, so that a row
never depends on its neighbours. Why a value of another format is rejected is in `convert/value_errors.py`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.decimals import MOST_DIGITS, exact_decimal
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.convert.times import parse_times
from oncehouse.pipeline.formats.json.arrow_limits import count_digits, find_excess
from oncehouse.pipeline.formats.json.columns import ITEM, VALUE, Path, ReadVariant, convert_column, leaf_types

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_DIGITS = re.compile(r"-?[0-9]+")
_SHORT_INFINITY = re.compile(r"\bInf\b")
_GREATEST_FLOAT32 = 3.4028235677973366e38
_GREATEST_FLOAT64 = 1.7976931348623157e308
_GREATEST_READ = 10**MOST_DIGITS - 1
_KINDS = {bool: "a boolean", str: "a text", list: "an array"}


class RawNumber(str):
    """A number as it was written."""

    __slots__ = ()


class Constant(str):
    """NaN or Infinity, which are not JSON."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object with its keys as they came, repeated ones included."""

    __slots__ = ()


class Explanation(NamedTuple):
    variant: ReadVariant
    problem: RejectionCause | None


_DECODER = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_float=RawNumber, parse_int=RawNumber, parse_constant=Constant
)


def load(text: str) -> Any:
    return _DECODER.decode(text)


def explain(message: bytes, fields: Mapping[str, c.ColumnType], *, fully: bool) -> Explanation:
    """The message's variant and its first problem; `fully` also looks into the texts of scalars."""
    text = message.decode()
    try:
        value = load(text)
    except (ValueError, RecursionError):
        variant = _variant_of_lenient(text, fields)
        return Explanation(variant, _explain_syntax(text))
    if not isinstance(value, Pairs):
        return Explanation(
            ReadVariant(),
            RejectionCause(reason=Reason.NOT_AN_OBJECT, detail=f"{_kind(value)}, not an object"),
        )
    walk = _MessageWalker(fully=fully)
    walk.check_object(value, fields, (), "")
    return Explanation(ReadVariant(walk.second_way), walk.problem)


def find_far_exponent(message: bytes, fields: Mapping[str, c.ColumnType]) -> RejectionCause | None:
    """A number among the declared decimals that the reader must not meet, for it would end the process."""
    text = message.decode()
    try:
        value = load(text)
    except (ValueError, RecursionError):
        return _explain_syntax(text)
    walk = _MessageWalker(fully=False)
    if isinstance(value, Pairs):
        walk.check_object(value, fields, (), "")
    return walk.far_exponent


def _variant_of_lenient(text: str, fields: Mapping[str, c.ColumnType]) -> ReadVariant:
    """The block-wise reader also takes `Inf` and `-NaN`, so a message with them has a variant too."""
    try:
        value = load(_SHORT_INFINITY.sub("Infinity", text).replace("-NaN", "NaN"))
    except (ValueError, RecursionError):
        return ReadVariant()
    walk = _MessageWalker(fully=False)
    if isinstance(value, Pairs):
        walk.check_object(value, fields, (), "")
    return ReadVariant(walk.second_way)


def _explain_syntax(text: str) -> RejectionCause:
    try:
        _, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return RejectionCause(reason=Reason.NOT_JSON, detail=f"{error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError):
        return RejectionCause(reason=Reason.NOT_JSON, detail="not readable as JSON")
    if text[end:].lstrip(" \t\r\n").startswith("{"):
        return RejectionCause(
            reason=Reason.SEVERAL_OBJECTS, detail=f"another object begins after character {end}"
        )
    return RejectionCause(reason=Reason.NOT_JSON, detail=f"more text after the value, at character {end + 1}")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, RawNumber | Constant):
        return "a number"
    return "an object" if isinstance(value, Pairs) else _KINDS[type(value)]


class _MessageWalker:
    def __init__(self, *, fully: bool) -> None:
        self.fully = fully
        self.second_way: set[Path] = set()
        self.problem: RejectionCause | None = None
        self.far_exponent: RejectionCause | None = None

    def note(self, reason: Reason, where: str, what: str) -> None:
        if self.problem is None:
            self.problem = RejectionCause(reason=reason, detail=f"{where}: {what}")

    def check_object(self, pairs: Pairs, fields: Mapping[str, c.ColumnType], path: Path, where: str) -> None:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found and name in fields:
                self.note(Reason.DUPLICATE_KEY, _below(where, name), "the key stands twice")
            found[name] = value
        for name, type_ in fields.items():
            self.check_value(found.get(name), type_, (*path, name), _below(where, name))

    def check_value(self, value: Any, type_: c.ColumnType, path: Path, where: str) -> None:
        bare = c.bare(type_)
        if value is None:
            if not c.is_nullable(type_) and not isinstance(bare, c.Array | c.Map):
                self.note(
                    Reason.MISSING_FIELD, where, f"missing or null, {c.clickhouse_name(type_)} needs a value"
                )
            return
        match bare, value:
            case c.Array(item=item), list() if not isinstance(value, Pairs):
                for position, inner in enumerate(value):
                    self.check_value(inner, item, (*path, ITEM), f"{where}[{position}]")
            case c.Map() as map_type, Pairs():
                self._check_map(value, map_type, path, where)
            case c.Tuple(fields=fields), Pairs():
                self.check_object(value, dict(fields), path, where)
            case ((c.Array() | c.Map() | c.Tuple()), _):
                self._note_kind(value, type_, where)
            case _:
                self._check_leaf(value, bare, path, where)

    def _check_map(self, pairs: Pairs, map_type: c.Map, path: Path, where: str) -> None:
        seen: set[str] = set()
        for key, value in pairs:
            inside = _below(where, key)
            if key in seen:
                self.note(Reason.DUPLICATE_KEY, inside, "the key stands twice")
            seen.add(key)
            self._check_leaf(key, c.bare(map_type.key), path, f"key {inside}")
            self.check_value(value, map_type.value, (*path, ITEM, VALUE), inside)

    def _note_kind(self, value: Any, type_: c.ColumnType, where: str) -> None:
        self.note(Reason.WRONG_TYPE, where, f"{_kind(value)} cannot be {c.clickhouse_name(type_)}")

    def _check_leaf(self, value: Any, leaf: c.ColumnType, path: Path, where: str) -> None:
        if isinstance(value, Constant):
            self.note(Reason.NOT_JSON, where, f"{value} is not JSON")
            return
        usual, second = leaf_types(leaf)
        is_number, is_text = isinstance(value, RawNumber), type(value) is str
        is_decimal = pa.types.is_decimal(usual) and (is_number or is_text)
        if is_decimal and (excess := find_excess(value, usual)) is not None:
            self.far_exponent = RejectionCause(reason=Reason.OUT_OF_RANGE, detail=f"{where}: {excess}")
        if second is not None and _comes_second(value, usual, is_number=is_number, is_text=is_text):
            self.second_way.add(path)
        if is_text and has_half_surrogate(value):
            self.note(Reason.NOT_JSON, where, "half of a surrogate pair")
            return
        reason = _check_scalar(value, leaf, is_number=is_number, is_text=is_text)
        if reason is None and self.fully:
            reason = _check_by_converting(value, leaf)
        if reason is Reason.WRONG_TYPE:
            self._note_kind(value, leaf, where)
        elif reason is not None:
            self.note(reason, where, f"outside of {c.clickhouse_name(leaf)}")
        elif is_decimal and count_digits(value) > MOST_DIGITS:
            self.note(Reason.OUT_OF_RANGE, where, f"more than {MOST_DIGITS} digits as it is written")


def _comes_second(value: Any, usual: pa.DataType, *, is_number: bool, is_text: bool) -> bool:
    """Whether this value is read the second way of its type, where it has two (`leaf_types`)."""
    if pa.types.is_decimal(usual):
        return (is_number or is_text) and count_digits(value) > usual.precision
    return is_number if pa.types.is_string(usual) else is_text


def has_half_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else f"field {name}"


def _check_scalar(value: Any, leaf: c.ColumnType, *, is_number: bool, is_text: bool) -> Reason | None:
    """The problem of one scalar as far as its kind and its digits show."""
    match leaf:
        case c.Integer():
            return _check_integer(value, leaf, is_number=is_number, is_text=is_text)
        case c.Float(bits=bits) if is_number:
            greatest = _GREATEST_FLOAT32 if bits == 32 else _GREATEST_FLOAT64
            return Reason.OUT_OF_RANGE if abs(float(value)) > greatest else None
        case c.Float(textual=True) if is_text:
            matches = value in _NOT_NUMBERS
        case c.Decimal() if is_number or is_text:
            return _check_decimal(value, leaf)
        case c.Bool():
            matches = isinstance(value, bool)
        case c.DateTime() | c.DateTime64() if is_number:
            matches = _DIGITS.fullmatch(value) is not None
        case c.Float() | c.Decimal():
            matches = False
        case _:
            matches = is_text
    return None if matches else Reason.WRONG_TYPE


def _check_integer(value: Any, leaf: c.Integer, *, is_number: bool, is_text: bool) -> Reason | None:
    if not is_number and not (is_text and leaf.bits >= 64):
        return Reason.WRONG_TYPE
    if _DIGITS.fullmatch(value) is None:
        return (
            _check_decimal(value, c.Decimal(precision=MOST_DIGITS, scale=0))
            if leaf.bits > 64
            else Reason.WRONG_TYPE
        )
    if len(value) > 80:
        return Reason.OUT_OF_RANGE
    number = int(value)
    inside = leaf.least <= number <= leaf.greatest and abs(number) <= _GREATEST_READ
    return None if inside else Reason.OUT_OF_RANGE


def _check_decimal(value: Any, leaf: c.Decimal) -> Reason | None:
    found = exact_decimal(value, leaf)
    return found if isinstance(found, Reason) else None


def _check_by_converting(value: Any, leaf: c.ColumnType) -> Reason | None:
    """The same conversion as the block's, on this one value."""
    usual, second = leaf_types(leaf)
    if type(value) is str and pa.types.is_string(usual):
        single = pa.array([value], pa.string())
    elif isinstance(value, RawNumber) and second == pa.int64():
        if not -(1 << 63) <= int(value) < 1 << 63:
            return Reason.OUT_OF_RANGE
        single = pa.array([int(value)], pa.int64())
    else:
        return None
    bad = convert_column(single, leaf).bad
    if bad is None or not bad.any():
        return None
    if isinstance(leaf, c.DateTime | c.DateTime64) and pa.types.is_string(single.type):
        _, unreadable = parse_times(single, unit="s", zone="UTC")
        return Reason.WRONG_TYPE if unreadable.any() else Reason.OUT_OF_RANGE
    if isinstance(leaf, c.Date):
        return Reason.OUT_OF_RANGE if _is_date(value) else Reason.WRONG_TYPE
    return Reason.WRONG_TYPE if isinstance(leaf, c.Uuid) else Reason.OUT_OF_RANGE


def _is_date(value: str) -> bool:
    try:
        pa.array([value]).cast(pa.date32())
    except pa.ArrowInvalid:
        return False
    return True
