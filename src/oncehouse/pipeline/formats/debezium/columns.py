"""What Debezium's JSON holds as Arrow arrays that say what it means, a whole column at a time.

Every function returns the array and a mask of the rows that could not be read as their meaning says; None
where all could. What the declared type makes of them is `convert/convert.py`; which values the log does not have is
`absent_values.py`.
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.convert import list_items, rows_of
from oncehouse.pipeline.convert.decimals import MOST_DIGITS, decimals_from_bytes
from oncehouse.pipeline.convert.masks import Mask, either, null_mask
from oncehouse.pipeline.formats.debezium.wire_types import WIDEST_SCALE, Meaning, Wire

Meant = tuple[pa.Array, Mask | None]

_UNITS = {Meaning.MILLISECONDS: "ms", Meaning.MICROSECONDS: "us", Meaning.NANOSECONDS: "ns"}
_NO_SCALE = f"the envelope's schema gives no scale from -{WIDEST_SCALE} to {WIDEST_SCALE}"
_UNREAD = {
    Meaning.DAYS: "no count of days that a date can hold",
    Meaning.BASE64: "not base64",
    Meaning.BITS: "not base64, or more than 64 bits",
    Meaning.DECIMAL: f"not base64, or more than {MOST_DIGITS} digits",
}
_UNREAD_INSIDE = (
    f"not base64, more than {MOST_DIGITS} digits, or no scale from -{WIDEST_SCALE} to {WIDEST_SCALE}"
)


def explain_unread(wire: Wire) -> str:
    """Why `read_meaning` could not read a value."""
    if wire.meaning is Meaning.DECIMAL and wire.scale is None:
        return _NO_SCALE
    return _UNREAD.get(wire.meaning, _UNREAD_INSIDE)


def read_meaning(  # noqa: PLR0911 - one case a meaning
    array: pa.Array, wire: Wire, type_: c.ColumnType
) -> Meant:
    """`type_` is the declared one: an integer takes the counts of times and dates as they are."""
    counted = isinstance(c.bare(type_), c.Integer)
    match wire.meaning:
        case Meaning.DAYS if not counted:
            return _read_days(array)
        case Meaning.MILLISECONDS | Meaning.MICROSECONDS | Meaning.NANOSECONDS if not counted:
            return array.view(pa.timestamp(_UNITS[wire.meaning])), None
        case Meaning.BASE64:
            return read_base64(array)
        case Meaning.BITS:
            values, bad = read_base64(array)
            return _read_bits(values, bad) if counted else (values, bad)
        case Meaning.DECIMAL:
            return _read_decimals(array, wire.scale)
        case Meaning.VARIABLE_DECIMAL:
            return _read_variable(array)
        case Meaning.LIST:
            return _read_list(array, wire, type_)
        case Meaning.STRUCT:
            return _read_struct(array, wire, type_)
        case Meaning.MAP:
            return _read_map(array, wire, type_)
        case _:
            return array, None


def _read_days(array: pa.Array) -> Meant:
    days = array.cast(pa.int32(), safe=False)
    wrong = pc.fill_null(pc.not_equal(days.cast(pa.int64()), array), False).to_numpy(zero_copy_only=False)
    return days.view(pa.date32()), wrong if wrong.any() else None


def read_base64(array: pa.Array) -> Meant:
    import polars as pl  # by the process that reads: Polars starts threads, which a fork would not carry

    decoded = pl.Series(pl.from_arrow(array)).str.decode("base64", strict=False).to_arrow().cast(pa.binary())
    bad = null_mask(decoded) & ~null_mask(array)
    return decoded, bad if bad.any() else None


def _read_bits(values: pa.Array, bad: Mask | None) -> Meant:
    """Unsigned, the lowest byte first."""
    offsets, data = text_buffers(values)
    lengths = np.diff(offsets)
    matrix = np.zeros((len(values), 8), dtype=np.uint8)
    if len(data):
        places = offsets[:-1, None] + np.arange(8)
        inside = places < offsets[1:, None]
        matrix[:] = np.where(inside, data[np.minimum(places, len(data) - 1)], 0)
    numbers = matrix.view("<u8").reshape(-1)
    return pa.array(numbers, mask=null_mask(values)), either(
        bad, lengths > 8 if (lengths > 8).any() else None
    )


def _read_decimals(array: pa.Array, scale: int | None) -> Meant:
    """With a scale that Arrow has as decimals, with another as texts, which keep all digits."""
    values, bad = read_base64(array)
    nulls = null_mask(values)
    if scale is None:
        return pa.nulls(len(array), pa.string()), either(bad, ~nulls)
    whole, beyond = decimals_from_bytes(pc.fill_null(values, b""))
    if nulls.any():
        whole = pc.if_else(pa.array(nulls), pa.scalar(None, whole.type), whole)
    bad = either(bad, beyond if beyond.any() else None)
    if 0 <= scale <= MOST_DIGITS:
        return whole.view(pa.decimal256(MOST_DIGITS, scale)), bad
    return _write_scaled(whole, scale), bad


def _write_scaled(numbers: pa.Array, scale: int) -> pa.Array:
    """Such scales are rare: a row at a time."""
    texts = [None if one is None else format(one.scaleb(-scale, _EXACT), "f") for one in numbers.to_pylist()]
    return pa.array(texts, pa.string())


_EXACT = decimal.Context(prec=MOST_DIGITS + 2)


def _read_variable(array: pa.Array) -> Meant:
    """Each row with a scale of its own: as texts, which keep all digits."""
    nulls = null_mask(array) | null_mask(array.field("value"))
    scales = array.field("scale").fill_null(WIDEST_SCALE + 1).to_numpy(zero_copy_only=False)
    bad = (np.abs(scales) > WIDEST_SCALE) & ~nulls
    texts = pa.nulls(len(array), pa.string())
    for scale in np.unique(scales[~nulls & ~bad]).tolist():
        mine = (scales == scale) & ~nulls
        numbers, wrong = _read_decimals(array.field("value").filter(pa.array(mine)), scale)
        texts = pc.replace_with_mask(texts, pa.array(mine), numbers.cast(pa.string()))
        if wrong is not None:
            bad[np.flatnonzero(mine)[wrong]] = True
    return texts, bad if bad.any() else None


def _read_list(array: pa.Array, wire: Wire, type_: c.ColumnType) -> Meant:
    bare = c.bare(type_)
    if not isinstance(bare, c.Array):
        return array, None
    items, bad = read_meaning(array.values, wire.inner[0][1], bare.item)
    return pa.ListArray.from_arrays(array.offsets, items), rows_of(bad, array.offsets.to_numpy())


def _read_struct(array: pa.Array, wire: Wire, type_: c.ColumnType) -> Meant:
    bare = c.bare(type_)
    declared = dict(bare.fields) if isinstance(bare, c.Tuple) else {}
    bad: Mask | None = None
    children = []
    for place, (name, inner) in enumerate(wire.inner):
        child, wrong = read_meaning(array.field(place), inner, declared.get(name, c.String()))
        children.append(child)
        bad = either(bad, wrong)
    names = [name for name, _ in wire.inner]
    mask = pa.array(null_mask(array)) if array.null_count else None
    return pa.StructArray.from_arrays(children, names=names, mask=mask), bad


def _read_map(array: pa.Array, wire: Wire, type_: c.ColumnType) -> Meant:
    bare = c.bare(type_)
    found = list_items(array)
    if not isinstance(bare, c.Map) or found is None or wire.inner[0][1].meaning is Meaning.ITSELF:
        return array, None
    bounds, pairs = found
    values, bad = read_meaning(pairs.field(1), wire.inner[0][1], bare.value)
    return pa.MapArray.from_arrays(pa.array(bounds, pa.int32()), pairs.field(0), values), rows_of(bad, bounds)
