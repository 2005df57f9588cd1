"""Why a value cannot be of its declared type, in the words of its dead letter.

Slow and exact, one row at a time: only rows that `convert.py` has marked come here. The words name the place
inside the value and what is wrong, and never repeat the value. JSON messages, whose text has more to say, are explained
in `formats/json/message_errors.py`.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import is_bytes, is_text
from oncehouse.pipeline.convert.convert import convert, list_items, plain
from oncehouse.pipeline.convert.decimals import is_number_text
from oncehouse.pipeline.convert.masks import cast_where_possible
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.convert.scalars import accepts_kind
from oncehouse.pipeline.convert.times import parse_times

_WHOLE = re.compile(r"[+-]?[0-9]+")


def explain_value(scalar: pa.Scalar, type_: c.ColumnType) -> str:
    """What is wrong with one value."""
    return find_problem(pa.repeat(scalar, 1), 0, type_, "").detail


def find_problem(array: pa.Array, row: int, type_: c.ColumnType, where: str) -> RejectionCause:
    """The first problem of a marked row; `where` names the field."""
    return _find(plain(array.slice(row, 1)), type_, where)


def _find(array: pa.Array, type_: c.ColumnType, where: str) -> RejectionCause:
    """The problem of a bad array of one row."""
    bare = c.bare(type_)
    if array.null_count:
        return _problem(
            Reason.MISSING_FIELD, where, f"missing or null, {c.clickhouse_name(type_)} needs a value"
        )
    match bare:
        case c.Array(item=item) if (found := list_items(array)) is not None:
            return _find_in_list(found[1], item, where)
        case c.Map() as map_type if (found := list_items(array)) is not None:
            return _find_in_map(plain(found[1]), map_type, where)
        case c.Tuple(fields=fields) if pa.types.is_struct(array.type):
            return _find_in_tuple(array, fields, where)
        case c.Array() | c.Map() | c.Tuple():
            return _wrong_kind(array, bare, where)
        case _:
            return _find_scalar(array, bare, where)


def _first_bad(array: pa.Array, type_: c.ColumnType) -> int | None:
    bad = convert(array, type_).bad
    return None if bad is None or not bad.any() else int(np.flatnonzero(bad)[0])


def _find_in_list(items: pa.Array, item: c.ColumnType, where: str) -> RejectionCause:
    place = _first_bad(items, item) or 0
    return _find(plain(items.slice(place, 1)), item, f"{where}[{place}]")


def _find_in_map(pairs: pa.Array, map_type: c.Map, where: str) -> RejectionCause:
    if not pa.types.is_struct(pairs.type):
        return _wrong_kind(pairs, map_type, where)
    for number, inner in enumerate((map_type.key, map_type.value)):
        place = _first_bad(pairs.field(number), inner)
        if place is not None:
            of = "key" if number == 0 else "value"
            return _find(plain(pairs.field(number).slice(place, 1)), inner, f"{where}[{of} {place}]")
    return _problem(Reason.DUPLICATE_KEY, where, "a key stands twice")


def _find_in_tuple(
    array: pa.Array, fields: tuple[tuple[str, c.ColumnType], ...], where: str
) -> RejectionCause:
    for name, inner in fields:
        place = array.type.get_field_index(name)
        child = plain(array.field(place)) if place >= 0 else pa.nulls(1)
        if _first_bad(child, inner) is not None:
            return _find(child, inner, f"{where}.{name}" if where else name)
    return _problem(Reason.WRONG_TYPE, where, "does not fit")


def _find_scalar(array: pa.Array, leaf: c.ColumnType, where: str) -> RejectionCause:
    if not _is_of_kind(array, leaf):
        return _wrong_kind(array, leaf, where)
    return _problem(Reason.OUT_OF_RANGE, where, f"outside of {c.clickhouse_name(leaf)}")


def _is_of_kind(array: pa.Array, leaf: c.ColumnType) -> bool:
    """Whether values of this kind can be of the type at all; for texts, whether they can be read as it."""
    if not accepts_kind(array, leaf) or not is_text(array.type):
        return accepts_kind(array, leaf)
    match leaf:
        case c.Integer():
            return bool(_WHOLE.fullmatch(array[0].as_py()))
        case c.Float() | c.Decimal():
            return is_number_text(array[0].as_py())
        case c.Date():
            return not cast_where_possible(array, pa.date32())[1].any()
        case c.DateTime() | c.DateTime64():
            return not parse_times(array.cast(pa.string()), unit="s", zone="UTC")[1].any()
        case _:
            return not isinstance(leaf, c.Bool | c.Uuid)


def _wrong_kind(array: pa.Array, type_: c.ColumnType, where: str) -> RejectionCause:
    return _problem(Reason.WRONG_TYPE, where, f"{_kind(array.type)} cannot be {c.clickhouse_name(type_)}")


def _kind(kind: pa.DataType) -> str:
    if is_text(kind):
        return "this text"
    if is_bytes(kind):
        return "bytes of this length" if pa.types.is_fixed_size_binary(kind) else "bytes"
    return f"a value of {str(kind).split('(', maxsplit=1)[0].split('<', maxsplit=1)[0]}"


def _problem(reason: Reason, where: str, what: str) -> RejectionCause:
    return RejectionCause(reason=reason, detail=f"{where}: {what}" if where else what)
