"""Values that a change did not touch and PostgreSQL's log therefore does not have: how Debezium marks them.

A large value is stored beside its row (TOAST), and without REPLICA IDENTITY FULL an update that leaves it alone does
not write it again. In its place stands a mark whose form hangs on the column's type. Arrays of other types than
texts, whole numbers, dates and uuids, and numbers of thousands of digits, are null instead: nothing tells them apart.
"""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.timestamps import Mask

_MARK = b"__debezium_unavailable_value"
# In bytea columns in base64, in arrays of uuids as the uuid that Java makes of these bytes.
_TEXTS = pa.array(
    [
        _MARK.decode(),
        base64.b64encode(_MARK).decode(),
        "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
    ]
)
_NUMBERS = list(_MARK)


def find_unavailable(array: pa.Array) -> Mask:
    """Which rows of a column as the envelope has it hold the mark in place of a value."""
    none: Mask = np.zeros(len(array), dtype=np.bool_)
    if pa.types.is_string(array.type):
        found: Mask = pc.is_in(array, value_set=_TEXTS).to_numpy(zero_copy_only=False)
        return found
    if not pa.types.is_list(array.type):
        return none
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    if pa.types.is_string(array.type.value_type):
        return _find_lists(array, lengths == 1, [[text] for text in _TEXTS.to_pylist()])
    if pa.types.is_integer(array.type.value_type):
        return _find_lists(array, lengths == len(_NUMBERS), [_NUMBERS])
    return none


def _find_lists(array: pa.Array, likely: Mask, marks: list[list[str]] | list[list[int]]) -> Mask:
    found: Mask = np.zeros(len(array), dtype=np.bool_)
    places = np.flatnonzero(likely)
    found[places] = [one in marks for one in array.take(pa.array(places)).to_pylist()]
    return found
