"""Another identity rule, or another number of buckets, for a ledger that has events already.

The kept bytes of every key file are decoded once more, and new key files and a new index written next to the old ones,
round by round while events come in under the old rule. What came since the last round is made up for while they wait;
one transaction then puts all of it in its place together with the rule. Before it nothing has happened, after it all
has, and what a process that died had prepared is not made again. What is in ClickHouse, in parts and in batches stays
as it was: an event that the old rule took for a duplicate stays out, and two events that the new rule takes for one
stay two.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oncehouse.common import failpoints
from oncehouse.common.process_folder import process_folder
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import epochs, rekey, segments
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import FileRef, KeyFile, Segment
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Flags, Keys, UInt64, sort_order, write_keys
from oncehouse.pipeline.dedup.deduplicate import live_events, plan_ranges
from oncehouse.pipeline.dedup.index_compaction import AGE_SHARE, RebuildPlan, rebuild_task
from oncehouse.pipeline.dedup.payload_hash import hash_payloads
from oncehouse.pipeline.dedup.unique_id import reject_unidentified, unique_ids
from oncehouse.pipeline.ingest.manifest import ReadPlan
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import read_plan
from oncehouse.pipeline.ingest.redecode import describe_place, redecode_records
from oncehouse.pipeline.schema.identity_guard import format_section, identity_of
from oncehouse.pipeline.schema.required_fields import reject_versions
from oncehouse.pipeline.spark.tasks import run_tasks, run_tasks_on_half

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.pipeline.formats.base import Decoder

# A process that dies loses one round. So many at the most, an epoch apart, are made up for while events wait.
ROUND_EVENTS = 500_000
# Small epochs have key files of a few events, and each costs something by itself.
ROUND_FILES = 5_000
# So few are always made up for while events wait; about as many as a small epoch has.
NEAR_EVENTS = 50_000

Registered = tuple[int, float, KeyFile]
"""(epoch, registered at, key file)"""

RunTasks = Callable[["SparkSession", Any, Sequence[Any]], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round while epochs go on."""

    left: int
    """Events that were to be prepared when it began."""
    taken: int = 0
    """Of these, how many it prepared."""
    times: int = 1
    """How many times as large as the first it may be."""
    shares_cores: bool = True
    """Whether it leaves half of the cores to epochs."""


def plan_round(left: int, before: Round | None) -> Round | None:
    """The next round, with so many events left; None: the rest may be done while events wait. Pure.

    It may when it is little, or within a round and not even half as much as one round earlier. Where events come in
    nearly as fast as rounds prepare them, rounds grow until they are faster, first in size, for each has a cost of its
    own, and then by taking all cores: an event costs less here than it did when it was settled.
    """
    if left <= NEAR_EVENTS:
        return None
    if before is None:
        return Round(left=left)
    if before.left // 2 < left <= ROUND_EVENTS:
        return None
    if before.left - left > before.taken // 4:
        return replace(before, left=left)
    larger = before.times * 2 if before.taken < before.left else before.times
    return Round(left=left, times=larger, shares_cores=before.times == 1)


def choose_round(left: Sequence[Registered], *, most_events: int) -> tuple[Registered, ...]:
    """The oldest key files up to so many events, and at least one. Pure."""
    chosen: list[Registered] = []
    events = 0
    for entry in left:
        if chosen and events + entry[2].events > most_events:
            break
        chosen.append(entry)
        events += entry[2].events
    return tuple(chosen)


@dataclass(frozen=True, kw_only=True)
class RekeyPlan:
    """Key files that share a file of keys, which is written again."""

    read: ReadPlan
    key_files: tuple[KeyFile, ...]
    out: str


class RekeyJob:
    """One change of the rule, as the holder of the ingest lease performs it; `pipeline` has the new rule."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, *, request: int
    ) -> None:
        self.pipeline = pipeline
        self.identity = identity_of(pipeline, catalog)
        """The one that the ledger is to have."""
        self.request = request
        self._spark = spark
        self._catalog = catalog
        self._token = token
        self._before: Round | None = None
        self._since: int | None = None
        self._chosen: set[str] = set()

    def forget_lost(self) -> bool:
        """Start over if prepared files are gone; returns whether it did.

        Retention of 0.1.0 knows no names for them and sweeps, if it has its lease between two processes of ours.
        """
        named = rekey.prepared_paths(self._catalog)
        if not named or named <= set(
            FileStore(self.pipeline.ledger.files).walk(f"{self.pipeline.pipeline}/index")
        ):
            return False
        rekey.give_up(self._catalog, self._token)
        self._before, self._since = None, None
        return True

    def prepare_round(self) -> bool:
        """Prepare some of what is left while epochs go on; says whether the rest may be made up for while they wait."""
        _require_own_ids(self.pipeline, self._catalog)
        planned = plan_round(self._count_left(), self._before)
        if planned is None:
            return not self.forget_lost()
        taken = self._prepare(
            self._choose(planned.times), run_tasks_on_half if planned.shares_cores else run_tasks
        )
        self._before = replace(planned, taken=taken)
        return False

    def _count_left(self) -> int:
        return rekey.count_unprepared(self._catalog, self.request, since=self._since)

    def _choose(self, times: int = 1) -> tuple[Registered, ...]:
        left = rekey.list_unprepared(
            self._catalog, self.request, since=self._since, limit=ROUND_FILES * times
        )
        return choose_round(left, most_events=ROUND_EVENTS * times)

    def lost_files(self) -> bool:
        """Whether key files of the last round have left the ledger since."""
        known = {key_file.key_file for _, _, key_file in epochs.list_key_files(self._catalog)}
        return not self._chosen <= known

    def finish(self, *, epoch_events: int | None = None) -> str | None:
        """Make up for what came since, and change the rule; no epoch may be settled meanwhile.

        None: more is left than a round and an epoch of `epoch_events`; nothing was done.
        """
        _require_own_ids(self.pipeline, self._catalog)
        if epoch_events is not None and self._count_left() > ROUND_EVENTS + epoch_events:
            return None
        while chosen := self._choose():
            self._prepare(chosen, run_tasks)
        failpoints.reach("before changing the rule")
        change = rekey.change_identity(
            self._catalog,
            self._token,
            self.identity,
            request=self.request,
            rule=format_section(self.pipeline),
        )
        failpoints.reach("after changing the rule")
        return rekey.format_change(change)

    def _prepare(self, chosen: Sequence[Registered], run: RunTasks) -> int:
        """Returns the number of events."""
        self._chosen = {key_file.key_file for _, _, key_file in chosen}
        known = self._catalog.identity()
        made: dict[str, FileRef] = {}
        if known is None or known.fingerprint != self.identity.fingerprint:
            made = self._rewrite_keys([key_file for _, _, key_file in chosen], run)
        plans = _plan_segments(
            self.pipeline,
            self._catalog,
            chosen,
            made,
            token=self._token,
            cores=self._spark.sparkContext.defaultParallelism,
        )
        found: list[Segment | None] = run(self._spark, rebuild_task, plans) if plans else []
        failpoints.reach("keys written anew")
        rekey.note_prepared(
            self._catalog,
            self._token,
            self.request,
            [(key_file, made.get(key_file.key_file)) for _, _, key_file in chosen],
            [segment for segment in found if segment is not None],
        )
        self._since = chosen[-1][0]
        return _count_events(chosen)

    def _rewrite_keys(self, chosen: Sequence[KeyFile], run: RunTasks) -> dict[str, FileRef]:
        """Where the new keys of each lie."""
        pipeline, catalog = self.pipeline, self._catalog
        plan = read_plan(pipeline, catalog, epoch=epochs.next_epoch(catalog), token=self._token, whole=False)
        by_file: dict[str, list[KeyFile]] = {}
        for key_file in chosen:
            by_file.setdefault(key_file.keys.path, []).append(key_file)
        plans = [
            RekeyPlan(
                read=plan,
                key_files=tuple(members),
                out=f"{pipeline.pipeline}/index/rekeyed-{self._token}-{uuid.uuid4().hex}.keys.arrow",
            )
            for members in by_file.values()
        ]
        written: list[FileRef] = run(self._spark, rekey_task, plans)
        return {
            name: file
            for task, whole in zip(plans, written, strict=True)
            for name, file in _place(task.key_files, whole)
        }


def _require_own_ids(pipeline: Pipeline, catalog: Catalog) -> None:
    adopted = [found for found in segments.list_segments(catalog) if segments.is_adopted(found)]
    if adopted:
        until = datetime.fromtimestamp(max(s.first_seen_to for s in adopted) + pipeline.identity.window, UTC)
        raise PermanentError(
            f"Pipeline {pipeline.pipeline}: the key index holds {sum(s.keys for s in adopted)} ids that a repair took "
            "out of ClickHouse. The bytes that a new rule would make ids of no longer exist, so the rule cannot be "
            f"changed before they have left the window, on {until:%Y-%m-%d}."
        )


def _count_events(left: Iterable[Registered]) -> int:
    return sum(key_file.events for _, _, key_file in left)


def _plan_segments(
    pipeline: Pipeline,
    catalog: Catalog,
    chosen: Sequence[Registered],
    made: dict[str, FileRef],
    *,
    token: int,
    cores: int,
) -> list[RebuildPlan]:
    """Segments of the new index over these key files, those of one age together, in ranges as an epoch has them."""
    duplicates = epochs.list_duplicate_files(catalog, epochs_between=(chosen[0][0], chosen[-1][0]))
    age_seconds = max(pipeline.identity.window * AGE_SHARE, 1.0)
    oldest = catalog.earliest() - pipeline.identity.window
    by_age: dict[int, list[Registered]] = {}
    for entry in chosen:
        if entry[1] >= oldest:
            by_age.setdefault(int(entry[1] // age_seconds), []).append(entry)
    name = f"{pipeline.pipeline}/index/rekeyed-{token}-{uuid.uuid4().hex[:12]}"
    buckets = pipeline.identity.buckets
    return [
        RebuildPlan(
            files_root=pipeline.ledger.files,
            bucket_from=first,
            bucket_to=last,
            buckets=buckets,
            inputs=tuple(
                (made.get(found.key_file, found.keys), found.ordinal, found.events, duplicates.get(epoch, ()))
                for epoch, _, found in group
            ),
            first_seen_from=min(at for _, at, _ in group),
            first_seen_to=max(at for _, at, _ in group),
            out=f"{name}-{age}-{first}",
        )
        for age, group in sorted(by_age.items())
        for first, last in plan_ranges(keys=_count_events(group), buckets=buckets, cores=cores)
    ]


def _place(key_files: Iterable[KeyFile], file: FileRef) -> Iterator[tuple[str, FileRef]]:
    """Where each key file's range lies in the file that holds all of them."""
    row = 0
    for key_file in key_files:
        yield key_file.key_file, replace(file, row=row, rows=key_file.events)
        row += key_file.events


def rekey_task(plan: RekeyPlan) -> FileRef:
    """The work of one task: a file of keys written again, each key file's range sorted by itself."""
    store = FileStore(plan.read.files_root)
    decoder = make_decoder(plan.read)
    made = [sort_ids(ids) for ids in (make_ids(store, plan.read, decoder, found) for found in plan.key_files)]
    together = Keys(
        hi=np.concatenate([keys.hi for keys in made]),
        lo=np.concatenate([keys.lo for keys in made]),
        payload=np.concatenate([keys.payload for keys in made]),
        event=np.concatenate([keys.event for keys in made]),
    )
    return store.put(plan.out, lambda path: write_keys(path, together))


@dataclass(frozen=True, kw_only=True)
class Ids:
    """In the order of the events."""

    hi: UInt64
    lo: UInt64
    payload: UInt64


def make_ids(store: FileStore, read: ReadPlan, decoder: Decoder, key_file: KeyFile) -> Ids:
    found: list[tuple[UInt64, UInt64, UInt64]] = []
    for block, decoded in redecode_records(store, decoder, key_file.raw):
        named = reject_unidentified(read.identity, block, decoded, needs_value=read.needs_value)
        named = reject_versions(named, read.refused)
        if named.rejected:
            first = named.rejected[0]
            raise PermanentError(
                f"Pipeline {read.pipeline}: the identity rule cannot be changed: of "
                f"{describe_place(block, first.index)}, which is in the ledger, {first.detail}. "
                "Headers are kept only from the time on that a rule or a "
                "format asks for them. Choose a rule that every kept event fits, or say in the pipeline file how the "
                "field is found (source.protobuf.numbers, source.avro.aliases) or that it is in source.optional_fields."
            )
        ids = unique_ids(read.identity, decoded.rows, block, block.column("schema"))
        found.append((*ids, hash_payloads(block.column("value"), block.column("schema"))))
    hi, lo, payload = (np.concatenate(column) for column in zip(*found, strict=True))
    return Ids(hi=hi, lo=lo, payload=payload)


def sort_ids(ids: Ids) -> Keys:
    order = sort_order(ids.hi, ids.lo)
    return Keys(hi=ids.hi[order], lo=ids.lo[order], payload=ids.payload[order], event=order.astype(np.uint32))


# -- what it would mean -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What the new rule would make of the events that the ledger keeps."""

    events: int
    live: int
    """Those that were new under the rule of their time."""
    doubled: int
    """Of the live ones: how many the new rule takes for an event that was there before."""
    dropped: int
    """Of the others: how many the new rule would not have taken for duplicates. They stay out."""


def forecast(pipeline: Pipeline, catalog: Catalog) -> Forecast:
    """Decode all that is kept and count; nothing is changed. Memory is bounded by one bucket's share."""
    store = FileStore(pipeline.ledger.files)
    plan = read_plan(pipeline, catalog, epoch=0, token=0, whole=False)
    decoder = make_decoder(plan)
    duplicates = epochs.list_duplicate_files(catalog)
    events = total = doubled = dropped = 0
    with tempfile.TemporaryDirectory(prefix="rekey-", dir=process_folder()) as folder:
        for epoch, _, key_file in epochs.list_key_files(catalog):
            live = live_events(
                store, duplicates.get(epoch, ()), ordinal=key_file.ordinal, events=key_file.events
            )
            _spill(Path(folder), make_ids(store, plan, decoder, key_file), live)
            events += key_file.events
            total += int(np.count_nonzero(live))
        for file in sorted(Path(folder).iterdir()):
            of_file = _count(np.fromfile(file, dtype=_SPILLED))
            doubled, dropped = doubled + of_file[0], dropped + of_file[1]
    return Forecast(events=events, live=total, doubled=doubled, dropped=dropped)


_SPILLED = np.dtype([("hi", np.uint64), ("lo", np.uint64), ("live", np.bool_)])
_SPILL_BITS = np.uint64(64 - 6)


def _spill(folder: Path, ids: Ids, live: Flags) -> None:
    rows = np.empty(len(live), dtype=_SPILLED)
    rows["hi"], rows["lo"], rows["live"] = ids.hi, ids.lo, live
    share = ids.hi >> _SPILL_BITS
    for number in np.unique(share).tolist():
        with (folder / f"{number}").open("ab") as sink:
            rows[share == number].tofile(sink)


def _count(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> tuple[int, int]:
    """(live events that are doubled, ids that only dropped events have)"""
    order = np.lexsort((rows["lo"], rows["hi"]))
    hi, lo, live = rows["hi"][order], rows["lo"][order], rows["live"][order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    alive = np.add.reduceat(live.astype(np.int64), np.flatnonzero(first))
    return int(np.maximum(alive - 1, 0).sum()), int(np.count_nonzero(alive == 0))
