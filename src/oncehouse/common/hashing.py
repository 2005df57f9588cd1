"""Hashes of a column's values, vectorized by Polars: what the pipeline and the ledger's files have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def hash_column(values: pa.Array, family: str, function: str) -> Any:
    # Imported by the process that hashes: Polars starts threads, which a fork of Spark's daemon would not carry.
    import polars as pl
    import polars_hash

    expression = getattr(getattr(polars_hash.col("x"), family), function)()
    return pl.DataFrame({"x": pl.from_arrow(values)}).select(expression).to_series()


def xxh3_hashes(values: pa.Array) -> Hashes:
    """XXH3 (64 bits) of each value's bytes; a missing value has 0."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.uint64)
    hashed = hash_column(values.cast(pa.large_binary()), "nchash", "xxh3_64")
    hashes: Hashes = hashed.fill_null(0).to_numpy().astype(np.uint64, copy=False)
    return hashes
