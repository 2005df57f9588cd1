"""What became of one Kafka record in a pipeline: read or not, new or not, in which batches, and are they there.

Reads the ledger only, and of its files the positions and no values.
A record of several rows has several fates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow.compute as pc

from oncehouse.common.formatting import escape_unprintable
from oncehouse.ledger.catalog.batches import find_batch
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import list_dead_letter_files, list_duplicates, read_positions
from oncehouse.ledger.catalog.rollup import ROLLED_UP
from oncehouse.ledger.models import DeadLetterKind, LedgerBatch, Part
from oncehouse.ledger.stats import offset_lookup
from oncehouse.ledger.stats.ledger_state import RegisteredKeyFile
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import open_keys
from oncehouse.pipeline.dead_letters.filter import Selection, Span
from oncehouse.pipeline.dead_letters.reader import find_dead_letters
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest.part_files import read_rows


class Fate(StrEnum):
    NOT_READ = "not read yet"
    NEW = "new"
    DUPLICATE = "duplicate"
    DEAD_LETTER = "dead letter"
    WAITING = "waiting for its schema"
    SKIPPED = "skipped"
    """A tombstone, or left out by `shape`."""
    PAST_WINDOW = "past the window"
    """Settled so long ago that only sums are kept."""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A row of the record in one table."""

    table: str
    part: str
    batch: LedgerBatch | None
    """None: it waits for a batch, or, being a duplicate, it is never sent."""


@dataclass(frozen=True, kw_only=True)
class RowTrace:
    row: int
    """Its place in a record of several rows."""
    fate: Fate
    epoch: int
    unique_id: str | None = None
    """In hexadecimal, as the id column has its bytes."""
    reason: str | None = None
    """Why it is a dead letter, or which schema it waits for; safe to print."""
    destinations: tuple[Destination, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordTrace:
    topic: str
    partition: int
    offset: int
    fate: Fate
    """That of its first row, or of the whole record where it has none."""
    epoch: int | None
    settled_at: float | None
    rows: tuple[RowTrace, ...] = ()


def trace_record(
    catalog: Catalog, store: FileStore, *, topic: str, partition: int, offset: int
) -> RecordTrace:
    """One record at one moment; the fate `not read yet` also where the pipeline does not read this topic."""
    at = Span(topic=topic, partition=partition, first=offset, last=offset)
    with catalog.snapshot() as view:
        epoch = offset_lookup.find_epoch(view, topic, partition, offset)
        if epoch is None:
            read = offset < read_positions(view).get((topic, partition), 0)
            return _whole(at, Fate.PAST_WINDOW if read else Fate.NOT_READ, None, None)
        files = offset_lookup.list_files_of(view, epoch)
        rows = [*_find_events(view, store, at, files), *_find_dead_letters(view, store, at, epoch)]
        settled = offset_lookup.read_epoch(view, epoch)
    settled_at = None if settled is None else settled.registered_at
    if rows:
        found = tuple(sorted(rows, key=lambda row: (row.row, row.epoch)))
        return RecordTrace(
            topic=topic,
            partition=partition,
            offset=offset,
            fate=found[0].fate,
            epoch=epoch,
            settled_at=settled_at,
            rows=found,
        )
    gone = settled is None or not (files or settled.counts.new + settled.counts.duplicate == 0)
    if epoch == ROLLED_UP or gone:
        return _whole(at, Fate.PAST_WINDOW, None if epoch == ROLLED_UP else epoch, settled_at)
    return _whole(at, Fate.SKIPPED, epoch, settled_at)


def _whole(at: Span, fate: Fate, epoch: int | None, settled_at: float | None) -> RecordTrace:
    return RecordTrace(
        topic=at.topic,
        partition=at.partition,
        offset=at.first,
        fate=fate,
        epoch=epoch,
        settled_at=settled_at,
    )


def _find_events(
    catalog: Catalog, store: FileStore, at: Span, files: tuple[RegisteredKeyFile, ...]
) -> Iterator[RowTrace]:
    for file in files:
        raw = read_rows(store, file.key_file.raw, ["topic", "partition", "offset", "row"])
        here = pc.and_(
            pc.equal(raw.column("offset"), at.first),
            pc.and_(
                pc.equal(raw.column("partition"), at.partition),
                pc.equal(raw.column("topic").cast("string"), at.topic),
            ),
        )
        for event in np.flatnonzero(here.to_numpy()).tolist():
            row = raw.column("row")[event].as_py() or 0
            yield _trace_event(catalog, store, file, event, row)


def _trace_event(
    catalog: Catalog, store: FileStore, file: RegisteredKeyFile, event: int, row: int
) -> RowTrace:
    key_file = file.key_file
    duplicates = list_duplicates(catalog, epochs_between=(file.epoch, file.epoch)).get(file.epoch, ())
    live = live_events(
        store, [found.file for found in duplicates], ordinal=key_file.ordinal, events=key_file.events
    )
    fate = Fate.NEW if live[event] else Fate.DUPLICATE
    return RowTrace(
        row=row,
        fate=fate,
        epoch=file.epoch,
        unique_id=_read_id(store, file, event),
        destinations=tuple(
            _destination(catalog, part)
            for part in offset_lookup.list_parts_of(catalog, key_file.key_file)
            if _holds(store, part, event)
        )
        if fate is Fate.NEW
        else (),
    )


def _read_id(store: FileStore, file: RegisteredKeyFile, event: int) -> str:
    keys = file.key_file.keys
    mine = open_keys(store.local(keys)).take(slice(keys.row, keys.row + file.key_file.events))
    at = int(np.flatnonzero(mine.event == event)[0])
    return f"{int(mine.hi[at]):016x}{int(mine.lo[at]):016x}"


def _holds(store: FileStore, part: Part, event: int) -> bool:
    events = read_rows(store, part.file, [EVENT_COLUMN]).column(EVENT_COLUMN)
    return bool(pc.any(pc.equal(events, event)).as_py())


def _destination(catalog: Catalog, part: Part) -> Destination:
    batch = None if part.batch_id is None else find_batch(catalog, part.batch_id)
    return Destination(table=part.table, part=part.part, batch=batch)


def _find_dead_letters(catalog: Catalog, store: FileStore, at: Span, epoch: int) -> Iterator[RowTrace]:
    """Dead letters at this position that were not tried again since; none is older than the epoch that settled it."""
    for kind, fate in ((DeadLetterKind.DEAD, Fate.DEAD_LETTER), (DeadLetterKind.WAITING, Fate.WAITING)):
        files = [file for file in list_dead_letter_files(catalog, kind=kind) if file.epoch >= epoch]
        for file in files:
            for found in find_dead_letters(store, file.file, Selection(positions=(at,))):
                names = ["row", "reason", "detail", "schema"]
                for dead_letter in found.dead_letters.select(names).to_pylist():
                    why = f"{dead_letter['reason']}: {dead_letter['detail'] or ''}"
                    waits = f"schema {dead_letter['schema']}"
                    yield RowTrace(
                        row=dead_letter["row"] or 0,
                        fate=fate,
                        epoch=file.epoch,
                        reason=escape_unprintable(why if fate is Fate.DEAD_LETTER else waits),
                    )
