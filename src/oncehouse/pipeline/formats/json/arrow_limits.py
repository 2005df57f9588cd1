"""Numbers that Arrow's JSON reader cannot take as decimals, or takes wrongly: found before it reads, and after.

Which decimal a number may be is decided in `convert/decimals.py`; `message_errors.py` says why one is refused. Arrow 26
has three limits of its own:

- It divides by a power of ten out of a table and does not check that the table has it: an exponent below -38, or too
  many places behind the point, ends the process or makes another number. Such messages never reach it.
- It shifts digits in 128 or 256 bits without a check for overflow: numbers with so many digits are checked again, digit
  by digit.
- It counts digits as they are written, zeros at the end included: `12.3400000000` is no Decimal(10, 4) to it. Such a
  field is read in a wider type (`leaf_types` of `columns.py`), up to 76 digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import text_buffers, text_type
from oncehouse.pipeline.convert.decimals import MOST_DIGITS
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.formats.json.columns import leaf_types, leaves

_LEAST_EXPONENT = -38
_WRITTEN = re.compile(r"[+-]?0*([0-9]*)\.?([0-9]*)(?:[eE]([+-]?)0*([0-9]+))?")
_LONGEST_EXPONENT = 4  # digits; one with more is beyond every limit
# With an exponent of one digit only a long number has more places behind the point than Arrow's table has powers.
_SMALL_EXPONENT = r'[:,\[ \t]-?[0-9][0-9.]*[eE]-[0-9]{2,}|"[+-]?[0-9.]+[eE]-[0-9]{2,}"|[0-9]{60}[eE]-[0-9]'
_LETTER_CASE = 0x20
_SAFE_DIGITS = 57
# Many digits in a row, or an exponent, in a number or in a text that is one; %d is how many.
_HUGE_NUMBER = r'[0-9]{%d,}|[:,\[ \t]-?[0-9][0-9.]*[eE]|"[+-]?[0-9.]+[eE][+-]?[0-9]+"'


def holds_decimal(type_: c.ColumnType) -> bool:
    """Whether any of it is read as a decimal."""
    return any(pa.types.is_decimal(leaf_types(leaf)[0]) for leaf in leaves(type_))


def find_small_exponents(texts: pa.Array) -> list[int]:
    """Messages with a number, or a text that is one, whose negative exponent may be too small for the reader."""
    offsets, data = text_buffers(texts)
    inside = data[offsets[0] : offsets[-1]]
    if len(inside) <= 2:
        return []
    # Bytes alone leave nearly none to be looked at: an e between a digit or a point and a minus.
    marks = np.flatnonzero((inside[1:-1] | _LETTER_CASE) == ord("e")) + 1
    before = inside[marks - 1]
    marks = marks[(inside[marks + 1] == ord("-")) & (before >= ord(".")) & (before <= ord("9"))]
    if not len(marks):
        return []
    rows = np.unique(np.searchsorted(offsets, marks + offsets[0], side="right") - 1)
    chosen = texts.take(pa.array(rows))
    found: Mask = pc.match_substring_regex(chosen.view(text_type(chosen)), _SMALL_EXPONENT).to_numpy(
        zero_copy_only=False
    )
    return [int(row) for row in rows[found]]


def find_excess(number: str, type_: pa.DataType) -> str | None:
    """Why the reader must not meet this number as a decimal of this type; None where it may."""
    written = _WRITTEN.fullmatch(number)
    if written is None or written[3] != "-":
        return None
    if len(written[4]) > _LONGEST_EXPONENT or int(written[4]) > -_LEAST_EXPONENT:
        return f"an exponent below {_LEAST_EXPONENT}"
    powers = MOST_DIGITS if pa.types.is_decimal256(type_) else MOST_DIGITS // 2
    dropped = len(written[2]) + int(written[4]) - type_.scale
    return f"more than {powers} places behind those of the type" if dropped > powers else None


def count_digits(number: str) -> int:
    """The digits that the reader counts: all as they are written, and the zeros that an exponent adds; 0 of a text."""
    written = _WRITTEN.fullmatch(number)
    if written is None:
        return 0
    digits = len(written[1]) + len(written[2])
    if written[4] is None or written[3] == "-":
        return digits
    exponent = int(written[4][:_LONGEST_EXPONENT])
    return digits + max(exponent - len(written[2]), 0)


def huge_number_pattern(types: Iterable[c.ColumnType]) -> str | None:
    """What messages hold whose numbers may become others in the reader; None where that cannot be."""
    digits = [
        most for type_ in types for leaf in leaves(type_) if (most := _wrapping_digits(leaf)) is not None
    ]
    return _HUGE_NUMBER % min(digits) if digits else None


def _wrapping_digits(leaf: c.ColumnType) -> int | None:
    """So many digits before the point may wrap around.

    What has wrapped around is anywhere in the reader's bits, so it is seen to be out of range where the type's range
    is a vanishing part of that.
    """
    match leaf:
        case c.Decimal(precision=precision, scale=scale) if precision > _SAFE_DIGITS:
            return max(76 - scale, 1)
        case c.Integer(bits=256):
            return 76
        case _:
            return None
