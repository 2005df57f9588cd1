"""Whether two records of one id say the same: hashes of their bytes, compared where bytes can be compared.

A message of Kafka and a row of a DataFrame have other bytes for the same values, so their hashes carry a mark of
where they came from, and only hashes of the same kind can be in conflict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.common.hashing import Hashes, xxh3_hashes
from oncehouse.pipeline.formats.dataframe import is_dataframe_row

_ROW = np.uint64(1 << 63)
UNKNOWN = np.uint64((1 << 64) - 1)
"""For an id whose bytes are no longer known, as of one that was found in a table."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def hash_payloads(values: pa.Array, schemas: pa.Array | None) -> Hashes:
    hashes = xxh3_hashes(values) & ~_ROW
    if schemas is not None and schemas.null_count < len(schemas):
        hashes[is_dataframe_row(schemas)] |= _ROW
    return hashes


def find_conflicts(some: Hashes, others: Hashes) -> Flags:
    """For each pair whether the two differ although they can be compared."""
    known = (some != UNKNOWN) & (others != UNKNOWN)
    conflicts: Flags = (some != others) & known & ((some ^ others) & _ROW == 0)
    return conflicts
