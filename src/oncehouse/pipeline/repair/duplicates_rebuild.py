"""Which events of an epoch were duplicates, found once more from the ids that the ledger keeps.

An event is surely a duplicate when its id stands before it: in the epoch itself, in an epoch within the window before,
or among ids that were taken out of ClickHouse. Whether older ids were still remembered then is not known, so a list is
only accepted when the events that are surely duplicates are as many as the ledger counted: then they are those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.errors import CorruptFileError, PermanentError
from oncehouse.ledger.catalog.segments import is_adopted
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA, live_events
from oncehouse.pipeline.dedup.payload_hash import find_conflicts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from oncehouse.ledger.models import DuplicateFile, KeyFile
    from oncehouse.ledger.stats.ledger_state import LedgerState
    from oncehouse.ledger.storage.file_store import FileStore


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    keys: Keys
    """Sorted by id, then by position."""
    ordinal: npt.NDArray[np.uint32]


def find_duplicates(
    store: FileStore, state: LedgerState, epoch: int, *, window_seconds: float
) -> pa.RecordBatch:
    """All positions of the epoch, by ordinal and event; raises PermanentError where they are unknown."""
    own = _gather(store, [found.key_file for found in state.key_files if found.epoch == epoch])
    first = key_index.first_of_each(own.keys)
    group = np.cumsum(first) - 1
    winners = own.keys.take(np.flatnonzero(first))
    seen, payload = _find_in_window(store, state, epoch, winners, window_seconds)
    # The payload that a duplicate is compared with: the remembered one, else that of the first in the epoch.
    payload = np.where(seen, payload, winners.payload)
    duplicate = ~first | seen[group]
    conflict = find_conflicts(own.keys.payload, payload[group])
    chosen = np.flatnonzero(duplicate)
    counted = sum(found.rows for found in state.duplicates.get(epoch, ()))
    if len(chosen) != counted:
        raise PermanentError(
            f"{len(chosen)} events of epoch {epoch} are surely duplicates, the ledger counted {counted}: the ids of "
            "some have left the window since, so which ones they were is unknown. Nothing was changed."
        )
    order = chosen[np.lexsort((own.keys.event[chosen], own.ordinal[chosen]))]
    columns = (own.ordinal[order], own.keys.event[order], conflict[order])
    return pa.record_batch([pa.array(column) for column in columns], schema=DUPLICATE_SCHEMA)


def _gather(store: FileStore, key_files: list[KeyFile]) -> _Epoch:
    opened = [_open(store, found) for found in key_files]
    ordinal = np.repeat(
        np.array([found.ordinal for found in key_files], dtype=np.uint32), [len(keys) for keys in opened]
    )
    together = Keys(
        hi=np.concatenate([keys.hi for keys in opened]),
        lo=np.concatenate([keys.lo for keys in opened]),
        payload=np.concatenate([keys.payload for keys in opened]),
        event=np.concatenate([keys.event for keys in opened]),
    )
    order = key_index.merge_order(together.hi, together.lo)
    return _Epoch(keys=together.take(order), ordinal=ordinal[order])


def _open(store: FileStore, key_file: KeyFile) -> Keys:
    keys = key_index.open_keys(store.checked(key_file.keys))
    return keys.take(slice(key_file.keys.row, key_file.keys.row + key_file.events))


def _find_in_window(
    store: FileStore, state: LedgerState, epoch: int, winners: Keys, window_seconds: float
) -> tuple[key_index.Flags, key_index.UInt64]:
    seen = np.zeros(len(winners), dtype=np.bool_)
    payload = np.zeros(len(winners), dtype=np.uint64)
    registered_at = next(row.registered_at for row in state.epochs if row.epoch == epoch)
    for keys in _earlier(store, state, epoch, registered_at, window_seconds):
        at = key_index.find(keys, winners.hi, winners.lo)
        fresh = (at >= 0) & ~seen
        payload[fresh] = keys.payload[at[fresh]]
        seen |= fresh
    return seen, payload


def _earlier(
    store: FileStore, state: LedgerState, epoch: int, registered_at: float, window_seconds: float
) -> Iterator[Keys]:
    for found in state.key_files:
        if found.epoch < epoch and found.registered_at >= registered_at - window_seconds:
            lists = [duplicates.file for duplicates in state.duplicates.get(found.epoch, ())]
            key_file = found.key_file
            try:
                keys = _open(store, key_file)
                live = live_events(store, lists, ordinal=key_file.ordinal, events=key_file.events)
            except CorruptFileError:
                continue  # what is missing for it shows in the count
            # Only a winner is remembered, and from its own time on: duplicates do not renew it.
            yield keys.take(np.flatnonzero(live[keys.event]))
    for segment in state.segments:
        if is_adopted(segment) and segment.first_seen_to <= registered_at:
            yield key_index.open_keys(store.checked(segment.file))


def without_known(store: FileStore, found: pa.RecordBatch, sound: list[DuplicateFile]) -> pa.RecordBatch:
    """The positions that no sound list of the epoch has."""
    held: set[tuple[int, int]] = set()
    for duplicates in sound:
        with store.open(duplicates.file) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            mine = batch.slice(duplicates.file.row, duplicates.file.rows)
            held.update(
                zip(mine.column("ordinal").to_pylist(), mine.column("event").to_pylist(), strict=True)
            )
    if not held:
        return found
    places = zip(found.column("ordinal").to_pylist(), found.column("event").to_pylist(), strict=True)
    return found.filter(pa.array([place not in held for place in places], pa.bool_()))
