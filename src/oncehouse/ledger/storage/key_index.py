"""The key index: sorted 128-bit ids in files that never change, searched with sorted ids.

A key table is an Arrow IPC file with one record batch: `hi` and `lo` (the id's halves, sorted by both),
`payload` (a hash of the record's bytes), and in the key file of a part also `event` (its row) and `routes`
(a bit a table it goes to). Files are mapped into memory, so that a look-up touches only the pages it needs.
Which files make up the index is the catalog's business; nothing here knows the catalog or Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.storage.file_store import REPAIR_ADVICE

UInt64 = npt.NDArray[np.uint64]
UInt32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NO_ROWS: UInt32 = np.empty(0, dtype=np.uint32)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Ids sorted by (hi, lo, event), with what belongs to each of them; all arrays are equally long or empty."""

    hi: UInt64
    lo: UInt64
    payload: UInt64
    event: UInt32 = field(default_factory=lambda: _NO_ROWS)
    routes: UInt32 = field(default_factory=lambda: _NO_ROWS)

    def __len__(self) -> int:
        return len(self.hi)

    def take(self, chosen: Int64 | Flags | slice) -> Keys:
        return Keys(
            hi=self.hi[chosen],
            lo=self.lo[chosen],
            payload=self.payload[chosen],
            event=self.event[chosen] if len(self.event) else self.event,
            routes=self.routes[chosen] if len(self.routes) else self.routes,
        )


def write_keys(path: str, keys: Keys) -> None:
    columns: dict[str, npt.NDArray[np.generic]] = {"hi": keys.hi, "lo": keys.lo, "payload": keys.payload}
    if len(keys.event):
        columns["event"] = keys.event
    if len(keys.routes):
        columns["routes"] = keys.routes
    batch = pa.record_batch([pa.array(column) for column in columns.values()], names=list(columns))
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def open_keys(path: Path) -> Keys:
    """Map a key table into memory without reading it."""
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in batch.schema.names}
        return Keys(**columns)
    except (pa.ArrowException, OSError, IndexError, TypeError, ValueError) as error:
        raise CorruptFileError(f"The key table {path} cannot be read: {error}. {REPAIR_ADVICE}") from error


def sort_order(hi: UInt64, lo: UInt64) -> Int64:
    """The order of ids by (hi, lo), equal ones in the order in which they came.

    By the upper 32 bits alone, sixteen at a time, which NumPy counts in place of comparing: hardly ever do two
    different ids share them.
    """
    order = np.argsort(_sixteen_bits(hi, 32), kind="stable")
    order = order[np.argsort(_sixteen_bits(hi, 48)[order], kind="stable")]
    return _settle_ties(order, hi, lo)


def merge_order(hi: UInt64, lo: UInt64) -> Int64:
    """The same of ids that are several sorted runs, one behind the other: NumPy finds the runs and merges them."""
    return _settle_ties(np.argsort(hi, kind="stable"), hi, lo)


def _sixteen_bits(hi: UInt64, above: int) -> npt.NDArray[np.uint16]:
    return (hi >> np.uint64(above)).astype(np.uint16)


def _settle_ties(order: Int64, hi: UInt64, lo: UInt64) -> Int64:
    """An order that is right by the upper 32 bits, made right by all where ids that share them stand wrong."""
    high, low = hi[order], lo[order]
    wrong = (high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] < low[:-1]))
    if wrong.any():
        upper = high >> np.uint64(32)
        shared = np.unique(upper[1:][wrong])
        begins, ends = (np.searchsorted(upper, shared, side=side) for side in ("left", "right"))
        tied = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, lo[rows], hi[rows]))]
    return order


def slice_buckets(keys: Keys, bucket_from: int, bucket_to: int, buckets: int) -> Keys:
    """The ids of buckets `bucket_from` to `bucket_to`, both included: a bucket is a range of the high bits."""
    width = (1 << 64) // buckets
    start = int(np.searchsorted(keys.hi, np.uint64(bucket_from * width), side="left"))
    after = (bucket_to + 1) * width
    end = len(keys) if after >= 1 << 64 else int(np.searchsorted(keys.hi, np.uint64(after), side="left"))
    return keys.take(slice(start, end))


def find(segment: Keys, hi: UInt64, lo: UInt64) -> Int64:
    """Where each id (sorted by hi) stands in the segment, or -1."""
    found = np.full(len(hi), -1, dtype=np.int64)
    if not len(segment) or not len(hi):
        return found
    # A segment may cover a few buckets only: ids outside of its range are not searched for one by one.
    start = int(np.searchsorted(hi, segment.hi[0], side="left"))
    end = int(np.searchsorted(hi, segment.hi[-1], side="right"))
    searched = np.arange(start, end)
    at = np.searchsorted(segment.hi, hi[start:end], side="left")
    # Ids that share a high half stand next to each other: step along until the low half fits or the run ends.
    while len(searched):
        same = segment.hi[at] == hi[searched]
        searched, at = searched[same], at[same]
        hit = segment.lo[at] == lo[searched]
        found[searched[hit]] = at[hit]
        searched, at = searched[~hit], at[~hit] + 1
        inside = at < len(segment)
        searched, at = searched[inside], at[inside]
    return found


def first_of_each(keys: Keys) -> Flags:
    """Marks the first of each run of equal ids in sorted keys."""
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = (keys.hi[1:] != keys.hi[:-1]) | (keys.lo[1:] != keys.lo[:-1])
    return first


def merge(tables: Sequence[Keys]) -> Keys:
    """All ids of several sorted tables, sorted, each once (the earliest table's entry stays)."""
    hi = np.concatenate([table.hi for table in tables])
    lo = np.concatenate([table.lo for table in tables])
    payload = np.concatenate([table.payload for table in tables])
    order = merge_order(hi, lo)
    merged = Keys(hi=hi[order], lo=lo[order], payload=payload[order])
    return merged.take(first_of_each(merged))
