"""The layout of the key index as it will be: how many keys, in how many segments, and what a look-up costs. Pure.

Bounds, not averages: `plan_merges` leaves at most so many segments. A simulation (`benchmarks/index_layout.py`) runs it
over ten billion keys, and a test holds the formulas to what comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oncehouse.capacity import constants
from oncehouse.capacity.inputs import CapacityInputs
from oncehouse.pipeline.dedup.deduplicate import KEYS_A_TASK
from oncehouse.pipeline.dedup.index_compaction import AGE_SHARE, FAN_IN, MAX_KEYS, PIECES, SPLIT_KEYS, tier_of

# An age that has begun and one that has not wholly left the window.
_AGES = round(1 / AGE_SHARE) + 1
_TIERS = tier_of(MAX_KEYS) + 1
_LEAST_BUCKETS = 16
_MOST_BUCKETS = 4096


@dataclass(frozen=True, kw_only=True)
class IndexLayout:
    keys: float
    """With those past the window whose segment has not left it whole."""
    ranges: float
    """Into how many ranges of buckets epochs cut it: one for small ones, at most one a core."""
    segments: float
    """At most, over all ranges."""
    lookups_a_key: float
    """In how many segments a key is looked for."""
    lookup_seconds: float
    """Processor time for one key, in all of them."""
    writes_a_key: float
    """How often a key is written: once by its epoch, then by merges."""

    @property
    def size_bytes(self) -> float:
        return self.keys * constants.SEGMENT_BYTES_A_KEY.value

    @property
    def hot_bytes(self) -> float:
        """What look-ups touch again and again."""
        return self.keys * constants.LOOKUP_MEMORY_BYTES_A_KEY.value


def lay_out_index(inputs: CapacityInputs, *, cores: int, epoch_rows: float) -> IndexLayout:
    """`epoch_rows`: what an epoch reads in the usual traffic, for it decides into how many ranges the index is cut."""
    keys = inputs.new_a_second * inputs.window_seconds * (1 + AGE_SHARE)
    buckets = float(inputs.buckets) if inputs.buckets else need_buckets(inputs, keys, cores=cores)
    return lay_out_keys(
        keys,
        ranges=count_ranges(epoch_rows, buckets=inputs.buckets or _MOST_BUCKETS, cores=cores),
        buckets=buckets,
        epoch_keys=epoch_rows * (1 - inputs.duplicate_share),
    )


def lay_out_keys(keys: float, *, ranges: float, buckets: float, epoch_keys: float) -> IndexLayout:
    """Epochs write `ranges` ranges, which merges cut into narrower ones until each is a bucket.

    Of two segments of a bucket and an age that follow each other both hold more than MAX_KEYS together, else they would
    be one. Of wider ranges an age that is over leaves one or none, and the age that has begun up to FAN_IN - 1 of a
    tier: half of each is taken, which the simulation has never been above.
    """
    levels = 2 + math.log(max(buckets / ranges, 1.0), PIECES)
    full = 2 * keys / (buckets * MAX_KEYS)
    left = _AGES * (1 + (levels - 1) / 2)
    young = (FAN_IN - 1) / 2 * (tiers_below(epoch_keys / ranges) + levels)
    narrow = min(buckets * (_AGES + (FAN_IN - 1) / 2), PIECES * keys / SPLIT_KEYS)
    largest = min(keys / buckets, MAX_KEYS)
    return IndexLayout(
        keys=keys,
        ranges=ranges,
        segments=min(ranges * (_AGES + (FAN_IN - 1) * _TIERS) + narrow + full * buckets, max(keys, 1.0)),
        lookups_a_key=min(full + left + young, max(keys, 1.0)),
        lookup_seconds=(full + left) * seconds_among(largest) + young * seconds_among(1),
        writes_a_key=_count_writes(epoch_keys / ranges, levels),
    )


def tiers_below(keys: float) -> float:
    """Between what an epoch adds to a range and what is cut into narrower ones."""
    return max(0.0, math.log(SPLIT_KEYS / max(keys, 1.0), FAN_IN))


def _count_writes(keys: float, levels: float) -> float:
    """By the epoch, by a merge a tier and a level, and by those of what an age leaves."""
    return 2 + tiers_below(keys) + levels


def seconds_among(keys: float) -> float:
    """Of one look-up in a segment of so many keys; the next larger one that was measured counts."""
    for figure in constants.LOOKUP_SECONDS:
        if keys <= float(figure.name.rpartition("_")[2]):
            return figure.value
    return constants.LOOKUP_SECONDS[-1].value


def count_ranges(epoch_keys: float, *, buckets: int, cores: int) -> float:
    """As `dedup.plan_ranges`, but without steps, and never more than it makes: more load never means less cost."""
    return max(1.0, min(epoch_keys / KEYS_A_TASK, buckets, _power_below(cores)))


def need_buckets(inputs: CapacityInputs, keys: float, *, cores: int) -> float:
    """One a task that decides, and so many that those of a bucket and an age fit a worker when the index is rebuilt."""
    deciders = min(cores, inputs.epoch.max_rows / KEYS_A_TASK)
    return min(max(_LEAST_BUCKETS, deciders, keys / _AGES / MAX_KEYS), _MOST_BUCKETS)


def recommend_buckets(inputs: CapacityInputs, keys: float, *, cores: int) -> int:
    """The next power of two."""
    return 1 << math.ceil(math.log2(need_buckets(inputs, keys, cores=cores)))


def _power_below(count: int) -> int:
    return 1 << (max(count, 1).bit_length() - 1)
