"""Rows of an Arrow array that are marked: those that are null, those that could not be converted.

Every conversion returns an array and a mask of what it could not take; what stands in a marked row means nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def null_mask(array: pa.Array) -> Mask:
    if array.null_count == 0:
        return np.zeros(len(array), dtype=np.bool_)
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def cast_where_possible(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast what can be cast; the rest is null and marked. Halves are tried only when something fails."""
    try:
        return array.cast(target), np.zeros(len(array), dtype=np.bool_)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, target), np.ones(1, dtype=np.bool_)
        half = len(array) // 2
        left, bad_left = cast_where_possible(array.slice(0, half), target)
        right, bad_right = cast_where_possible(array.slice(half), target)
        return pa.concat_arrays([left, right]), np.concatenate([bad_left, bad_right])


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def flags(array: pa.Array) -> Mask:
    """A boolean array as a mask; null is False."""
    marked: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return marked


def filled(array: pa.Array, value: float = 0) -> np.ndarray[Any, Any]:
    """The values with something in place of nulls."""
    whole = array.fill_null(pa.scalar(value, array.type)) if array.null_count else array
    values: np.ndarray[Any, Any] = whole.to_numpy(zero_copy_only=False)
    return values


def only(array: pa.Array, wanted: Mask) -> pa.Array:
    """The array with null in the rows that are not wanted."""
    return array if wanted.all() else pc.if_else(pa.array(wanted), array, None)
