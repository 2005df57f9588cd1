"""Damaged files made again: what `repair_plan.py` planned, file by file, under the leases of all stages.

Every new file is compared with what the ledger knows of the old one before the catalog names it: counts of events, rows
and live rows, columns and types, ids where they are still there. It gets a new name and checksum in one transaction;
before that nothing has happened. Runs in the process of the command, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from oncehouse.clickhouse.client import connect
from oncehouse.errors import CorruptFileError, PermanentError
from oncehouse.ledger.catalog import segments
from oncehouse.ledger.catalog.file_replacement import Restored, enter_duplicates, enter_files
from oncehouse.ledger.models import FileRef, KeyFile, Segment
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile, read_state
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.preflight import with_merging_fields_if_up
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.dedup.index_compaction import plan_rebuild, rebuild_task
from oncehouse.pipeline.ingest.part_files import (
    epoch_path,
    read_rows,
    write_blocks,
    write_dead_letters,
)
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import read_plan
from oncehouse.pipeline.repair.duplicates_rebuild import find_duplicates, without_known
from oncehouse.pipeline.repair.epoch_reread import RereadEpoch, read_epoch, split_dead_letters
from oncehouse.pipeline.repair.part_rebuild import PartMaker
from oncehouse.pipeline.repair.repair_plan import FileKind, Repair, RepairSource
from oncehouse.pipeline.repair.table_diff import read_gaps
from oncehouse.pipeline.repair.unknown_row_ids import write_segments
from oncehouse.pipeline.requests.rekey import make_ids, sort_ids

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.pipeline.ingest.manifest import ReadPlan

_BLOCK_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was made again in one transaction."""

    repairs: tuple[Repair, ...]
    released: tuple[str, ...]
    """Batches that were parked because of the damage and are tried again now."""


class Restorer:
    """Makes files again from what the ledger says now; one is made for each kind, in the order of FileKind."""

    def __init__(self, pipeline: Pipeline, catalog: Catalog, token: int) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._token = token
        self._store = FileStore(pipeline.ledger.files)

    @cached_property
    def _state(self) -> LedgerState:
        return read_state(self._catalog)

    def restore(self, repairs: Sequence[Repair]) -> Done:
        """Repairs of one kind and one epoch; all of them or none."""
        match repairs[0].kind:
            case FileKind.RAW:
                released = self._raw(repairs)
            case FileKind.KEYS:
                released = self._keys(repairs)
            case FileKind.DUPLICATES:
                released = self._duplicates(repairs)
            case FileKind.PART:
                released = self._parts(repairs)
            case FileKind.DEAD_LETTERS:
                released = self._dead_letters(repairs)
            case FileKind.SEGMENT:
                released = self._segments(repairs)
        return Done(repairs=tuple(repairs), released=released)

    def _path(self, epoch: int, ending: str) -> str:
        name = f"h{uuid.uuid4().hex[:12]}.{ending}"
        return epoch_path(self._pipeline.pipeline, epoch, self._token, name)

    def _enter(self, restored: Sequence[Restored]) -> tuple[str, ...]:
        return enter_files(self._catalog, self._token, restored)

    def _read_epoch(self, epoch: int) -> RereadEpoch:
        kafka = self._pipeline.source.kafka
        if kafka is None:
            raise PermanentError("the pipeline file names no Kafka to read from")
        known = self._known_pipeline
        try:
            return read_epoch(known, self._catalog, kafka, self._state, epoch)
        except PermanentError:
            if not known.merging_fields:
                raise
        # Settled while its tables were not known to merge rows.
        return read_epoch(self._pipeline, self._catalog, kafka, self._state, epoch)

    @cached_property
    def _known_pipeline(self) -> Pipeline:
        """As a run knows it: records without a field by which a table merges rows were dead letters."""
        return with_merging_fields_if_up(self._pipeline) or self._pipeline

    # Raw bytes, from Kafka

    def _raw(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        epoch = repairs[0].epoch
        reread = self._read_epoch(epoch)
        wanted = {repair.name for repair in repairs}
        start, restored = 0, []
        for found in (found for found in self._state.key_files if found.epoch == epoch):
            key_file = found.key_file
            mine = reread.raw.slice(start, key_file.events)
            start += key_file.events
            if key_file.key_file not in wanted:
                continue
            blocks = [mine.slice(at, _BLOCK_ROWS) for at in range(0, mine.num_rows, _BLOCK_ROWS)]
            new = self._store.put(self._path(epoch, "raw.arrow"), partial(write_blocks, blocks=blocks))
            self._require_same_ids(key_file, new)
            restored.append(Restored(column="raw", old=key_file.raw, new=new))
        return self._enter(restored)

    def _require_same_ids(self, key_file: KeyFile, raw: FileRef) -> None:
        """Where the ids are still there, they prove the bytes: payload hashes are among them."""
        if not self._is_sound(key_file.keys):
            return
        made = self._make_keys(replace(key_file, raw=replace(raw, rows=key_file.events)))
        kept = key_index.open_keys(self._store.checked(key_file.keys)).take(
            slice(key_file.keys.row, key_file.keys.row + key_file.events)
        )
        same = all(
            np.array_equal(getattr(made, name), getattr(kept, name))
            for name in ("hi", "lo", "payload", "event")
        )
        if not same:
            self._store.delete(raw.path)
            raise PermanentError(
                f"the events of {key_file.key_file} read again from Kafka have other ids or bytes than those that were "
                "settled; the pipeline file reads them otherwise now. Nothing was changed."
            )

    def _is_sound(self, file: FileRef) -> bool:
        try:
            self._store.verify(file)
        except CorruptFileError:
            return False
        return True

    # Ids, from raw bytes

    @cached_property
    def _plain_plan(self) -> ReadPlan:
        plan = read_plan(self._pipeline, self._catalog, epoch=0, token=self._token, whole=False)
        # What was settled has its ids, whatever would be refused today.
        return replace(plan, refused={}, needs_value=False)

    def _make_keys(self, key_file: KeyFile) -> key_index.Keys:
        plan = self._plain_plan
        return sort_ids(make_ids(self._store, plan, make_decoder(plan), key_file))

    def _keys(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        restored = []
        for repair in repairs:
            key_file = self._find(repair.name).key_file
            keys = self._make_keys(key_file)
            if len(keys) != key_file.events:
                raise PermanentError(
                    f"{repair.name}: its raw bytes hold {len(keys)} events, the ledger {key_file.events}"
                )
            new = self._store.put(
                self._path(repair.epoch, "keys.arrow"), partial(key_index.write_keys, keys=keys)
            )
            restored.append(Restored(column="keys", old=key_file.keys, new=new))
        return self._enter(restored)

    def _find(self, name: str) -> RegisteredKeyFile:
        return next(found for found in self._state.key_files if found.key_file.key_file == name)

    # Positions of duplicates, from ids

    def _duplicates(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        epoch = repairs[0].epoch
        damaged = {repair.file.path for repair in repairs}
        found = find_duplicates(
            self._store, self._state, epoch, window_seconds=self._pipeline.identity.window
        )
        self._require_live_rows(epoch, found, damaged)
        sound = [file for file in self._state.duplicates[epoch] if file.file.path not in damaged]
        left = without_known(self._store, found, sound)

        def write(path: str) -> None:
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
                writer.write_batch(left)

        new = self._store.put(self._path(epoch, "duplicates.arrow"), write)
        old = [repair.file for repair in repairs]
        return enter_duplicates(self._catalog, self._token, epoch, old=old, new=new, rows=left.num_rows)

    def _require_live_rows(self, epoch: int, found: pa.RecordBatch, damaged: set[str]) -> None:
        """Every part that holds all events of its key file must get the live rows that it was registered with."""
        counted = np.bincount(found.column("ordinal").to_numpy())
        events = {f.key_file.key_file: f.key_file.events for f in self._state.key_files if f.epoch == epoch}
        for part in self._state.parts:
            if events.get(part.key_file) != part.rows:
                continue
            dropped = int(counted[part.ordinal]) if part.ordinal < len(counted) else 0
            if part.rows - dropped != part.live_rows:
                raise PermanentError(
                    f"part {part.part} would have {part.rows - dropped} live rows, it was registered with "
                    f"{part.live_rows} ({', '.join(sorted(damaged))}). Nothing was changed."
                )

    # Parts, from raw bytes

    @cached_property
    def _part_maker(self) -> PartMaker:
        return PartMaker(
            pipeline=self._pipeline,
            catalog=self._catalog,
            store=self._store,
            state=self._state,
            plan=self._plain_plan,
        )

    def _parts(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        maker, restored = self._part_maker, []
        for repair in repairs:
            part = next(found for found in self._state.parts if found.part == repair.name)
            source = self._find(part.key_file)
            new = maker.make(part, source, self._path(source.epoch, "part.arrow"))
            restored.append(Restored(column="part", old=part.file, new=new))
        return self._enter(restored)

    # Dead letters, from Kafka

    def _dead_letters(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        epoch = repairs[0].epoch
        reread = self._read_epoch(epoch)
        names = {repair.name for repair in repairs}
        of_epoch = [found for found in self._state.dead_letter_files if found.epoch == epoch]
        restored = []
        for kind in sorted({found.kind for found in of_epoch if found.dead_letter_file in names}):
            mine = [found for found in of_epoch if found.kind is kind]
            damaged = [found for found in mine if found.dead_letter_file in names]
            known = [read_rows(self._store, found.file) for found in mine if found not in damaged]
            for file, table in zip(damaged, split_dead_letters(reread, damaged, known), strict=True):
                new = self._store.put(
                    self._path(epoch, f"{kind}.letters.parquet"),
                    partial(write_dead_letters, table=table),
                )
                restored.append(Restored(column="letters", old=file.file, new=new))
        return self._enter(restored)

    # The key index, from ids

    def _segments(self, repairs: Sequence[Repair]) -> tuple[str, ...]:
        if any(repair.source is RepairSource.KEYS for repair in repairs):
            made = [rebuild_task(plan) for plan in plan_rebuild(self._pipeline, self._catalog, self._token)]
            self._replace(
                [found for found in self._state.segments if not segments.is_adopted(found)],
                [found for found in made if found is not None],
            )
        if any(repair.source is RepairSource.CLICKHOUSE for repair in repairs):
            old = [found for found in self._state.segments if segments.is_adopted(found)]
            restored = self._reread_adopted(old)
            seen = min(s.first_seen_from for s in old), max(s.first_seen_to for s in old)
            self._replace(old, [replace(s, first_seen_from=seen[0], first_seen_to=seen[1]) for s in restored])
        return ()

    def _reread_adopted(self, old: Sequence[Segment]) -> tuple[Segment, ...]:
        """The ids that once came out of the tables, read from there again, where no row of them is gone."""
        client = connect(self._pipeline.clickhouse)
        gaps = read_gaps(client, self._pipeline, self._catalog)
        for gap in gaps:
            if gap.unknown_rows < gap.rows_in_sum:
                raise PermanentError(
                    f"{gap.table.name} holds {gap.unknown_rows} rows of batches that the ledger knows only in sum, and "
                    f"had {gap.rows_in_sum}: the ids of rows that were deleted cannot be read again, and their events "
                    "would count as new. Nothing was changed."
                )
        made = tuple(write_segments(self._pipeline, client, self._store, gaps, ()))
        kept, found = sum(segment.keys for segment in old), sum(segment.keys for segment in made)
        if found < kept:
            raise PermanentError(
                f"the tables hold {found} ids of batches that the ledger does not know by name, {kept} were taken from "
                "them before: rows were deleted, and their events would count as new. Nothing was changed."
            )
        return made

    def _replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        segments.replace_segments(self._catalog, self._token, old=[found.segment for found in old], new=new)
