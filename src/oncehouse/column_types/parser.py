"""Reads the text of a ClickHouse type into the tree of `types.py`.

A recursive descent over the text; a refusal names the whole type, the place in it and what would be right.
Only types whose values formats can carry and Arrow can bring to ClickHouse without loss are known here.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NoReturn

from oncehouse.column_types import types as c
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?[0-9]+")
_DEEPEST = 32
_SPACE = re.compile(r"[^\S\x1c-\x1f\x85]")  # what Unicode and ClickHouse call a space
_MOST_DIGITS = 80
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "e": "\x1b",
    **{character: character for character in "\\'\"`/=" + "".join(map(chr, range(32)))},
}  # fmt: skip

_PLAIN: dict[str, c.ColumnType] = {
    **{f"Int{bits}": c.Integer(bits=bits, signed=True) for bits in (8, 16, 32, 64, 128, 256)},
    **{f"UInt{bits}": c.Integer(bits=bits, signed=False) for bits in (8, 16, 32, 64, 128, 256)},
    "Float32": c.Float(bits=32),
    "Float64": c.Float(bits=64),
    "Bool": c.Bool(),
    "String": c.String(),
    "Date": c.Date(wide=False),
    "Date32": c.Date(wide=True),
    "UUID": c.Uuid(),
}

_OTHER_WORDS = {  # what other databases and languages call them
    "text": "String",
    "varchar": "String",
    "str": "String",
    "int": "Int32",
    "integer": "Int32",
    "bigint": "Int64",
    "long": "Int64",
    "float": "Float64",
    "double": "Float64",
    "numeric": "Decimal",
    "boolean": "Bool",
    "timestamp": "DateTime64",
    "list": "Array",
    "object": "Map",
    "struct": "Tuple",
}


def parse_type(text: str) -> c.ColumnType:
    """The type that `text` names; refused with what is wrong, where, and the nearest right type."""
    return _TypeReader(text).read_all()


class _TypeReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._with_arguments: dict[str, Callable[[], c.ColumnType]] = {
            "Nullable": self._nullable,
            "LowCardinality": self._low_cardinality,
            "Array": self._array,
            "Map": self._map,
            "Tuple": self._tuple,
            "Nested": self._nested,
            "FixedString": self._fixed_string,
            "Decimal": self._decimal,
            "Decimal32": lambda: self._sized_decimal(9),
            "Decimal64": lambda: self._sized_decimal(18),
            "Decimal128": lambda: self._sized_decimal(38),
            "Decimal256": lambda: self._sized_decimal(76),
            "DateTime64": self._datetime64,
            "Enum8": lambda: self._enum(8),
            "Enum16": lambda: self._enum(16),
        }

    def read_all(self) -> c.ColumnType:
        parsed = self._type()
        self._skip_space()
        if self._at != len(self._text):
            self._refuse("nothing may follow the type here")
        return parsed

    # -- the types --------------------------------------------------------------------------------------

    def _type(self) -> c.ColumnType:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"types may nest at most {_DEEPEST} deep")
        start = self._at
        name = self._word("a type such as String, Int64 or Array(String)")
        parsed = self._named(name, start)
        self._depth -= 1
        return parsed

    def _named(self, name: str, start: int) -> c.ColumnType:
        if name in _PLAIN:
            if self._peek() == "(":
                self._refuse(f"{name} takes no arguments; write {name} alone")
            return _PLAIN[name]
        if name == "DateTime":
            return self._datetime()
        read = self._with_arguments.get(name)
        if read is None:
            self._at = start
            self._skip_space()
            self._refuse_unknown(name)
        self._expect("(", f"{name} needs arguments in parentheses")
        parsed = read()
        self._expect(")", f"the parenthesis of {name} is not closed{self._ask_for_quotes()}")
        return parsed

    def _ask_for_quotes(self) -> str:
        """YAML cuts a type at its comma where it stands in braces."""
        return "; inside { } put quotes around a type with a comma" if self._at >= len(self._text) else ""

    def _refuse_unknown(self, name: str) -> NoReturn:
        known = [*_PLAIN, "DateTime", *self._with_arguments]
        folded = {candidate.lower(): candidate for candidate in known}
        close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.0)[0]
        near = _OTHER_WORDS.get(name.lower(), folded[close])
        self._refuse(f"there is no type {name!r} here; the nearest is {near}")

    def _nullable(self) -> c.ColumnType:
        inner = self._type()
        if isinstance(inner, c.Nullable | c.LowCardinality | c.Array | c.Map | c.Tuple):
            advice = (
                "LowCardinality(Nullable(…))"
                if isinstance(inner, c.LowCardinality)
                else "it without Nullable"
            )
            self._refuse(f"Nullable takes a scalar type; write {advice}")
        return c.Nullable(inner=inner)

    def _low_cardinality(self) -> c.ColumnType:
        inner = self._type()
        if not isinstance(
            c.bare(inner), c.String | c.FixedString | c.Integer | c.Float | c.Date | c.DateTime
        ):
            self._refuse("LowCardinality takes strings, numbers, Date or DateTime; write the type without it")
        if isinstance(inner, c.LowCardinality):
            self._refuse("LowCardinality stands once; write LowCardinality(String)")
        return c.LowCardinality(inner=inner)

    def _array(self) -> c.ColumnType:
        return c.Array(item=self._type())

    def _map(self) -> c.ColumnType:
        key = self._type()
        inner = key.inner if isinstance(key, c.LowCardinality) else key
        if not isinstance(inner, c.String | c.FixedString | c.Integer | c.Uuid | c.Enum | c.Date):
            self._refuse("keys of a map are texts, integers, UUIDs, enums or dates; write Map(String, …)")
        self._expect(",", "Map takes a key type and a value type: Map(String, Int64)")
        return c.Map(key=key, value=self._type())

    def _tuple(self) -> c.ColumnType:
        fields = self._fields()
        return c.Tuple(fields=fields)

    def _nested(self) -> c.ColumnType:
        return c.Array(item=c.Tuple(fields=self._fields()))

    def _fields(self) -> tuple[tuple[str, c.ColumnType], ...]:
        fields: dict[str, c.ColumnType] = {}
        while True:
            name = self._field_name()
            if name == "null":
                self._refuse("ClickHouse keeps the name 'null' for itself; give the element another one")
            if name in fields:
                self._refuse(f"the element {name!r} stands twice; give each its own name")
            fields[name] = self._type()
            if self._peek() != ",":
                return tuple(fields.items())
            self._at += 1

    def _field_name(self) -> str:
        if self._peek() == "`":
            return self._quoted("`")
        name = self._word("a named element: Tuple(name String, size Int64)")
        if self._peek() in {",", ")", "("}:
            self._refuse("elements need names, as a JSON object has: Tuple(name String, size Int64)")
        return name

    def _fixed_string(self) -> c.ColumnType:
        return c.FixedString(length=self._number(1, 1 << 20, "the length of FixedString in bytes"))

    def _decimal(self) -> c.ColumnType:
        precision = self._number(1, 76, "the precision of Decimal")
        scale = 0
        if self._peek() == ",":
            self._at += 1
            scale = self._number(0, precision, "the scale of Decimal")
        return c.Decimal(precision=precision, scale=scale)

    def _sized_decimal(self, precision: int) -> c.ColumnType:
        return c.Decimal(precision=precision, scale=self._number(0, precision, "the scale of Decimal"))

    def _datetime(self) -> c.ColumnType:
        if self._peek() != "(":
            return c.DateTime(zone=None)
        self._at += 1
        zone = self._zone()
        self._expect(")", "the parenthesis of DateTime is not closed")
        return c.DateTime(zone=zone)

    def _datetime64(self) -> c.ColumnType:
        precision = self._number(0, 9, "the precision of DateTime64 (3 is milliseconds)")
        zone = None
        if self._peek() == ",":
            self._at += 1
            zone = self._zone()
        return c.DateTime64(precision=precision, zone=zone)

    def _zone(self) -> str:
        if self._peek() != "'":
            self._refuse("a time zone stands in single quotes: DateTime64(3, 'UTC')")
        zone = self._quoted("'")
        if not c.is_known_zone(zone):
            self._refuse(f"there is no time zone {zone!r}; write one such as 'UTC' or 'Europe/Berlin'")
        return zone

    def _enum(self, bits: int) -> c.ColumnType:
        members: dict[str, int] = {}
        following = 1
        least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        while True:
            if self._peek() != "'":
                self._refuse(f"members of Enum{bits} are quoted names: Enum{bits}('new' = 1, 'paid' = 2)")
            name = self._quoted("'")
            if self._peek() == "=":
                self._at += 1
                following = self._number(least, greatest, f"a number of Enum{bits}")
            if name in members or following in members.values() or following > greatest:
                self._refuse(f"names and numbers of Enum{bits} must each stand once and fit {bits} bits")
            members[name] = following
            following += 1
            if self._peek() != ",":
                return c.Enum(bits=bits, members=tuple(sorted(members.items(), key=lambda member: member[1])))
            self._at += 1

    # -- the characters ---------------------------------------------------------------------------------

    def _skip_space(self) -> None:
        while self._at < len(self._text) and _SPACE.match(self._text, self._at):
            self._at += 1

    def _peek(self) -> str:
        self._skip_space()
        return self._text[self._at : self._at + 1]

    def _expect(self, mark: str, advice: str) -> None:
        if self._peek() != mark:
            self._refuse(advice)
        self._at += 1

    def _word(self, wanted: str) -> str:
        self._skip_space()
        match = _WORD.match(self._text, self._at)
        if match is None:
            self._refuse(f"expected {wanted}")
        self._at = match.end()
        return match[0]

    def _number(self, least: int, greatest: int, what: str) -> int:
        self._skip_space()
        match = _NUMBER.match(self._text, self._at)
        if match is None or len(match[0]) > _MOST_DIGITS or not least <= int(match[0]) <= greatest:
            self._refuse(f"{what} is a number from {least} to {greatest}")
        self._at = match.end()
        return int(match[0])

    def _quoted(self, mark: str) -> str:
        """As ClickHouse reads it: a doubled mark stands for itself, and an unknown escape keeps its backslash."""
        self._at += 1
        characters: list[str] = []
        while not self._ends_quoted(mark):
            characters.append(self._character(mark))
        if not characters and mark == "`":
            self._refuse("a name may not be empty")
        return "".join(characters)

    def _ends_quoted(self, mark: str) -> bool:
        if self._text[self._at : self._at + 1] != mark:
            return False
        self._at += 1
        return self._text[self._at : self._at + 1] != mark

    def _character(self, mark: str) -> str:
        character = self._text[self._at : self._at + 1]
        self._at += 1
        if character == "\\":
            character = self._text[self._at : self._at + 1]
            self._at += 1
            if character in ("x", "N"):
                self._refuse(f"write the character that \\{character} stands for")
            if character:
                return _ESCAPES.get(character, "\\" + character)
        if not character:
            self._refuse(f"the quote {mark} is not closed")
        return character

    def _refuse(self, advice: str) -> NoReturn:
        raise ConfigurationError(f"type {self._text!r}, at character {self._at + 1}: {advice}")
