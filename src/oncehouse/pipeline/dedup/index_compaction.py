"""The key index kept compact: small segments merged in tiers, and the whole index rebuilt from key files.

`plan_merges` is pure. A merge never mixes keys whose first-seen times lie far apart, because a segment falls
out of the window whole. Only the holder of the ingest lease replaces segments; the files of replaced ones are
left for retention, for an epoch may still be reading them.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.common import failpoints, structured_logging
from oncehouse.errors import CorruptFileError, FencedError, PermanentError
from oncehouse.ledger.catalog import epochs, segments
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.segments import is_adopted
from oncehouse.ledger.models import FileRef, Segment
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

_log = logging.getLogger("oncehouse.pipeline")

FAN_IN = 8
# A merged segment stays below this many keys, so that a merge fits a worker's memory.
MAX_KEYS = 16_000_000
# Of the window: how far apart the first-seen times in one segment may lie.
AGE_SHARE = 1 / 12
_OVER = -1  # the tier of what belongs to an age that is over
# Merged keys of a wide range go on in narrower ones from so many on, so that a key is looked for in few segments.
SPLIT_KEYS = FAN_IN**7
PIECES = 8


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Segments of one range of buckets that become one, or one for each of several narrower ranges."""

    segments: tuple[Segment, ...]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(first bucket, last bucket) of what they become."""
        first, last = self.segments[0].bucket_from, self.segments[0].bucket_to
        width = last - first + 1
        large = sum(segment.keys for segment in self.segments) >= SPLIT_KEYS
        pieces = min(PIECES, width) if large else 1
        edges = [first + width * piece // pieces for piece in range(pieces + 1)]
        return tuple((start, end - 1) for start, end in pairwise(edges))


def plan_merges(segments: Sequence[Segment], *, window_seconds: float) -> tuple[Merge, ...]:
    """FAN_IN segments of the same range, tier and age become one of the next tier; of an age that is over, any two."""
    age_seconds = max(window_seconds * AGE_SHARE, 1.0)
    ages = {
        segment.segment: int(segment.first_seen_from // age_seconds)
        for segment in segments
        if not is_adopted(segment)
    }
    newest = max(ages.values(), default=0)
    groups: dict[tuple[int, int, int, int], list[Segment]] = {}
    for segment in segments:
        age = ages.get(segment.segment)
        if age is not None:
            # Nothing is added to an age that is over: what is left of its tiers would be searched until it expires.
            tier = tier_of(segment.keys) if age == newest else _OVER
            groups.setdefault((segment.bucket_from, segment.bucket_to, tier, age), []).append(segment)
    return tuple(
        Merge(segments=run)
        for (_, _, tier, _), group in sorted(groups.items())
        if tier == _OVER or len(group) >= FAN_IN
        for run in _runs(group)
    )


def tier_of(keys: int) -> int:
    """How often segments of one key have been merged to get so many."""
    return int(math.log(max(keys, 1), FAN_IN))


def _runs(group: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    """The group in runs that fit a worker's memory; a run of one is left as it is."""
    run: list[Segment] = []
    for segment in group:
        if run and sum(found.keys for found in run) + segment.keys > MAX_KEYS:
            if len(run) > 1:
                yield tuple(run)
            run = []
        run.append(segment)
    if len(run) > 1:
        yield tuple(run)


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    files_root: str
    inputs: tuple[FileRef, ...]
    out: str
    """Path of the files to be written, without their endings."""
    ranges: tuple[tuple[int, int], ...]
    buckets: int


@dataclass(frozen=True, kw_only=True)
class Merged:
    bucket_from: int
    bucket_to: int
    keys: int
    file: FileRef


def merge_task(plan: MergePlan) -> list[Merged]:
    """The merged segments, one a range that has keys."""
    store = FileStore(plan.files_root)
    merged = key_index.merge([key_index.open_keys(store.checked(file)) for file in plan.inputs])
    made = []
    for first, last in plan.ranges:
        mine = key_index.slice_buckets(merged, first, last, plan.buckets)
        if len(mine):
            file = store.put(f"{plan.out}-{first}.segment.arrow", partial(key_index.write_keys, keys=mine))
            made.append(Merged(bucket_from=first, bucket_to=last, keys=len(mine), file=file))
    return made


def compact(spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int) -> int:
    """Perform the merges that are due; returns how many segments went into them."""
    merges = plan_merges(segments.list_segments(catalog), window_seconds=pipeline.identity.window)
    for merge in merges:
        name = f"merged-{token}-{uuid.uuid4().hex}"
        plan = MergePlan(
            files_root=pipeline.ledger.files,
            inputs=tuple(segment.file for segment in merge.segments),
            out=f"{pipeline.pipeline}/index/{name}",
            ranges=merge.ranges,
            buckets=pipeline.identity.buckets,
        )
        try:
            with translated_errors(pipeline.pipeline):
                made: list[Merged] = run_tasks(spark, merge_task, [plan])[0]
        except CorruptFileError:
            if _are_there(catalog, merge):
                raise
            # Retention, perhaps of another process, dropped one of them while it was read.
            continue
        merged = [
            Segment(
                segment=f"{name}-{one.bucket_from}",
                bucket_from=one.bucket_from,
                bucket_to=one.bucket_to,
                keys=one.keys,
                first_seen_from=min(segment.first_seen_from for segment in merge.segments),
                first_seen_to=max(segment.first_seen_to for segment in merge.segments),
                file=one.file,
            )
            for one in made
        ]
        failpoints.reach("before replacing segments")
        try:
            segments.replace_segments(
                catalog, token, old=[segment.segment for segment in merge.segments], new=merged
            )
        except FencedError:
            raise
        except PermanentError:
            # Retention took one of them out of the window meanwhile; the others are merged next time.
            continue
        failpoints.reach("after replacing segments")
        keys = sum(one.keys for one in merged)
        structured_logging.write(
            _log, logging.INFO, "segments merged", old=len(merge.segments), new=len(merged), keys=keys
        )
    return sum(len(merge.segments) for merge in merges)


def _are_there(catalog: Catalog, merge: Merge) -> bool:
    known = {segment.segment for segment in segments.list_segments(catalog)}
    return all(segment.segment in known for segment in merge.segments)


@dataclass(frozen=True, kw_only=True)
class RebuildPlan:
    """One range of buckets of one age group of key files."""

    files_root: str
    bucket_from: int
    bucket_to: int
    buckets: int
    inputs: tuple[tuple[FileRef, int, int, tuple[FileRef, ...]], ...]
    """(key file, ordinal, events, its epoch's duplicate files)"""
    first_seen_from: float
    first_seen_to: float
    out: str


def rebuild_task(plan: RebuildPlan) -> Segment | None:
    store = FileStore(plan.files_root)
    slices = []
    for file, ordinal, events, duplicate_files in plan.inputs:
        keys = key_index.open_keys(store.checked(file)).take(slice(file.row, file.row + events))
        live = live_events(store, duplicate_files, ordinal=ordinal, events=events)
        mine = key_index.slice_buckets(keys, plan.bucket_from, plan.bucket_to, plan.buckets)
        slices.append(mine.take(np.flatnonzero(live[mine.event])))
    merged: Keys = key_index.merge(slices)
    if not len(merged):
        return None
    file = store.put(f"{plan.out}.segment.arrow", lambda path: key_index.write_keys(path, merged))
    return Segment(
        segment=plan.out.rsplit("/", 1)[1],
        bucket_from=plan.bucket_from,
        bucket_to=plan.bucket_to,
        keys=len(merged),
        first_seen_from=plan.first_seen_from,
        first_seen_to=plan.first_seen_to,
        file=file,
    )


def rebuild(spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, *, request: int) -> int:
    """Rebuild the key index from the key files of the ledger; returns the number of its keys."""
    plans = plan_rebuild(pipeline, catalog, token)
    found: list[Segment | None] = run_tasks(spark, rebuild_task, plans) if plans else []
    made = [segment for segment in found if segment is not None]
    keys = sum(segment.keys for segment in made)
    segments.replace_segments(
        catalog,
        token,
        old=[found.segment for found in segments.list_segments(catalog) if not is_adopted(found)],
        new=made,
        request=(request, f"the key index holds {keys} keys in {len(made)} segments"),
    )
    return keys


def plan_rebuild(pipeline: Pipeline, catalog: Catalog, token: int) -> list[RebuildPlan]:
    duplicates = epochs.list_duplicate_files(catalog)
    age_seconds = max(pipeline.identity.window * AGE_SHARE, 1.0)
    oldest = catalog.earliest() - pipeline.identity.window
    groups: dict[int, list[tuple[float, tuple[FileRef, int, int, tuple[FileRef, ...]]]]] = {}
    for epoch, registered_at, key_file in epochs.list_key_files(catalog):
        if registered_at >= oldest:
            entry = (key_file.keys, key_file.ordinal, key_file.events, duplicates.get(epoch, ()))
            groups.setdefault(int(registered_at // age_seconds), []).append((registered_at, entry))
    buckets = pipeline.identity.buckets
    name = f"{pipeline.pipeline}/index/rebuilt-{token}-{uuid.uuid4().hex[:12]}"
    return [
        RebuildPlan(
            files_root=pipeline.ledger.files,
            bucket_from=bucket,
            bucket_to=bucket,
            buckets=buckets,
            inputs=tuple(entry for _, entry in group),
            first_seen_from=min(at for at, _ in group),
            first_seen_to=max(at for at, _ in group),
            out=f"{name}-{age}-{bucket}",
        )
        for age, group in sorted(groups.items())
        for bucket in range(buckets)
    ]
