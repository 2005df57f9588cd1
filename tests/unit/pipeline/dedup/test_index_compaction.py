"""Merging and rebuilding change the shape of the key index, never its answers."""

from __future__ import annotations

import tempfile
from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_examples import make_file
from oncehouse.ledger.models import FileRef, Segment
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, decide
from oncehouse.pipeline.dedup.index_compaction import (
    FAN_IN,
    SPLIT_KEYS,
    Merge,
    MergePlan,
    RebuildPlan,
    merge_task,
    plan_merges,
    rebuild_task,
)

DAY = 86400.0
WINDOW = 60 * DAY
HIGHS = [0, 1, (1 << 62) - 1, 1 << 62, 1 << 63, (1 << 64) - 1]
ids = st.tuples(st.sampled_from(HIGHS), st.integers(0, 6))


def make_segment(
    number: int, *, keys: int = 10, at: float = 0.0, buckets: tuple[int, int] = (0, 15)
) -> Segment:
    return Segment(
        segment=f"segment-{number}",
        bucket_from=buckets[0],
        bucket_to=buckets[1],
        keys=keys,
        first_seen_from=at,
        first_seen_to=at,
        file=make_file(f"segment-{number}"),
    )


def make_keys(found: list[tuple[int, int]], *, events: bool = False) -> Keys:
    hi = np.array([hi for hi, _ in found], dtype=np.uint64)
    lo = np.array([lo for _, lo in found], dtype=np.uint64)
    order = key_index.sort_order(hi, lo)
    payload = np.arange(len(found), dtype=np.uint64)[order]
    event = order.astype(np.uint32) if events else np.empty(0, dtype=np.uint32)
    return Keys(hi=hi[order], lo=lo[order], payload=payload, event=event)


def put(store: FileStore, name: str, keys: Keys) -> FileRef:
    return store.put(name, lambda path: key_index.write_keys(path, keys))


def read_ids(store: FileStore, file: FileRef) -> list[tuple[int, int]]:
    keys = key_index.open_keys(store.local(file))
    return list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))


def test_enough_segments_of_one_kind_become_one():
    segments = [make_segment(number) for number in range(FAN_IN)]
    assert [merge.segments for merge in plan_merges(segments, window_seconds=WINDOW)] == [tuple(segments)]


def test_few_segments_are_left_alone():
    assert not plan_merges([make_segment(number) for number in range(FAN_IN - 1)], window_seconds=WINDOW)


def test_segments_of_different_ranges_or_tiers_are_not_mixed():
    for other in ({"buckets": (0, 7)}, {"keys": 10_000}):
        segments = [make_segment(number) for number in range(FAN_IN - 1)]
        segments.append(make_segment(99, **other))
        assert not plan_merges(segments, window_seconds=WINDOW)


def test_what_is_left_of_an_age_that_is_over_becomes_one_and_is_not_mixed_with_younger():
    left = [make_segment(number, keys=8**number) for number in range(3)]
    young = make_segment(99, at=20 * DAY)
    assert [merge.segments for merge in plan_merges([*left, young], window_seconds=WINDOW)] == [tuple(left)]


def test_one_segment_of_an_age_that_is_over_is_left_alone():
    segments = [make_segment(1), make_segment(2, at=20 * DAY), make_segment(3, at=20 * DAY)]
    assert not plan_merges(segments, window_seconds=WINDOW)


def test_a_merge_stays_small_enough_for_a_worker():
    segments = [make_segment(number, keys=15_000_000) for number in range(FAN_IN)]
    assert not plan_merges(segments, window_seconds=WINDOW)


def test_many_keys_of_a_wide_range_go_on_in_narrower_ones():
    few, many = SPLIT_KEYS // FAN_IN - 1, SPLIT_KEYS // FAN_IN
    assert find_ranges(few, (0, 63)) == ((0, 63),)
    assert find_ranges(many, (0, 63)) == tuple((first, first + 7) for first in range(0, 64, 8))
    assert find_ranges(many, (32, 47)) == tuple((first, first + 1) for first in range(32, 48, 2))
    assert find_ranges(many, (4, 7)) == ((4, 4), (5, 5), (6, 6), (7, 7))
    assert find_ranges(many, (5, 5)) == ((5, 5),)


def find_ranges(keys: int, buckets: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Where FAN_IN segments of so many keys each end up."""
    segments = [make_segment(number, keys=keys, buckets=buckets) for number in range(FAN_IN)]
    return Merge(segments=tuple(segments)).ranges


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.floats(0, 100 * DAY), st.sampled_from([(0, 15), (0, 7), (8, 15)])),
        max_size=60,
    )
)
def test_no_segment_is_merged_twice_and_no_window_is_stretched(described):
    segments = [
        make_segment(number, keys=keys, at=at, buckets=buckets)
        for number, (keys, at, buckets) in enumerate(described)
    ]
    merges = plan_merges(segments, window_seconds=WINDOW)
    merged = [segment.segment for merge in merges for segment in merge.segments]
    assert len(merged) == len(set(merged))
    for merge in merges:
        assert len({(segment.bucket_from, segment.bucket_to) for segment in merge.segments}) == 1
        seen = [segment.first_seen_from for segment in merge.segments]
        assert max(seen) - min(seen) <= WINDOW / 12 + 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(ids, min_size=1, max_size=15, unique=True), min_size=1, max_size=5))
def test_a_merged_segment_holds_the_same_ids(tables):
    with tempfile.TemporaryDirectory() as root:
        store = FileStore(root)
        files = tuple(put(store, f"s{at}", make_keys(found)) for at, found in enumerate(tables))
        plan = MergePlan(files_root=root, inputs=files, out="merged", ranges=((0, 15),), buckets=16)
        (merged,) = merge_task(plan)
        assert read_ids(store, merged.file) == sorted({key for found in tables for key in found})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(ids, min_size=1, max_size=15, unique=True), min_size=1, max_size=5))
def test_a_merge_into_narrower_ranges_holds_every_id_once_and_in_its_range(tables):
    with tempfile.TemporaryDirectory() as root:
        store = FileStore(root)
        files = tuple(put(store, f"s{at}", make_keys(found)) for at, found in enumerate(tables))
        ranges = tuple((first, first + 1) for first in range(0, 16, 2))
        made = merge_task(MergePlan(files_root=root, inputs=files, out="merged", ranges=ranges, buckets=16))
        read = {(one.bucket_from, one.bucket_to): read_ids(store, one.file) for one in made}
        assert sorted(chain.from_iterable(read.values())) == sorted(
            {key for found in tables for key in found}
        )
        for (first, last), found in read.items():
            assert found
            assert all(first <= hi >> 60 <= last for hi, _ in found)
        assert [one.keys for one in made] == [len(found) for found in read.values()]


@settings(deadline=None, max_examples=30)
@given(
    history=st.lists(
        st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=3), min_size=1, max_size=3
    ),
    buckets=st.sampled_from([1, 4]),
)
def test_an_index_rebuilt_from_key_files_holds_what_deciding_wrote(history, buckets):
    """Epoch by epoch through `decide`, then everything once more from the key files alone."""
    with tempfile.TemporaryDirectory() as root:
        store = FileStore(root)
        segments: list[FileRef] = []
        inputs = []
        for number, epoch in enumerate(history):
            files = [
                put(store, f"{number}-{at}", make_keys(found, events=True)) for at, found in enumerate(epoch)
            ]
            decision = decide(
                DecidePlan(
                    bucket_from=0,
                    bucket_to=buckets - 1,
                    buckets=buckets,
                    files_root=root,
                    key_files=tuple(files),
                    segments=tuple(segments),
                    out=f"out-{number}",
                    tables=1,
                )
            )
            if decision.segment:
                segments.append(decision.segment)
            duplicates = (decision.duplicate_file.file,) if decision.duplicate_file else ()
            inputs += [(file, at, len(epoch[at]), duplicates) for at, file in enumerate(files)]
        rebuilt = [
            rebuild_task(
                RebuildPlan(
                    files_root=root,
                    bucket_from=bucket,
                    bucket_to=bucket,
                    buckets=buckets,
                    inputs=tuple(inputs),
                    first_seen_from=1.0,
                    first_seen_to=2.0,
                    out=f"index/rebuilt-{bucket}",
                )
            )
            for bucket in range(buckets)
        ]
        before = sorted(key for file in segments for key in read_ids(store, file))
        after = sorted(key for segment in rebuilt if segment for key in read_ids(store, segment.file))
        assert after == before == sorted({key for epoch in history for found in epoch for key in found})
        assert sum(segment.keys for segment in rebuilt if segment) == len(after)
