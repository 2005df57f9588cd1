"""Another identity rule, or another number of buckets, for a ledger that has events already.

The kept bytes of every key file are decoded once more, and new key files and a new index written beside the old
ones; one transaction then puts them in their place together with the rule. Before it nothing has happened, after
it all has. What is in ClickHouse, in parts and in batches stays as it was: an event that the old rule took for a
duplicate stays out, and two events that the new rule takes for one stay two.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oncehouse import crash
from oncehouse.errors import PermanentError
from oncehouse.ledger import epochs, segments
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.keyindex import Flags, Keys, UInt64, sort_order, write_keys
from oncehouse.ledger.packs import Move
from oncehouse.ledger.records import FileRef, Identity, KeyFile, Segment
from oncehouse.ledger.rekeying import change_identity
from oncehouse.pipeline.compact import plan_rebuild, rebuild_task
from oncehouse.pipeline.decode_again import decode_again, tell_place
from oncehouse.pipeline.dedup import live_events
from oncehouse.pipeline.formats import make_decoder
from oncehouse.pipeline.identity import refuse_nameless, unique_ids
from oncehouse.pipeline.ingest import run_tasks
from oncehouse.pipeline.manifest import ReadPlan
from oncehouse.pipeline.payloads import hash_payloads
from oncehouse.pipeline.read_planning import read_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline
    from oncehouse.pipeline.decoding import Decoder


@dataclass(frozen=True, kw_only=True)
class RekeyPlan:
    """Key files that share a file of keys, which is written anew."""

    read: ReadPlan
    key_files: tuple[KeyFile, ...]
    out: str


def rekey(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int, asked: Identity, *, request: int
) -> str:
    """Bring the ledger to the rule that the pipeline file has; returns what was done."""
    known = catalog.identity()
    _demand_own_ids(pipeline, catalog)
    moves = None
    if known is None or known.fingerprint != asked.fingerprint:
        moves = _rewrite_keys(spark, pipeline, catalog, token)
    crash.reach("keys written anew")
    moved = {name: move.new for name, move in moves or ()}
    plans = plan_rebuild(pipeline, catalog, token, moved=moved)
    found: list[Segment | None] = run_tasks(spark, rebuild_task, plans) if plans else []
    made = [segment for segment in found if segment is not None]
    result = f"the ids of {sum(_events(moves))} events" if moves is not None else "no ids"
    result += f" were made anew; the key index holds {sum(s.keys for s in made)} keys in {len(made)} segments"
    crash.reach("before changing the rule")
    change_identity(
        catalog,
        token,
        asked,
        moves=None if moves is None else [move for _, move in moves],
        old=[segment.segment for segment in segments.list_segments(catalog)],
        new=made,
        request=(request, result),
    )
    crash.reach("after changing the rule")
    return result


def _demand_own_ids(pipeline: Pipeline, catalog: Catalog) -> None:
    adopted = [found for found in segments.list_segments(catalog) if segments.is_adopted(found)]
    if adopted:
        until = datetime.fromtimestamp(max(s.first_seen_to for s in adopted) + pipeline.identity.window, UTC)
        raise PermanentError(
            f"Pipeline {pipeline.pipeline}: the key index holds {sum(s.keys for s in adopted)} ids that a repair took "
            "out of ClickHouse. Nobody has the bytes that a new rule would make ids of, so the rule cannot be changed "
            f"before they have left the window, on {until:%Y-%m-%d}."
        )


def _events(moves: Sequence[tuple[str, Move]] | None) -> Iterator[int]:
    return (move.new.rows or 0 for _, move in moves or ())


def _rewrite_keys(
    spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int
) -> list[tuple[str, Move]]:
    plan = read_plan(pipeline, catalog, epoch=epochs.next_epoch(catalog), token=token, whole=False)
    by_file: dict[str, list[KeyFile]] = {}
    for _, _, key_file in epochs.list_key_files(catalog):
        by_file.setdefault(key_file.keys.path, []).append(key_file)
    plans = [
        RekeyPlan(
            read=plan,
            key_files=tuple(members),
            out=f"{pipeline.pipeline}/index/rekeyed-{token}-{uuid.uuid4().hex}.keys.arrow",
        )
        for members in by_file.values()
    ]
    written: list[FileRef] = run_tasks(spark, rekey_task, plans) if plans else []
    return [
        moved for task, file in zip(plans, written, strict=True) for moved in _place(task.key_files, file)
    ]


def _place(key_files: Iterable[KeyFile], file: FileRef) -> Iterator[tuple[str, Move]]:
    """Where each key file's range lies in the file that holds all of them."""
    row = 0
    for key_file in key_files:
        yield key_file.key_file, Move(old=key_file.keys, new=replace(file, row=row, rows=key_file.events))
        row += key_file.events


def rekey_task(plan: RekeyPlan) -> FileRef:
    """The work of one task: a file of keys written anew, each key file's range sorted by itself."""
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
    for block, decoded in decode_again(store, decoder, key_file.raw):
        named = refuse_nameless(read.identity, block, decoded)
        if named.rejected:
            first = named.rejected[0]
            raise PermanentError(
                f"Pipeline {read.pipeline}: the identity rule cannot be changed: of {tell_place(block, first.index)}, "
                f"which is in the ledger, {first.detail}. Headers are kept only from the time on that a rule or a "
                "format asks for them. Choose a rule that every kept event fits."
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
    with tempfile.TemporaryDirectory(prefix="oncehouse-rekey-") as folder:
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
