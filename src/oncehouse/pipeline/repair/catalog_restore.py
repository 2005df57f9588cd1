"""A catalog that is lost, damaged, or older than the tables: brought back from a snapshot and from ClickHouse.

The newest sound snapshot is entered (none: an empty catalog, and only while Kafka has every record from the first).
What ClickHouse has got since is adopted in the same transaction, so that reading on from the snapshot's offsets
delivers what is missing and nothing twice. What cannot be proven is refused with its reason, and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import PermanentError, TransientError
from oncehouse.ledger.catalog import epochs, query_batches, snapshots, table_adoption
from oncehouse.ledger.catalog.batches import list_batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.table_adoption import Adoption
from oncehouse.ledger.marks import drop_damaged, read_marks
from oncehouse.ledger.models import OffsetRange
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.checks.startup import ignore
from oncehouse.pipeline.repair.kafka_availability import KafkaFacts, missing_offsets
from oncehouse.pipeline.repair.sqlite_catalog_file import fill_catalog
from oncehouse.pipeline.repair.table_diff import (
    TableGap,
    assess_gap,
    describe_missing,
    read_gaps,
    require_quiet,
)
from oncehouse.pipeline.repair.unknown_row_ids import (
    Found,
    find_unknown_rows,
    list_sought,
    open_index,
    write_segments,
)
from oncehouse.pipeline.schema.identity_guard import identity_of

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.snapshots import SnapshotFile

# Files that hold rows of DataFrames or of imports: tasks name theirs by what they read.
_GIVEN_FILE = re.compile(r"/\d{7}/(\d{10})-\d+-[giw][^/]*$")


@dataclass(frozen=True, kw_only=True)
class CatalogRepair:
    """What is wrong with the catalog, and how it is brought back."""

    problem: str
    snapshot: SnapshotFile | None
    """None: it stays as it is, or starts empty."""
    begins_anew: bool
    epoch: int
    """The last one that it knows then."""
    reads: tuple[OffsetRange, ...]
    """Offsets that are read once more."""
    strange_rows: dict[str, int]
    """By table: rows whose batches it does not know; their ids enter the key index."""
    arrived_batches: tuple[str, ...]
    """Those that it took for waiting."""
    arrived_parts: tuple[str, ...]
    """Those that it took for open, whose rows came in batches that it does not know."""
    resent_batches: tuple[str, ...]
    """Those whose rows came in batches that it does not know."""
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


def plan_lost(
    pipeline: Pipeline, client: Client, problem: str, ask_kafka: AskKafka, *, user_rewrites: bool = False
) -> CatalogRepair:
    """For a catalog of which nothing can be used; `user_rewrites`: see `_describe_given`."""
    store = FileStore(pipeline.ledger.files)
    snapshot = snapshots.find_snapshot(store, pipeline.pipeline)
    with _base(pipeline, store, snapshot) as base:
        planned = _plan(pipeline, client, base, problem, ask_kafka, user_rewrites=user_rewrites)
    return replace(planned, snapshot=snapshot, begins_anew=snapshot is None)


def plan_older(
    pipeline: Pipeline,
    client: Client,
    catalog: Catalog,
    problem: str,
    ask_kafka: AskKafka,
    *,
    user_rewrites: bool = False,
) -> CatalogRepair:
    """For a catalog that is sound, but restored from before what the tables have."""
    return _plan(pipeline, client, catalog, problem, ask_kafka, user_rewrites=user_rewrites)


def _plan(
    pipeline: Pipeline,
    client: Client,
    base: Catalog,
    problem: str,
    ask_kafka: AskKafka,
    *,
    user_rewrites: bool,
) -> CatalogRepair:
    store = FileStore(pipeline.ledger.files)
    kafka = ask_kafka(epochs.read_topic_ids(base))
    gaps = read_gaps(client, pipeline, base)
    settled = assess_gap(gaps, list_batches(base))
    refused = [*settled.refused, *describe_missing(gaps, pipeline.tables)]
    # A table may not be able to say which events it holds, so it is asked when nothing else stands in the way.
    found = (
        _find_unknown_rows(pipeline, client, base, store, gaps, settled.absent) if not refused else Found()
    )
    reads = _find_reads(kafka, epochs.read_positions(base))
    refused += [*found.refused, *missing_offsets(reads, kafka)]
    if not user_rewrites:
        refused += _describe_given(pipeline, base, store)
    return CatalogRepair(
        problem=problem,
        snapshot=None,
        begins_anew=False,
        epoch=epochs.next_epoch(base) - 1,
        reads=reads,
        strange_rows={gap.table.name: gap.unknown_rows for gap in gaps if gap.unknown},
        arrived_batches=settled.arrived,
        arrived_parts=found.arrived_parts,
        resent_batches=found.resent_batches,
        refused=tuple(dict.fromkeys(refused)),
    )


def _find_reads(kafka: KafkaFacts, positions: dict[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic=place[0], partition=place[1], start=positions.get(place, 0), end=end)
        for place, end in sorted(kafka.latest.items())
        if end > positions.get(place, 0)
    )


def _find_unknown_rows(
    pipeline: Pipeline,
    client: Client,
    base: Catalog,
    store: FileStore,
    gaps: Sequence[TableGap],
    absent: Sequence[str],
) -> Found:
    if not any(gap.unknown for gap in gaps):
        return Found()
    sought, index = list_sought(base, absent), open_index(base, store)
    return find_unknown_rows(client, store, gaps, sought, index, buckets=pipeline.identity.buckets)


def _describe_given(pipeline: Pipeline, base: Catalog, store: FileStore) -> Iterator[str]:
    """Rows of DataFrames and imports cannot be read again; the user must write them again, and confirm that."""
    known, next_epoch = query_batches.list_queries(base), epochs.next_epoch(base)
    newer = any(
        int(found[1]) >= next_epoch
        for path in store.walk(f"{pipeline.pipeline}/")
        if (found := _GIVEN_FILE.search(f"/{path}"))
    )
    if pipeline.source.kafka is not None and not known and not newer:
        return
    named = f" (such as those of {', '.join(known[:3])})" if known else ""
    yield (
        f"rows that did not come from Kafka{named} and were settled after epoch {next_epoch - 1} are lost, if they had "
        "not arrived in ClickHouse. Give again, under a new query name, whatever DataFrames and imports gave since "
        "then (rows that have arrived are duplicates), and let `--apply --given-again` say that you will"
    )


# -- doing it -----------------------------------------------------------------------------------------------


def restore_lost(
    pipeline: Pipeline, client: Client, planned: CatalogRepair, say: Callable[[str], None] = ignore
) -> Path | None:
    """Enter the snapshot, or an empty ledger; returns where a damaged SQLite file was put aside."""
    _require_possible(pipeline, planned)
    require_quiet(client, pipeline)
    store = FileStore(pipeline.ledger.files)
    with _base(pipeline, store, planned.snapshot) as base:
        adopted = _adopt(pipeline, client, base, store, planned)
        identity = identity_of(pipeline, base) if planned.begins_anew else None

        def fill(catalog: Catalog) -> None:
            table_adoption.restore(catalog, base, adopted, identity)

        damaged_file = fill_catalog(pipeline, fill, say)
    catalog = open_catalog(pipeline, report=say)
    try:
        _renew_snapshots(catalog, store)
        drop_damaged(store, pipeline.pipeline)
    finally:
        catalog.close()
    return damaged_file


def catch_up(
    pipeline: Pipeline, client: Client, catalog: Catalog, token: int, planned: CatalogRepair
) -> None:
    """Let a catalog that is older than the tables learn what they have."""
    _require_possible(pipeline, planned)
    require_quiet(client, pipeline)
    store = FileStore(pipeline.ledger.files)
    table_adoption.adopt(catalog, token, _adopt(pipeline, client, catalog, store, planned))
    _renew_snapshots(catalog, store)
    drop_damaged(store, pipeline.pipeline)


def _renew_snapshots(catalog: Catalog, store: FileStore) -> None:
    # If the disk has no space for one now, retention writes the next: its token is higher than those of the lost time.
    with suppress(TransientError):
        snapshots.renew_snapshots(catalog, store)


def _require_possible(pipeline: Pipeline, planned: CatalogRepair) -> None:
    if planned.refused:
        raise PermanentError(
            f"Pipeline {pipeline.pipeline}: the catalog cannot be brought back exactly: {'; '.join(planned.refused)}. "
            "Nothing was changed."
        )


def _adopt(
    pipeline: Pipeline, client: Client, base: Catalog, store: FileStore, planned: CatalogRepair
) -> Adoption:
    gaps = [gap for gap in read_gaps(client, pipeline, base) if gap.unknown]
    known = snapshots.list_snapshots(store, pipeline.pipeline)
    marks = read_marks(store, pipeline.pipeline)
    return Adoption(
        segments=tuple(write_segments(pipeline, client, store, gaps, open_index(base, store))),
        rows={gap.table.name: (len(gap.unknown), gap.excess) for gap in gaps if gap.excess},
        arrived_batches=planned.arrived_batches,
        arrived_parts=planned.arrived_parts,
        resent_batches=planned.resent_batches,
        after_token=max([0, *(found.token for found in known), *marks.tokens.values()]),
        after_writes=max((mark.writes for mark in marks.found), default=0),
    )
