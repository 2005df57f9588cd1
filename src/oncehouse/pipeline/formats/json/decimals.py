"""Decimals that Arrow's JSON reader cannot be trusted with, found before and behind it.

Which decimal a number may be is decided in `convert/decimals.py`; `explain.py` says why one is refused. Arrow 26 has
two faults of its own. It divides by a power of ten that it looks up without a look at how far its table goes:
an exponent below -38 ends the process, so such messages never reach it. And it shifts digits in 128 or 256 bits without
a look at overflow: numbers with so many digits are looked at again, digit by digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import text_buffers, text_type
from oncehouse.pipeline.convert.masks import Mask
from oncehouse.pipeline.formats.json.columns import leaf_types, leaves

LEAST_EXPONENT = -38
_EXPONENT = re.compile(r"[eE]-0*([0-9]+)$")
_SMALL_EXPONENT = r'[:,\[ \t]-?[0-9][0-9.]*[eE]-[0-9]{2,}|"[+-]?[0-9.]+[eE]-[0-9]{2,}"'
_LETTER_CASE = 0x20
_SAFE_DIGITS = 57
# Many digits in a row, or an exponent, in a number or in a text that is one; %d is how many.
_HUGE_NUMBER = r'[0-9]{%d,}|[:,\[ \t]-?[0-9][0-9.]*[eE]|"[+-]?[0-9.]+[eE][+-]?[0-9]+"'


def holds_decimal(type_: c.ColumnType) -> bool:
    """Whether any of it is read as a decimal."""
    return any(pa.types.is_decimal(leaf_types(leaf)[0]) for leaf in leaves(type_))


def find_small_exponents(texts: pa.Array) -> list[int]:
    """Messages with a number, or a text that is one, whose exponent is negative and has two digits or more."""
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


def has_far_exponent(number: str) -> bool:
    """Whether the reader must not meet this number as a decimal."""
    exponent = _EXPONENT.search(number)
    return exponent is not None and (len(exponent[1]) > 2 or int(exponent[1]) > -LEAST_EXPONENT)


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
