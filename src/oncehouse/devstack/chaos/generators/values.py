"""Values that fit a declared type, made from a number: the same number always gives the same value.

`nth_value` never gives one value for two numbers below `capacity`, so that it can make identities; `some_value` is
for all other fields. Times are whole nanoseconds since 1970, Tuples and Maps are dictionaries. How a value is
written is each format's business.
"""

from __future__ import annotations

import random
import uuid
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from oncehouse.column_types import types as c

NANOSECONDS = 10**9

_ENDLESS = 1 << 62
_FIRST_SECOND = 1_767_225_600
_FIRST_DAY = date(2000, 1, 1)
_MOST_DAYS = 50_000
_MOST_SECONDS = 10**9
_MOST_DIGITS = 18
# Odd, so that no two numbers meet; large, so that neighbours lie far apart.
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
_WORDS = ("tea", "lamp", "carpet", "Stühle", "茶", "gift, wrapped", "it's late", "7 % off")
_AWKWARD = ('say "no"', "back\\slash", "two\nlines", "tab\there")
_MODERATE = 100


def capacity(type_: c.ColumnType) -> int:  # noqa: PLR0911 - one case a type
    """How many different values `nth_value` has for the type."""
    match c.bare(type_):
        case c.Integer(greatest=greatest):
            return greatest + 1
        case c.Float(bits=bits):
            return 1 << (24 if bits == 32 else 53)
        case c.Decimal(precision=precision):
            return int(10**precision)
        case c.Bool():
            return 2
        case c.FixedString(length=length):
            return int(10 ** min(length, _MOST_DIGITS))
        case c.Date():
            return _MOST_DAYS
        case c.DateTime() | c.DateTime64():
            return _MOST_SECONDS
        case c.Enum(members=members):
            return len(members)
        case _:
            return _ENDLESS


def nth_value(type_: c.ColumnType, number: int) -> Any:  # noqa: C901, PLR0911 - one case a type
    """The value of a scalar type that belongs to the number alone."""
    match c.bare(type_):
        case c.Integer():
            return number
        case c.Float():
            return float(number)
        case c.Decimal(scale=scale):
            return Decimal(number).scaleb(-scale)
        case c.Bool():
            return bool(number)
        case c.FixedString(length=length):
            return f"{number:0{min(length, _MOST_DIGITS)}d}"
        case c.Date():
            return _FIRST_DAY + timedelta(days=number)
        case c.DateTime():
            return (_FIRST_SECOND + number) * NANOSECONDS
        case c.DateTime64(precision=precision):
            return _FIRST_SECOND * NANOSECONDS + number * 10 ** (9 - precision)
        case c.Uuid():
            return uuid.UUID(int=(number + 1) * _SPREAD % (1 << 128))
        case c.Enum(members=members):
            return members[number][0]
        case _:
            return f"event-{number}"


def some_value(type_: c.ColumnType, rng: random.Random, *, awkward: bool) -> Any:
    """A value by chance; `awkward` ones are at the ends of their range, or hard to write."""
    match type_:
        case c.LowCardinality(inner=inner):
            return some_value(inner, rng, awkward=awkward)
        case c.Nullable(inner=inner):
            return None if rng.random() < 0.2 else some_value(inner, rng, awkward=awkward)
        case c.Array(item=item):
            return [some_value(item, rng, awkward=awkward) for _ in range(rng.randrange(4))]
        case c.Map(key=key, value=value):
            keys = {nth_value(key, rng.randrange(min(capacity(key), 50))) for _ in range(rng.randrange(4))}
            return {one: some_value(value, rng, awkward=awkward) for one in sorted(keys, key=str)}
        case c.Tuple(fields=fields):
            return {name: some_value(inner, rng, awkward=awkward) for name, inner in fields}
        case _:
            return _some_scalar(type_, rng, awkward=awkward)


def _seldom(rng: random.Random) -> bool:
    return rng.random() < 0.1


def _some_scalar(  # noqa: PLR0911 - one case a type
    type_: c.ColumnType, rng: random.Random, *, awkward: bool
) -> Any:
    match type_:
        case c.String():
            words = _WORDS + _AWKWARD if awkward else _WORDS
            return " ".join(rng.choices(words, k=rng.randrange(1, 4)))
        # JSON carries up to 76 digits, which is less than 256 bits.
        case c.Integer(least=least, greatest=greatest, bits=bits) if awkward and bits < 256 and _seldom(rng):
            return rng.choice((least, greatest))
        case c.Integer(greatest=greatest):
            return rng.randint(1, min(greatest, _MODERATE))
        case c.Float():
            # Eighths are the same number in 32 and in 64 bits.
            return rng.randint(1, 8 * _MODERATE) / 8
        case c.Decimal(precision=precision, scale=scale):
            return Decimal(rng.randint(1, min(10**precision, _MODERATE * 10**scale) - 1)).scaleb(-scale)
        case c.Date():
            return _FIRST_DAY + timedelta(days=rng.randrange(_MOST_DAYS // 2))
        case _:
            return nth_value(type_, rng.randrange(min(capacity(type_), 10**6)))
