"""The ids of rows whose batches a catalog does not know: looked up, compared, and written into the key index.

They are read by ranges of buckets, so that only some of them are held at a time, whatever a table holds. What a catalog
still means to send, or could send again, is looked for among them: whether all of its rows, some, or none have come in
other batches.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.clickhouse.batch_rows import read_unique_ids
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.catalog.batches import load_open_parts, load_parts
from oncehouse.ledger.catalog.segments import ADOPTED_PREFIX, list_segments
from oncehouse.ledger.models import FileRef, Segment
from oncehouse.ledger.storage.key_index import Keys, find, first_of_each, open_keys, sort_order, write_keys
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.dedup.payload_hash import UNKNOWN
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.repair.table_diff import TableGap, may_share

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import LoadPart
    from oncehouse.ledger.storage.file_store import FileStore

# So many ids are held at a time.
_IDS_AT_ONCE = 4_000_000
_ALL = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class Sought:
    """An open part, or a batch of which no row stands under its own id."""

    name: str
    table: str
    batch_id: str | None
    loads: tuple[LoadPart, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the unknown rows prove."""

    arrived_parts: tuple[str, ...] = ()
    resent_batches: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def list_sought(base: Catalog, batch_ids: Sequence[str]) -> tuple[Sought, ...]:
    """Everything that may be sent, by the next run or when a person asks for it."""
    held = [
        Sought(name=f"part {load.part.part}", table=load.part.table, batch_id=None, loads=(load,))
        for load in load_open_parts(base)
    ]
    for batch_id in batch_ids:
        if loads := load_parts(base, batch_id):
            table = loads[0].part.table
            held.append(Sought(name=f"batch {batch_id}", table=table, batch_id=batch_id, loads=loads))
    return tuple(held)


def find_unknown_rows(
    client: Client,
    store: FileStore,
    gaps: Sequence[TableGap],
    sought: Sequence[Sought],
    index: Sequence[Keys],
    *,
    buckets: int,
) -> Found:
    """All gaps, those without unknown rows too: an event that goes to two tables must have come to both."""
    unknown = {gap.table.name: gap for gap in gaps if gap.unknown}
    candidates = [found for found in sought if found.table in unknown]
    there: Counter[str] = Counter()
    live: Counter[str] = Counter()
    refused: dict[str, None] = {}
    for first, last in slices(sum(gap.unknown_rows for gap in gaps), buckets):
        ids = {
            name: read_unknown_ids(client, gap, bucket_from=first, bucket_to=last, buckets=buckets)
            for name, gap in unknown.items()
        }
        refused |= dict.fromkeys(_describe_ambiguous(gaps, ids, index))
        live.clear()
        for held in candidates:
            try:
                mine = _live_ids(store, held.loads, unknown[held.table].table.id_column or "")
            except CorruptFileError as error:
                refused[f"whether the rows of {held.name} have come is unknown: {error}"] = None
                continue
            live[held.name] += len(mine)
            there[held.name] += count_matching(mine, ids[held.table])
    return _conclude(candidates, there, live, tuple(refused))


def _conclude(
    candidates: Sequence[Sought], there: Counter[str], live: Counter[str], refused: tuple[str, ...]
) -> Found:
    come = [held for held in candidates if 0 < there[held.name] == live[held.name]]
    return Found(
        arrived_parts=tuple(held.loads[0].part.part for held in come if held.batch_id is None),
        resent_batches=tuple(held.batch_id for held in come if held.batch_id is not None),
        refused=(
            *refused,
            *(
                f"{held.table} holds {there[held.name]} of the {live[held.name]} rows of {held.name} under batches "
                "that the catalog does not know. Delete the rows of those batches, so that they are sent or read again"
                for held in candidates
                if 0 < there[held.name] < live[held.name]
            ),
        ),
    )


def _describe_ambiguous(
    gaps: Sequence[TableGap], ids: dict[str, Keys], index: Sequence[Keys]
) -> Iterator[str]:
    """An event that goes to two tables must have come to both or to none: its id is remembered for both."""
    new = {name: _without(keys, index) for name, keys in ids.items()}
    none = sorted_keys([], [])
    for one, other in combinations([gap.table for gap in gaps], 2):
        if may_share(one, other) and not same_ids(new.get(one.name, none), new.get(other.name, none)):
            yield (
                f"{one.name} and {other.name} take the same events, but not the same ones have come to both under "
                "batches that the catalog does not know. Delete the rows of those batches in both, so that they are "
                "read again"
            )


def _live_ids(store: FileStore, loads: Sequence[LoadPart], id_column: str) -> Keys:
    found = [_live_halves(store, load, id_column) for load in loads]
    return sorted_keys([halves[:, 0] for halves in found], [halves[:, 1] for halves in found])


def _live_halves(
    store: FileStore, load: LoadPart, id_column: str
) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    rows = read_rows(store, load.part.file, [EVENT_COLUMN, id_column])
    live = live_events(store, load.duplicate_files, ordinal=load.part.ordinal, events=load.events)
    chosen = np.flatnonzero(live[rows.column(EVENT_COLUMN).to_numpy()])
    ids = rows.column(id_column).take(chosen).to_pylist()
    return np.frombuffer(b"".join(ids), dtype=">u8").reshape(-1, 2).astype(np.uint64)


# -- the key index ------------------------------------------------------------------------------------------


def open_index(base: Catalog, store: FileStore) -> list[Keys]:
    found = []
    for segment in list_segments(base):
        # One that is damaged is made again afterwards; ids that stand in two segments do no harm.
        with suppress(CorruptFileError):
            found.append(open_keys(store.checked(segment.file)))
    return found


def write_segments(
    pipeline: Pipeline,
    client: Client,
    store: FileStore,
    gaps: Sequence[TableGap],
    index: Sequence[Keys],
) -> Iterator[Segment]:
    """The unknown ids that the index does not have, for it."""
    buckets = pipeline.identity.buckets
    for first, last in slices(sum(gap.unknown_rows for gap in gaps), buckets):
        found = [
            read_unknown_ids(client, gap, bucket_from=first, bucket_to=last, buckets=buckets)
            for gap in gaps
            if gap.unknown
        ]
        keys = _without(sorted_keys([keys.hi for keys in found], [keys.lo for keys in found]), index)
        if not len(keys):
            continue
        name = f"{ADOPTED_PREFIX}{int(time.time())}-{uuid.uuid4().hex}"
        path = f"{pipeline.pipeline}/index/{name}.segment.arrow"
        file: FileRef = store.put(path, partial(write_keys, keys=keys))
        yield Segment(
            segment=name,
            bucket_from=first,
            bucket_to=last,
            keys=len(keys),
            first_seen_from=0.0,
            first_seen_to=0.0,
            file=file,
        )


def _without(keys: Keys, index: Sequence[Keys]) -> Keys:
    """Those that the index does not have."""
    known = np.zeros(len(keys), dtype=np.bool_)
    for segment in index:
        known |= find(segment, keys.hi, keys.lo) >= 0
    return keys.take(np.flatnonzero(~known))


# -- ids ----------------------------------------------------------------------------------------------------


def slices(rows: int, buckets: int) -> tuple[tuple[int, int], ...]:
    """Ranges of buckets, both ends included, so many that one range's ids can be held at a time."""
    number = 1
    while number < buckets and rows > number * _IDS_AT_ONCE:
        number *= 2
    width = buckets // number
    return tuple((at * width, (at + 1) * width - 1) for at in range(number))


def read_unknown_ids(
    client: Client, gap: TableGap, *, bucket_from: int = 0, bucket_to: int = 0, buckets: int = 1
) -> Keys:
    """The ids of rows whose batch the catalog does not know, sorted, each once."""
    width = (1 << 64) // buckets
    found = list(
        read_unique_ids(
            client,
            gap.table.name,
            batch_column=gap.table.batch_column,
            id_column=gap.table.id_column or "",
            batch_ids=gap.unknown,
            first=bucket_from * width,
            last=min((bucket_to + 1) * width - 1, _ALL),
        )
    )
    return sorted_keys([hi for hi, _ in found], [lo for _, lo in found])


def sorted_keys(
    hi: Sequence[np.ndarray[tuple[int], np.dtype[np.uint64]]],
    lo: Sequence[np.ndarray[tuple[int], np.dtype[np.uint64]]],
) -> Keys:
    high = np.concatenate([*hi, np.empty(0, dtype=np.uint64)])
    low = np.concatenate([*lo, np.empty(0, dtype=np.uint64)])
    order = sort_order(high, low)
    keys = Keys(hi=high[order], lo=low[order], payload=np.full(len(order), UNKNOWN, dtype=np.uint64))
    return keys.take(first_of_each(keys))


def same_ids(one: Keys, other: Keys) -> bool:
    return np.array_equal(one.hi, other.hi) and np.array_equal(one.lo, other.lo)


def count_matching(live: Keys, unknown: Keys) -> int:
    return int(np.count_nonzero(find(unknown, live.hi, live.lo) >= 0))
