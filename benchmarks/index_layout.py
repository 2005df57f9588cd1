"""The layout of a large key index: the product's own planner of merges over segments of which only the sizes exist.

    python benchmarks/index_layout.py [--keys 10000000000]

For epochs of several sizes it prints how many segments there are at the end of a window, in how many of them a key is
looked for, and how often merges wrote a key; beside them what `oncehouse plan-capacity` reckons with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from oncehouse.capacity.index_layout import count_ranges, lay_out_keys
from oncehouse.ledger.models import FileRef, Segment
from oncehouse.pipeline.dedup.deduplicate import plan_ranges
from oncehouse.pipeline.dedup.index_compaction import Merge, plan_merges

WINDOW_SECONDS = 60 * 86_400.0
_FILE = FileRef(path="", size_bytes=0, checksum="")


@dataclass(frozen=True, kw_only=True)
class Simulated:
    segments: int
    lookups_a_key: int
    """In the bucket with most."""
    writes_a_key: float
    largest_keys: int


def grow(
    *,
    keys: int,
    epoch_keys: int,
    buckets: int,
    cores: int,
    epochs_a_merge: int = 8,
    since: float = 0.0,
    seconds: float = WINDOW_SECONDS,
) -> tuple[list[Segment], int]:
    """The segments after equal epochs, compacted after every few of them as a running pipeline does.

    And how many keys went into merges. The epochs are spread over so many seconds from `since` on.
    """
    live: list[Segment] = []
    names = count()
    merged_keys = 0
    ranges = plan_ranges(keys=epoch_keys, buckets=buckets, cores=cores)
    epochs = keys // epoch_keys
    for epoch in range(epochs):
        at = since + seconds * epoch / epochs
        share = epoch_keys // len(ranges)
        live += [_segment(next(names), first, last, share, at, at) for first, last in ranges]
        due = epoch % epochs_a_merge == epochs_a_merge - 1 or epoch == epochs - 1
        while due and (merges := plan_merges(live, window_seconds=WINDOW_SECONDS)):
            gone = {segment.segment for merge in merges for segment in merge.segments}
            live = [segment for segment in live if segment.segment not in gone]
            for merge in merges:
                live += _perform(merge, names)
                merged_keys += sum(segment.keys for segment in merge.segments)
            live.sort(key=lambda segment: (segment.first_seen_from, segment.segment))
    return live, merged_keys


def simulate(*, keys: int, epoch_keys: int, buckets: int, cores: int, epochs_a_merge: int = 8) -> Simulated:
    """A window of equal epochs."""
    live, merged_keys = grow(
        keys=keys, epoch_keys=epoch_keys, buckets=buckets, cores=cores, epochs_a_merge=epochs_a_merge
    )
    return Simulated(
        segments=len(live),
        lookups_a_key=max(
            sum(segment.bucket_from <= bucket <= segment.bucket_to for segment in live)
            for bucket in range(buckets)
        ),
        writes_a_key=1 + merged_keys / (keys // epoch_keys * epoch_keys),
        largest_keys=max(segment.keys for segment in live),
    )


def _perform(merge: Merge, names: Iterable[int]) -> list[Segment]:
    """Ids are hashes, so ranges of equal width hold equally many."""
    keys = sum(segment.keys for segment in merge.segments)
    since = min(segment.first_seen_from for segment in merge.segments)
    until = max(segment.first_seen_to for segment in merge.segments)
    return [
        _segment(next(iter(names)), first, last, keys // len(merge.ranges), since, until)
        for first, last in merge.ranges
    ]


def _segment(name: int, first: int, last: int, keys: int, since: float, until: float) -> Segment:
    return Segment(
        segment=f"{name:012d}",
        bucket_from=first,
        bucket_to=last,
        keys=keys,
        first_seen_from=since,
        first_seen_to=until,
        file=_FILE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000_000_000)
    parser.add_argument("--buckets", type=int, default=128)
    parser.add_argument("--cores", type=int, default=16)
    asked = parser.parse_args()
    print(f"{asked.keys:,} keys, {asked.buckets} buckets, {asked.cores} cores: found (reckoned with)")
    for epoch_keys in (100_000, 500_000, 1_500_000):
        found = simulate(keys=asked.keys, epoch_keys=epoch_keys, buckets=asked.buckets, cores=asked.cores)
        ranges = count_ranges(epoch_keys, buckets=asked.buckets, cores=asked.cores)
        reckoned = lay_out_keys(asked.keys, ranges=ranges, buckets=asked.buckets, epoch_keys=epoch_keys)
        print(
            f"epochs of {epoch_keys:>9,} keys: {found.segments:>7,} segments ({reckoned.segments:,.0f}), "
            f"{found.lookups_a_key:>5} look-ups a key ({reckoned.lookups_a_key:,.0f}), "
            f"{found.writes_a_key:.1f} writes a key ({reckoned.writes_a_key:.1f}), largest {found.largest_keys:,}"
        )


if __name__ == "__main__":
    main()
