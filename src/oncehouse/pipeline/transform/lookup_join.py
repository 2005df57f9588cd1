"""Look-ups inside a task: the row of a small reference table that belongs to each event, found by its key.

A look-up is read once a process and kept while plans name it. Nothing found is null, never a lost event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oncehouse.common.hashing import xxh3_hashes
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.transform.plan import PinnedLookup

KEY = "key"
"""The first column of a pinned look-up; the others bear the names that expressions use, after a dot."""
COLUMN_PREFIX = "."

# Arrow builds its table of keys for each block; far above this many a search in sorted numbers is faster.
SMALL_ROWS = 50_000

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class LoadedLookup:
    """A look-up in memory."""

    def __init__(self, table: pa.Table) -> None:
        table = table.combine_chunks()
        self._keys = _only_chunk(table.column(KEY))
        self._columns = {
            name.removeprefix(COLUMN_PREFIX): _only_chunk(table.column(name))
            for name in table.column_names
            if name != KEY
        }
        self._numbers: Numbers | None = None
        if table.num_rows > SMALL_ROWS:
            self._sort(number_keys(self._keys))

    def _sort(self, numbers: Numbers) -> None:
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        # Two keys of one hash would hide each other; then Arrow compares the keys themselves.
        if not np.any(ordered[1:] == ordered[:-1]):
            self._numbers, self._order = ordered, order

    def find(self, column: pa.Array) -> pa.Array:
        """For each value the row of the look-up, or null."""
        if self._numbers is None:
            return pc.index_in(column, value_set=self._keys, skip_nulls=True).cast(pa.int64())
        wanted = number_keys(column)
        places = np.minimum(np.searchsorted(self._numbers, wanted), len(self._numbers) - 1)
        rows = self._order[places]
        absent = self._numbers[places] != wanted
        # Equal hashes are not equal keys.
        same = pc.fill_null(pc.equal(self._keys.take(pa.array(rows)), column), fill_value=False)
        return pa.array(rows, mask=absent | ~same.to_numpy(zero_copy_only=False))

    def take(self, name: str, rows: pa.Array) -> pa.Array:
        return self._columns[name].take(rows)


def number_keys(column: pa.Array) -> Numbers:
    """A number for each key, equal for equal keys: the integer itself, or a hash of the bytes."""
    kind = column.type
    if pa.types.is_integer(kind):
        # Unsigned and signed alike: the same bits are the same key within one type.
        filled = column.fill_null(0).to_numpy(zero_copy_only=False)
        wide: Numbers = filled.astype(np.int64 if filled.dtype.kind == "i" else np.uint64).view(np.uint64)
        return wide
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return number_keys(column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
    return xxh3_hashes(column.cast(pa.binary()))


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# Look-ups that this process has read, by checksum: tasks of the next epoch find them warm.
_read: dict[str, LoadedLookup] = {}


def open_lookups(store: FileStore, pinned: Iterable[PinnedLookup]) -> dict[str, LoadedLookup]:
    wanted = {found.name: found.file for found in pinned}
    kept = {file.checksum for file in wanted.values()}
    for checksum in [known for known in _read if known not in kept]:
        del _read[checksum]
    for file in wanted.values():
        if file.checksum not in _read:
            _read[file.checksum] = LoadedLookup(pq.read_table(store.checked(file)))
    return {name: _read[file.checksum] for name, file in wanted.items()}
