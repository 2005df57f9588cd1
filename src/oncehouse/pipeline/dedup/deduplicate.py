"""Deciding: which of an epoch's events are first-seen. Only keys travel here, never rows.

A decide task owns a range of buckets. It takes its slice of every key file of the epoch, lets the lowest
position win among equal ids, looks the winners up in the key index, and writes the new ids as a segment and
the positions of the duplicates. Given the same key files and segments it writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import DuplicateFile, FileRef
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import REPAIR_ADVICE, FileStore
from oncehouse.ledger.storage.key_index import Flags, Keys
from oncehouse.pipeline.dedup.payload_hash import find_conflicts

DUPLICATE_SCHEMA = pa.schema([("ordinal", pa.uint32()), ("event", pa.uint32()), ("conflict", pa.bool_())])

# Below this many keys one task decides for all buckets: starting more would cost more than they do.
KEYS_A_TASK = 100_000


@dataclass(frozen=True, kw_only=True)
class DecidePlan:
    bucket_from: int
    bucket_to: int
    buckets: int
    files_root: str
    key_files: tuple[FileRef, ...]
    """In the order of their ordinals."""
    segments: tuple[FileRef, ...]
    out: str
    """Path of the files to be written, without their endings."""
    tables: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    bucket_from: int
    bucket_to: int
    new: int
    duplicates: int
    conflicts: int
    segment: FileRef | None
    duplicate_file: DuplicateFile | None
    duplicate_rows: tuple[tuple[int, int, int], ...]
    """(ordinal, table, rows): how many rows of each part are duplicates."""


def plan_ranges(*, keys: int, buckets: int, cores: int) -> tuple[tuple[int, int], ...]:
    """Bucket ranges, one a task: one for little, at most one a core for much. Always aligned halves."""
    tasks = 1
    while tasks * 2 <= min(buckets, max(cores, 1)) and keys > tasks * KEYS_A_TASK:
        tasks *= 2
    width = buckets // tasks
    return tuple((task * width, (task + 1) * width - 1) for task in range(tasks))


def decide(plan: DecidePlan) -> Decision:
    """The work of one decide task."""
    store = FileStore(plan.files_root)
    keys, ordinal = _gather(plan, store)
    winners = key_index.first_of_each(keys)
    conflict = _conflicts_within(keys, winners)
    candidates = np.flatnonzero(winners)
    seen, seen_payload = _find_seen(plan, store, keys.take(candidates))
    is_new = winners.copy()
    is_new[candidates[seen]] = False
    # A duplicate of an indexed id is compared with the payload that the index remembers.
    if seen.any():
        group = np.cumsum(winners) - 1
        old = seen[group]
        conflict[old] = find_conflicts(keys.payload[old], seen_payload[group[old]])
    duplicates = np.flatnonzero(~is_new)
    fresh = np.flatnonzero(is_new)
    return Decision(
        bucket_from=plan.bucket_from,
        bucket_to=plan.bucket_to,
        new=len(fresh),
        duplicates=len(duplicates),
        conflicts=int(conflict[duplicates].sum()),
        segment=_write_segment(plan, store, keys.take(fresh)) if len(fresh) else None,
        duplicate_file=_write_duplicates(plan, store, keys, ordinal, conflict, duplicates),
        duplicate_rows=_rows_by_part(plan, keys, ordinal, duplicates),
    )


def _gather(plan: DecidePlan, store: FileStore) -> tuple[Keys, npt.NDArray[np.uint32]]:
    """The task's slice of all key files, sorted by (hi, lo, ordinal, event)."""
    slices = [
        key_index.slice_buckets(
            key_index.open_keys(store.local(file)), plan.bucket_from, plan.bucket_to, plan.buckets
        )
        for file in plan.key_files
    ]
    ordinal = np.repeat(np.arange(len(slices), dtype=np.uint32), [len(part) for part in slices])
    keys = Keys(
        hi=np.concatenate([part.hi for part in slices]),
        lo=np.concatenate([part.lo for part in slices]),
        payload=np.concatenate([part.payload for part in slices]),
        event=np.concatenate([part.event for part in slices]),
        routes=np.concatenate([part.routes for part in slices]),
    )
    if len(slices) == 1:
        return keys, ordinal
    # Equal ids keep the order in which they came, and they came by ordinal and then by event.
    order = key_index.merge_order(keys.hi, keys.lo)
    return keys.take(order), ordinal[order]


def _conflicts_within(keys: Keys, winners: Flags) -> Flags:
    conflict = np.zeros(len(keys), dtype=np.bool_)
    if len(keys):
        first = np.maximum.accumulate(np.where(winners, np.arange(len(keys)), 0))
        conflict = find_conflicts(keys.payload, keys.payload[first])
    return conflict


def _find_seen(plan: DecidePlan, store: FileStore, candidates: Keys) -> tuple[Flags, npt.NDArray[np.uint64]]:
    seen = np.zeros(len(candidates), dtype=np.bool_)
    payload = np.zeros(len(candidates), dtype=np.uint64)
    for file in plan.segments:
        segment = key_index.open_keys(store.checked(file))
        found = key_index.find(segment, candidates.hi, candidates.lo)
        hit = found >= 0
        payload[hit] = segment.payload[found[hit]]
        seen |= hit
    return seen, payload


def _write_segment(plan: DecidePlan, store: FileStore, fresh: Keys) -> FileRef:
    keys = Keys(hi=fresh.hi, lo=fresh.lo, payload=fresh.payload)
    return store.put(f"{plan.out}.segment.arrow", lambda path: key_index.write_keys(path, keys))


def _write_duplicates(
    plan: DecidePlan,
    store: FileStore,
    keys: Keys,
    ordinal: npt.NDArray[np.uint32],
    conflict: Flags,
    duplicates: npt.NDArray[np.int64],
) -> DuplicateFile | None:
    if not len(duplicates):
        return None
    by_position = duplicates[np.lexsort((keys.event[duplicates], ordinal[duplicates]))]
    batch = pa.record_batch(
        [
            pa.array(ordinal[by_position]),
            pa.array(keys.event[by_position]),
            pa.array(conflict[by_position]),
        ],
        schema=DUPLICATE_SCHEMA,
    )

    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
            writer.write_batch(batch)

    file = store.put(f"{plan.out}.duplicates.arrow", write)
    return DuplicateFile(rows=len(duplicates), file=file)


def _rows_by_part(
    plan: DecidePlan, keys: Keys, ordinal: npt.NDArray[np.uint32], duplicates: npt.NDArray[np.int64]
) -> tuple[tuple[int, int, int], ...]:
    counted = []
    for table in range(plan.tables):
        chosen = duplicates
        if len(keys.routes):
            chosen = duplicates[(keys.routes[duplicates] & np.uint32(1 << table)) != 0]
        rows = np.bincount(ordinal[chosen], minlength=len(plan.key_files))
        counted += [(int(at), table, int(rows[at])) for at in np.flatnonzero(rows)]
    return tuple(counted)


def live_events(store: FileStore, duplicate_files: Sequence[FileRef], *, ordinal: int, events: int) -> Flags:
    """For each event of a key file whether it is first-seen."""
    live = np.ones(events, dtype=np.bool_)
    for file in duplicate_files:
        # A flipped bit here would let a duplicate through in place of its winner: every byte is checked.
        path = store.checked(file)
        try:
            mine = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0).slice(file.row, file.rows)
        except (OSError, pa.ArrowException) as error:
            raise CorruptFileError(
                f"The ledger's file {file.path} cannot be read ({error}). {REPAIR_ADVICE}"
            ) from error
        start, end = np.searchsorted(mine.column("ordinal").to_numpy(), [ordinal, ordinal + 1])
        live[mine.column("event").to_numpy()[start:end]] = False
    return live
