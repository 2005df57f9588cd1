"""Deciding agrees with a dictionary of first-seen events, over random key files, segments and buckets."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, Decision, decide, live_events, plan_ranges

TABLES = 3

# Few high and low halves, so that equal ids and equal high halves are common; the ends of the range included.
HIGHS = [0, 1, (1 << 60) - 1, 1 << 60, 1 << 63, (1 << 64) - 1]
ids = st.tuples(st.sampled_from(HIGHS), st.integers(0, 4))
payloads = st.integers(0, 2)


@dataclass(frozen=True, kw_only=True)
class Row:
    id: tuple[int, int]
    payload: int
    routes: int


rows = st.builds(Row, id=ids, payload=payloads, routes=st.integers(1, (1 << TABLES) - 1))
key_files = st.lists(st.lists(rows, min_size=1, max_size=25), min_size=1, max_size=5)
# Ids that an index holds are in one segment only, as invariants of the ledger have it.
indexes = st.dictionaries(ids, st.tuples(payloads, st.integers(0, 2)), max_size=20)


def write_key_file(store: FileStore, name: str, events: list[Row], *, routed: bool) -> FileRef:
    hi, lo, payload = (
        np.array(column, dtype=np.uint64)
        for column in (
            [row.id[0] for row in events],
            [row.id[1] for row in events],
            [row.payload for row in events],
        )
    )
    order = key_index.sort_order(hi, lo)
    routes = np.array([row.routes for row in events], dtype=np.uint32)[order]
    keys = Keys(
        hi=hi[order],
        lo=lo[order],
        payload=payload[order],
        event=order.astype(np.uint32),
        routes=routes if routed else np.empty(0, dtype=np.uint32),
    )
    return store.put(name, lambda path: key_index.write_keys(path, keys))


def write_segment(store: FileStore, name: str, known: dict[tuple[int, int], int]) -> FileRef:
    ordered = sorted(known)
    keys = Keys(
        hi=np.array([hi for hi, _ in ordered], dtype=np.uint64),
        lo=np.array([lo for _, lo in ordered], dtype=np.uint64),
        payload=np.array([known[key] for key in ordered], dtype=np.uint64),
    )
    return store.put(name, lambda path: key_index.write_keys(path, keys))


def read_ids(store: FileStore, file: FileRef) -> dict[tuple[int, int], int]:
    keys = key_index.open_keys(store.local(file))
    found = list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))
    assert found == sorted(found), "a segment is sorted"
    return dict(zip(found, keys.payload.tolist(), strict=True))


def decide_all(
    root: str, files: list[FileRef], segments: list[FileRef], *, buckets: int, tasks: int
) -> list[Decision]:
    width = buckets // tasks
    return [
        decide(
            DecidePlan(
                bucket_from=task * width,
                bucket_to=(task + 1) * width - 1,
                buckets=buckets,
                files_root=root,
                key_files=tuple(files),
                segments=tuple(segments),
                out=f"out-{task}",
                tables=TABLES,
            )
        )
        for task in range(tasks)
    ]


def remember(
    epoch: list[list[Row]], first_seen: dict[tuple[int, int], int]
) -> tuple[list[list[bool]], dict[tuple[int, int], int], int]:
    """(whether each event is first-seen, the new ids, conflicts), by a dictionary alone."""
    fresh: dict[tuple[int, int], int] = {}
    live: list[list[bool]] = []
    conflicts = 0
    for events in epoch:
        live.append([])
        for row in events:
            live[-1].append(row.id not in first_seen)
            conflicts += first_seen.setdefault(row.id, row.payload) != row.payload
            if live[-1][-1]:
                fresh[row.id] = row.payload
    return live, fresh, conflicts


def count_duplicate_rows(
    epoch: list[list[Row]], live: list[list[bool]], *, routed: bool
) -> Counter[tuple[int, int]]:
    """Rows of each (key file, table) that are no first-seen ones."""
    return Counter(
        (at, table)
        for at, events in enumerate(epoch)
        for row, is_live in zip(events, live[at], strict=True)
        for table in range(TABLES)
        if not is_live and (not routed or row.routes & (1 << table))
    )


@settings(deadline=None)  # each example writes files, and a disk may be busy
@given(
    epoch=key_files,
    index=indexes,
    routed=st.booleans(),
    split=st.sampled_from([(1, 1), (4, 1), (4, 4), (16, 2), (16, 16)]),
)
def test_deciding_agrees_with_a_dictionary_of_first_seen_events(epoch, index, routed, split):
    buckets, tasks = split
    with tempfile.TemporaryDirectory() as root:
        store = FileStore(root)
        files = [
            write_key_file(store, f"keys-{at}", events, routed=routed) for at, events in enumerate(epoch)
        ]
        segments = [
            write_segment(store, f"segment-{at}", known)
            for at in range(3)
            if (known := {key: payload for key, (payload, place) in index.items() if place == at})
        ]
        decisions = decide_all(root, files, segments, buckets=buckets, tasks=tasks)

        live, fresh, conflicts = remember(epoch, {key: payload for key, (payload, _) in index.items()})

        duplicate_files = [found.duplicate_file for found in decisions if found.duplicate_file]
        files = [found.file for found in duplicate_files]
        for ordinal, flags in enumerate(live):
            assert live_events(store, files, ordinal=ordinal, events=len(flags)).tolist() == flags
        duplicates = sum(not flag for flags in live for flag in flags)
        assert sum(found.new for found in decisions) == len(fresh)
        assert sum(found.duplicates for found in decisions) == duplicates
        assert sum(found.rows for found in duplicate_files) == duplicates
        assert sum(found.conflicts for found in decisions) == conflicts

        written: dict[tuple[int, int], int] = {}
        for found in decisions:
            if found.segment is not None:
                written |= read_ids(store, found.segment)
        assert written == fresh

        told = Counter[tuple[int, int]]()
        for found in decisions:
            for at, table, number in found.duplicate_rows:
                told[at, table] += number
        assert told == count_duplicate_rows(epoch, live, routed=routed)


@settings(deadline=None, max_examples=15)
@given(epoch=key_files)
def test_the_same_key_files_give_the_same_bytes(epoch):
    checksums = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as root:
            store = FileStore(root)
            files = [write_key_file(store, f"k{at}", events, routed=True) for at, events in enumerate(epoch)]
            found = decide_all(root, files, [], buckets=4, tasks=2)
            checksums.append([(one.segment, one.duplicate_file) for one in found])
    assert checksums[0] == checksums[1]


@given(
    keys=st.integers(0, 10_000_000),
    buckets=st.integers(0, 12).map(lambda power: 1 << power),
    cores=st.integers(0, 200),
)
def test_bucket_ranges_cover_every_bucket_exactly_once(keys, buckets, cores):
    ranges = plan_ranges(keys=keys, buckets=buckets, cores=cores)
    covered = [bucket for first, last in ranges for bucket in range(first, last + 1)]
    assert covered == list(range(buckets))
    assert len(ranges) <= max(cores, 1)


def test_few_keys_are_decided_by_one_task_and_many_by_several():
    assert plan_ranges(keys=1000, buckets=16, cores=8) == ((0, 15),)
    assert len(plan_ranges(keys=10_000_000, buckets=16, cores=8)) == 8


def test_an_event_without_any_duplicate_file_is_live(tmp_path: Path):
    schema = pa.schema([("ordinal", pa.uint32()), ("event", pa.uint32()), ("conflict", pa.bool_())])

    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([[1, 1], [0, 2], [False, True]], schema=schema))

    store = FileStore(str(tmp_path))
    file = store.put("duplicates.arrow", write)
    assert live_events(store, [], ordinal=1, events=3).tolist() == [True, True, True]
    assert live_events(store, [file], ordinal=1, events=3).tolist() == [False, True, False]
    assert live_events(store, [file], ordinal=0, events=3).tolist() == [True, True, True]
