"""The formulas of the key index against the index itself: its planner of merges at full size, its files on a sample.

Ten billion keys in 128 buckets (a power of two, so not a hundred) are simulated by the product's own planner over
segments of which only the sizes exist. Their files are made for a bucket's share of the keys: at a 64th of all
sizes in every session, in full in the long form.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench_modules import BENCHMARKS, load_benchmark
from oncehouse.capacity import constants, index_layout
from oncehouse.capacity.index_layout import IndexLayout, count_ranges, lay_out_keys
from oncehouse.ledger.models import FileRef, Segment
from oncehouse.ledger.storage import file_store, key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup import index_compaction
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, decide
from oncehouse.pipeline.dedup.index_compaction import MergePlan, merge_task, plan_merges

BUCKETS = 128
CORES = 16
WINDOW_SECONDS = 60 * 86_400.0
TEN_BILLION = 10_000_000_000
BUCKET_KEYS = TEN_BILLION // BUCKETS
# The formulas are bounds. They may be so much above what is found, and never below it.
SLACK = 4.0


def demand_bounded(found, reckoned: IndexLayout) -> None:
    assert found.segments <= reckoned.segments <= SLACK * found.segments
    assert found.lookups_a_key <= reckoned.lookups_a_key <= SLACK * found.lookups_a_key
    assert found.writes_a_key <= reckoned.writes_a_key <= SLACK * found.writes_a_key
    assert found.largest_keys <= index_compaction.MAX_KEYS


def simulate_and_reckon(keys: int, epoch_keys: int) -> tuple[object, IndexLayout]:
    found = load_benchmark("index_layout").simulate(
        keys=keys, epoch_keys=epoch_keys, buckets=BUCKETS, cores=CORES
    )
    ranges = count_ranges(epoch_keys, buckets=BUCKETS, cores=CORES)
    return found, lay_out_keys(keys, ranges=ranges, buckets=BUCKETS, epoch_keys=epoch_keys)


@pytest.mark.parametrize("epoch_keys", [500_000, 1_000_000])
def test_half_a_billion_keys_are_kept_in_as_many_segments_as_reckoned(epoch_keys):
    demand_bounded(*simulate_and_reckon(500_000_000, epoch_keys))


@pytest.mark.long
@pytest.mark.parametrize("epoch_keys", [100_000, 500_000, 1_500_000])
def test_ten_billion_keys_are_kept_in_as_many_segments_as_reckoned(epoch_keys):
    demand_bounded(*simulate_and_reckon(TEN_BILLION, epoch_keys))


class RealIndex:
    """Segments written by real decide tasks and merged by real merge tasks, without a catalog."""

    def __init__(self, folder: Path) -> None:
        self.store = FileStore(str(folder))
        self.segments: list[Segment] = []
        self._names = iter(range(1 << 30))

    def decide_epoch(self, keys: Keys, at: float) -> None:
        name = f"{next(self._names):010d}"
        file = self.store.put(f"{name}.keys.arrow", lambda path: key_index.write_keys(path, keys))
        plan = DecidePlan(
            bucket_from=0,
            bucket_to=BUCKETS - 1,
            buckets=BUCKETS,
            files_root=self.store.root,
            key_files=(file,),
            segments=tuple(segment.file for segment in self.segments),
            out=name,
            tables=1,
        )
        decision = decide(plan)
        assert decision.segment is not None
        self.add(name, (0, BUCKETS - 1), decision.new, (at, at), decision.segment)

    def add(
        self, name: str, buckets: tuple[int, int], keys: int, seen: tuple[float, float], file: FileRef
    ) -> None:
        self.segments.append(
            Segment(
                segment=name,
                bucket_from=buckets[0],
                bucket_to=buckets[1],
                keys=keys,
                first_seen_from=seen[0],
                first_seen_to=seen[1],
                file=file,
            )
        )

    def compact(self) -> None:
        while merges := plan_merges(self.segments, window_seconds=WINDOW_SECONDS):
            for merge in merges:
                gone = {segment.segment for segment in merge.segments}
                name = f"{next(self._names):010d}"
                plan = MergePlan(
                    files_root=self.store.root,
                    inputs=tuple(segment.file for segment in merge.segments),
                    out=name,
                    ranges=merge.ranges,
                    buckets=BUCKETS,
                )
                seen = (
                    min(segment.first_seen_from for segment in merge.segments),
                    max(segment.first_seen_to for segment in merge.segments),
                )
                self.segments = [segment for segment in self.segments if segment.segment not in gone]
                for one in merge_task(plan):
                    made = f"{name}-{one.bucket_from}"
                    self.add(made, (one.bucket_from, one.bucket_to), one.keys, seen, one.file)
                for segment in merge.segments:
                    self.store.delete(segment.file.path)
            self.segments.sort(key=lambda segment: (segment.first_seen_from, segment.segment))

    @property
    def keys(self) -> int:
        return sum(segment.keys for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.file.size_bytes for segment in self.segments)

    def count_look_ups(self) -> int:
        return max(
            sum(segment.bucket_from <= bucket <= segment.bucket_to for segment in self.segments)
            for bucket in range(BUCKETS)
        )

    def find_all(self, keys: Keys) -> np.ndarray:
        """In how many segments each key stands."""
        found = np.zeros(len(keys), dtype=np.int64)
        for segment in self.segments:
            opened = key_index.open_keys(self.store.checked(segment.file))
            found += key_index.find(opened, keys.hi, keys.lo) >= 0
        return found


def make_keys(chance: np.random.Generator, count: int, *, low: int = 0, high: int = 1 << 64) -> Keys:
    hi = chance.integers(low, high, count, dtype=np.uint64)
    hi.sort()
    lo, payload = (chance.integers(0, 1 << 64, count, dtype=np.uint64) for _ in range(2))
    rows = np.arange(count, dtype=np.uint32)
    return Keys(hi=hi, lo=lo, payload=payload, event=rows, routes=np.ones(count, dtype=np.uint32))


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """All sizes of the index at a 64th, so that a million keys have the shape of 64 million."""
    scale = index_compaction.FAN_IN**2
    for module in (index_compaction, index_layout):
        monkeypatch.setattr(
            module, "MAX_KEYS", index_compaction.MAX_KEYS // (scale if module is index_compaction else 1)
        )
        monkeypatch.setattr(
            module, "SPLIT_KEYS", index_compaction.SPLIT_KEYS // (scale if module is index_compaction else 1)
        )
    monkeypatch.setattr(index_layout, "tier_of", lambda keys: index_compaction.tier_of(keys * scale))
    return scale


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that need not survive a power cut: only their sizes matter here."""
    monkeypatch.setattr(file_store, "_sync", lambda path: None)


def test_real_segments_of_a_buckets_share_are_as_reckoned(smaller, hasty, tmp_path):
    """A million real keys in twelve ages, through real look-ups and merges."""
    chance = np.random.default_rng(7)
    index, epochs, epoch_keys = RealIndex(tmp_path), 36, 30_000
    first = make_keys(chance, epoch_keys)
    index.decide_epoch(first, at=0.0)
    for epoch in range(1, epochs):
        index.decide_epoch(make_keys(chance, epoch_keys), at=WINDOW_SECONDS * epoch / epochs)
        index.compact()
    reckoned = lay_out_keys(index.keys, ranges=1, buckets=BUCKETS, epoch_keys=epoch_keys)
    assert index.keys == epochs * epoch_keys
    assert reckoned.size_bytes <= index.size_bytes <= reckoned.size_bytes * 1.1
    assert len(index.segments) <= reckoned.segments <= SLACK * len(index.segments)
    assert index.count_look_ups() <= reckoned.lookups_a_key <= SLACK * index.count_look_ups()
    assert np.all(index.find_all(first) == 1), "each key stands in one segment, wherever merges have put it"
    assert not np.any(index.find_all(make_keys(chance, 1000)))


@pytest.mark.long
def test_real_segments_of_one_of_128_buckets_of_ten_billion_keys_are_as_reckoned(hasty, tmp_path):
    """78 million real keys of the first bucket, as merges of wider ranges hand them down: 1.3 million at a time."""
    chance = np.random.default_rng(7)
    index, pieces = RealIndex(tmp_path), 60
    for piece in range(pieces):
        at = WINDOW_SECONDS * piece / pieces
        keys = make_keys(chance, BUCKET_KEYS // pieces, high=(1 << 64) // BUCKETS)
        bare = Keys(hi=keys.hi, lo=keys.lo, payload=keys.payload)
        file = index.store.put(f"piece-{piece}", lambda path, bare=bare: key_index.write_keys(path, bare))
        index.add(f"piece-{piece:04d}", (0, 0), len(bare), (at, at), file)
        index.compact()
    reckoned = lay_out_keys(TEN_BILLION, ranges=CORES, buckets=BUCKETS, epoch_keys=1_500_000)
    assert index.keys == BUCKET_KEYS // pieces * pieces
    assert index.size_bytes / index.keys == pytest.approx(constants.SEGMENT_BYTES_A_KEY.value, rel=0.01)
    assert len(index.segments) <= reckoned.lookups_a_key <= SLACK * len(index.segments)
    assert max(segment.keys for segment in index.segments) <= index_compaction.MAX_KEYS
    assert np.all(index.find_all(keys.take(slice(0, None, 100))) == 1)


def list_figures() -> list[constants.Figure]:
    found = [value for value in vars(constants).values() if isinstance(value, constants.Figure)]
    return [*found, *constants.LOOKUP_SECONDS]


def test_sizes_are_what_the_code_writes_now(hasty, tmp_path):
    """Files, segments, packs and rows of the catalog; what depends on the machine is left to the command."""
    bench = load_benchmark("capacity")
    found = {
        **bench.measure_files(tmp_path / "files", events=10_000),
        **bench.measure_duplicates(tmp_path / "duplicates", events=10_000),
        **bench.measure_packs(tmp_path / "packs", events_an_epoch=300),
        **bench.capacity_catalog.measure(epochs=60),
    }
    for figure in list_figures():
        if figure.unit == "bytes" and figure.name in found:
            # A small catalog has pages that are half empty.
            off = 0.5 if figure.name.startswith(("catalog", "driver")) else 0.15
            assert found.pop(figure.name) == pytest.approx(figure.value, rel=off), figure.name
    assert set(found) == {"read_seconds_a_byte", "read_seconds_an_event"}


def test_every_figure_names_a_command_that_is_there():
    for figure in list_figures():
        assert (BENCHMARKS.parent / figure.command.split()[1]).is_file(), figure


@pytest.mark.long
def test_the_command_prints_every_figure_that_names_it():
    """Sizes and memory within a quarter; times are those of another machine."""
    command = [sys.executable, str(BENCHMARKS / "capacity.py")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    printed = {name: float(value) for name, value in map(str.split, shown.splitlines())}
    for figure in list_figures():
        if figure.command.endswith("capacity.py"):
            found = printed.pop(figure.name)
            assert figure.unit != "bytes" or found == pytest.approx(figure.value, rel=0.25), figure.name
    assert not printed
