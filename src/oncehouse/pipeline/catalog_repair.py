"""A catalog that is lost, damaged, or older than the tables: brought back from a snapshot and from ClickHouse.

The newest sound snapshot is entered (none: an empty catalog, and only while Kafka has every record from the first).
What ClickHouse has got since is adopted in the same transaction, so that reading on from the snapshot's offsets
delivers what is missing and nothing twice. What cannot be proven is refused with its reason, and nothing is changed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.databases import database_file
from oncehouse.errors import CorruptFileError, PermanentError
from oncehouse.ledger import adoption, epochs, snapshots
from oncehouse.ledger.adoption import Adoption
from oncehouse.ledger.batches import list_batches, load_open_parts, load_parts
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.keyindex import Keys, find, open_keys, write_keys
from oncehouse.ledger.records import FileRef, OffsetRange, Segment
from oncehouse.ledger.segments import ADOPTED_PREFIX, list_segments
from oncehouse.pipeline.adopting import identity_of
from oncehouse.pipeline.damage import KafkaFacts, missing_offsets
from oncehouse.pipeline.dedup import live_events
from oncehouse.pipeline.parts import EVENT_COLUMN, read_rows
from oncehouse.pipeline.table_gap import (
    TableGap,
    count_there,
    demand_quiet,
    judge_gap,
    judge_part,
    may_share,
    read_gaps,
    read_strange_ids,
    same_ids,
    slices,
    sorted_keys,
)

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config import Pipeline
    from oncehouse.ledger.records import LoadPart
    from oncehouse.ledger.snapshots import SnapshotFile


@dataclass(frozen=True, kw_only=True)
class CatalogRepair:
    """What is wrong with the catalog, and how it is brought back."""

    problem: str
    snapshot: SnapshotFile | None
    """None: it stays as it is, or begins anew."""
    begins_anew: bool
    epoch: int
    """The last one that it knows then."""
    reads: tuple[OffsetRange, ...]
    """Offsets that are read once more."""
    strange_rows: dict[str, int]
    """By table: rows whose batches it does not know; their ids enter the key index."""
    arrived_batches: tuple[str, ...]
    gone_batches: tuple[str, ...]
    refused: tuple[str, ...]
    """Why it cannot be done; empty where it can."""

    @property
    def records(self) -> int:
        return sum(span.end - span.start for span in self.reads)


@contextmanager
def _base(pipeline: Pipeline, store: FileStore, snapshot: SnapshotFile | None) -> Iterator[Catalog]:
    """The catalog out of the snapshot, or an empty one."""
    if snapshot is not None:
        with snapshots.open_snapshot(store, snapshot, pipeline.pipeline) as catalog:
            yield catalog
        return
    catalog = Catalog("sqlite://", pipeline.pipeline)
    try:
        catalog.prepare()
        yield catalog
    finally:
        catalog.close()


AskKafka = Callable[[dict[str, str]], KafkaFacts]
"""What Kafka has of the topics that are known by these ids."""


def plan_lost(pipeline: Pipeline, client: Client, problem: str, ask_kafka: AskKafka) -> CatalogRepair:
    """For a catalog of which nothing can be used."""
    store = FileStore(pipeline.ledger.files)
    snapshot = snapshots.find_snapshot(store, pipeline.pipeline)
    with _base(pipeline, store, snapshot) as base:
        planned = _plan(pipeline, client, base, problem, ask_kafka)
    if snapshot is not None:
        return replace(planned, snapshot=snapshot)
    return replace(planned, begins_anew=True, refused=(*planned.refused, *_why_not_anew(pipeline)))


def plan_older(
    pipeline: Pipeline, client: Client, catalog: Catalog, problem: str, ask_kafka: AskKafka
) -> CatalogRepair:
    """For a catalog that is sound, but restored from before what the tables have."""
    return _plan(pipeline, client, catalog, problem, ask_kafka)


def _why_not_anew(pipeline: Pipeline) -> Iterator[str]:
    """Nobody knows then what was settled and not delivered: every record is needed, from the first on."""
    if pipeline.source.kafka is None:
        yield "there is no sound snapshot of the catalog, and its events did not come from Kafka"


def _plan(
    pipeline: Pipeline, client: Client, base: Catalog, problem: str, ask_kafka: AskKafka
) -> CatalogRepair:
    kafka = ask_kafka(epochs.read_topic_ids(base))
    gaps = read_gaps(client, pipeline, base)
    settled = judge_gap(gaps, list_batches(base))
    positions = epochs.read_positions(base)
    reads = tuple(
        OffsetRange(topic=place[0], partition=place[1], start=positions.get(place, 0), end=end)
        for place, end in sorted(kafka.latest.items())
        if end > positions.get(place, 0)
    )
    refused = [*settled.refused, *missing_offsets(reads, kafka)]
    return CatalogRepair(
        problem=problem,
        snapshot=None,
        begins_anew=False,
        epoch=epochs.next_epoch(base) - 1,
        reads=reads,
        strange_rows={gap.table.name: gap.strange_rows for gap in gaps if gap.strange},
        arrived_batches=settled.arrived,
        gone_batches=settled.gone,
        refused=tuple(dict.fromkeys(refused)),
    )


# -- doing it -----------------------------------------------------------------------------------------------


def restore_lost(pipeline: Pipeline, client: Client, planned: CatalogRepair) -> Path | None:
    """Enter the snapshot, or an empty ledger; returns where a damaged SQLite file was put aside."""
    _demand_possible(pipeline, planned)
    demand_quiet(client, pipeline)
    store = FileStore(pipeline.ledger.files)
    with _base(pipeline, store, planned.snapshot) as base:
        adopted = _adopt(pipeline, client, base, store, planned)
        aside = _put_aside(pipeline)
        catalog = Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline)
        try:
            catalog.prepare()
            identity = identity_of(pipeline, base) if planned.begins_anew else None
            adoption.restore(catalog, base, adopted, identity)
        finally:
            catalog.close()
    return aside


def catch_up(
    pipeline: Pipeline, client: Client, catalog: Catalog, token: int, planned: CatalogRepair
) -> None:
    """Let a catalog that is older than the tables learn what they have."""
    _demand_possible(pipeline, planned)
    demand_quiet(client, pipeline)
    store = FileStore(pipeline.ledger.files)
    adoption.adopt(catalog, token, _adopt(pipeline, client, catalog, store, planned))


def _demand_possible(pipeline: Pipeline, planned: CatalogRepair) -> None:
    if planned.refused:
        raise PermanentError(
            f"Pipeline {pipeline.pipeline}: the catalog cannot be brought back exactly: {'; '.join(planned.refused)}. "
            "Nothing was changed."
        )


def _adopt(
    pipeline: Pipeline, client: Client, base: Catalog, store: FileStore, planned: CatalogRepair
) -> Adoption:
    gaps = [gap for gap in read_gaps(client, pipeline, base) if gap.strange]
    index = list(_open_index(base, store))
    _demand_together(client, gaps, index)
    made = tuple(_write_segments(pipeline, client, store, gaps, index))
    strange = {gap.table.name: (gap, read_strange_ids(client, gap)) for gap in gaps}
    return Adoption(
        segments=made,
        rows={gap.table.name: (len(gap.strange), gap.excess) for gap in gaps if gap.excess},
        arrived_batches=planned.arrived_batches,
        arrived_parts=tuple(_arrived_parts(base, store, strange)),
        resent_batches=tuple(_resent_batches(base, store, strange, planned.gone_batches)),
    )


def _open_index(base: Catalog, store: FileStore) -> Iterator[Keys]:
    for segment in list_segments(base):
        # One that is damaged is made again afterwards; ids that stand in two segments do no harm.
        with suppress(CorruptFileError):
            yield open_keys(store.checked(segment.file))


def _without(keys: Keys, index: Sequence[Keys]) -> Keys:
    """Those that the index does not have."""
    known = np.zeros(len(keys), dtype=np.bool_)
    for segment in index:
        known |= find(segment, keys.hi, keys.lo) >= 0
    return keys.take(np.flatnonzero(~known))


def _demand_together(client: Client, gaps: Sequence[TableGap], index: Sequence[Keys]) -> None:
    """An event that goes to two tables must have come to both or to none: its id is remembered for both."""
    for one, other in combinations(gaps, 2):
        if may_share(one.table, other.table) and not same_ids(
            _without(read_strange_ids(client, one), index), _without(read_strange_ids(client, other), index)
        ):
            raise PermanentError(
                f"{one.table.name} and {other.table.name} take the same events, but not the same ones have come to "
                "both under batches that the catalog does not know. Delete the rows of those batches in both, so that "
                "they are read again; nothing was changed."
            )


def _write_segments(
    pipeline: Pipeline,
    client: Client,
    store: FileStore,
    gaps: Sequence[TableGap],
    index: Sequence[Keys],
) -> Iterator[Segment]:
    buckets = pipeline.identity.buckets
    for first, last in slices(sum(gap.strange_rows for gap in gaps), buckets):
        found = [
            read_strange_ids(client, gap, bucket_from=first, bucket_to=last, buckets=buckets) for gap in gaps
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


_Strange = dict[str, tuple[TableGap, Keys]]


def _resent_batches(base: Catalog, store: FileStore, strange: _Strange, gone: Sequence[str]) -> Iterator[str]:
    """Loaded batches whose rows stand in the table under others now: a table was filled again in the lost time."""
    for batch_id in gone:
        held = [load for load in load_parts(base, batch_id) if load.part.table in strange]
        if held and all(_has_come(store, load, strange) for load in held):
            yield batch_id


def _has_come(store: FileStore, load: LoadPart, strange: _Strange) -> bool:
    gap, there = strange[load.part.table]
    live = _live_ids(store, load, gap.table.id_column or "")
    return count_there(live, there) == len(live)


def _arrived_parts(base: Catalog, store: FileStore, strange: _Strange) -> Iterator[str]:
    for load in load_open_parts(base):
        if load.part.table in strange:
            gap, there = strange[load.part.table]
            if judge_part(load.part, _live_ids(store, load, gap.table.id_column or ""), there):
                yield load.part.part


def _live_ids(store: FileStore, load: LoadPart, id_column: str) -> Keys:
    rows = read_rows(store, load.part.file, [EVENT_COLUMN, id_column])
    live = live_events(store, load.duplicate_files, ordinal=load.part.ordinal, events=load.events)
    chosen = np.flatnonzero(live[rows.column(EVENT_COLUMN).to_numpy()])
    ids = rows.column(id_column).take(chosen).to_pylist()
    halves = np.frombuffer(b"".join(ids), dtype=">u8").reshape(-1, 2).astype(np.uint64)
    return sorted_keys([halves[:, 0]], [halves[:, 1]])


def read_adopted_again(pipeline: Pipeline, client: Client, catalog: Catalog) -> tuple[Segment, ...]:
    """The ids that once came out of the tables, read from there again."""
    gaps = [gap for gap in read_gaps(client, pipeline, catalog) if gap.strange]
    return tuple(_write_segments(pipeline, client, FileStore(pipeline.ledger.files), gaps, ()))


def _put_aside(pipeline: Pipeline) -> Path | None:
    """Move a damaged SQLite file out of the way, with what SQLite keeps beside it; a sound database stays."""
    catalog = Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline, retry_seconds=())
    try:
        damaged = snapshots.examine(catalog.engine) is not None
        path = Path(catalog.engine.url.database or "")
    finally:
        catalog.close()
    if not damaged:
        return None
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns() // 1_000_000}")
    for ending in ("-wal", "-shm", ""):
        beside = path.with_name(path.name + ending)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + ending))
    return aside


def look_at_catalog(pipeline: Pipeline) -> str | None:
    """What keeps the catalog from being used at all; None where it can be read and knows the pipeline."""
    url = pipeline.ledger.catalog.get_secret_value()
    if (path := database_file(url)) is not None and not path.is_file():
        return f"there is no file {path}"
    catalog = Catalog(url, pipeline.pipeline, retry_seconds=(0.2, 1.0))
    try:
        if (damage := snapshots.examine(catalog.engine)) is not None:
            return f"the SQLite file is damaged: {damage}"
        if not catalog.exists() or catalog.identity() is None:
            return "it does not know the pipeline"
    except CorruptFileError as error:
        return str(error)
    finally:
        catalog.close()
    return None
