"""Reading: raw Kafka records become parts, key files and dead letters, inside one Spark task.

A task writes chunks. A chunk is one key file, one file of raw bytes, and a part for each table it has rows
for; it ends at a cap of rows or bytes. Rows keep Kafka's order, never leave the task, and the driver gets only
a manifest of a few lines. What is written here does not exist until the driver registers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from oncehouse.ledger.models import DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys, UInt32, UInt64, sort_order, write_keys
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.dedup.payload_hash import hash_payloads
from oncehouse.pipeline.dedup.unique_id import reject_unidentified, unique_ids
from oncehouse.pipeline.formats.base import Decoded, Decoder, split_runs
from oncehouse.pipeline.formats.json.new_fields import NewFields, merge_fields
from oncehouse.pipeline.ingest.dead_letter_writer import DeadLetterWriter, WaitingWriter
from oncehouse.pipeline.ingest.manifest import (
    ChunkManifest,
    ReadPlan,
    TaskManifest,
)
from oncehouse.pipeline.ingest.part_files import (
    RAW_SCHEMA,
    PartFile,
    epoch_path,
    raw_columns,
    route,
    write_blocks,
)
from oncehouse.pipeline.ingest.plan_decoder import make_decoder

# As many as Spark gives at once: of a message of many lines no more are decoded together.
_BLOCK_ROWS = 50_000


def read_records(plan: ReadPlan, attempt: str, blocks: Iterable[pa.RecordBatch]) -> TaskManifest:
    """Turn blocks of (source, offset, timestamp, key, value) into files; the work of one read task."""
    coming = iter(blocks)
    held: list[pa.RecordBatch] = []
    # A small epoch is held and sorted, so that it makes one part; one of few but large records is not.
    while plan.whole and sum(block.nbytes for block in held) <= plan.part_bytes:
        if (block := next(coming, None)) is None:
            return _read_ordered(plan, attempt, held)
        held.append(block)
    task = ReadTask(plan, attempt)
    for block in chain(held, coming):
        for piece in _by_source(block):
            task.add(piece)
    return task.finish()


def _read_ordered(plan: ReadPlan, attempt: str, blocks: list[pa.RecordBatch]) -> TaskManifest:
    task = ReadTask(plan, attempt, ordered=True)
    if blocks:
        gathered = pa.Table.from_batches(blocks)
        source, offset = (gathered.column(name).to_numpy() for name in ("source", "offset"))
        order = np.lexsort((offset, source))
        if not np.array_equal(order, np.arange(len(order))):
            gathered = gathered.take(order)
        for block in gathered.combine_chunks().to_batches():
            task.add(block)
    return task.finish()


def _by_source(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The block in pieces of one Kafka partition each; nearly always it is one."""
    source = block.column("source").to_numpy()
    borders = np.flatnonzero(source[1:] != source[:-1]) + 1
    for start, end in pairwise([0, *borders.tolist(), block.num_rows]):
        yield block.slice(start, end - start)


class ReadTask:
    """Takes blocks in Kafka's order, writes files, and returns what it wrote."""

    def __init__(
        self,
        plan: ReadPlan,
        attempt: str,
        *,
        ordered: bool = False,
        decoder: Decoder | None = None,
        may_wait: bool = True,
    ) -> None:
        """`ordered`: blocks come in the order of all sources together, so that one chunk may hold several.

        `decoder`: another one than that of the plan's format.
        `may_wait`: whether records of unknown schemas wait; otherwise they become dead letters.
        """
        self._plan = plan
        self._attempt = attempt
        self._ordered = ordered
        self._store = FileStore(plan.files_root)
        self._decoder = make_decoder(plan, decoder, refuses=True)
        self._chunk: _Chunk | None = None
        self._chunks: list[ChunkManifest] = []
        self._may_wait = may_wait
        dead = DeadLetterWriter(plan, self._store, attempt, DeadLetterKind.DEAD)
        # In the order in which they are finished: what has no place among those that wait becomes a dead letter.
        self._dead_letters = {
            DeadLetterKind.WAITING: WaitingWriter(plan, self._store, attempt, overflow=dead),
            DeadLetterKind.DEAD: dead,
        }
        self._read = 0
        self._read_bytes = 0
        self._skipped = 0
        self._new_fields: NewFields = {}

    def add(self, block: pa.RecordBatch) -> None:
        if not block.num_rows:
            return
        source = int(block.column("source")[0].as_py())
        self._read_bytes += block.column("value").nbytes + block.column("key").nbytes
        # Another Kafka partition begins: end the chunk, so that chunks stay in the order of Kafka's records.
        if self._chunk is not None and not self._ordered and self._chunk.source != source:
            self._end_chunk()
        for rows in self._unfold(block):
            self._take(rows, source)

    def _unfold(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if "row" in block.schema.names:
            yield block
        elif not self._plan.format.several_rows:
            yield self._plan.format.unfold(block)
        else:
            for run in split_runs(block):
                rows = self._plan.format.unfold(run)
                for start in range(0, rows.num_rows, _BLOCK_ROWS):
                    yield rows.slice(start, _BLOCK_ROWS)

    def _take(self, block: pa.RecordBatch, source: int) -> None:
        decoded = reject_unidentified(
            self._plan.identity, block, self._decoder.decode(block), needs_value=self._plan.needs_value
        )
        self._read += block.num_rows
        self._skipped += len(decoded.skipped)
        merge_fields(self._new_fields, decoded.new_fields)
        self._reject(block, decoded)
        self._keep_waiting(block, decoded)
        self._keep(block, decoded, source)

    def _keep(self, block: pa.RecordBatch, decoded: Decoded, source: int) -> None:
        rows, taken, schemas = decoded.rows, decoded.taken, decoded.schemas
        routes = route(self._plan.tables, rows)
        if routes is not None:
            wanted = np.flatnonzero(routes)
            self._skipped += rows.num_rows - len(wanted)
            rows, taken, routes = rows.take(pa.array(wanted)), taken[wanted], routes[wanted]
            schemas = schemas and schemas.take(pa.array(wanted))
        if not rows.num_rows:
            return
        kept = block if len(taken) == block.num_rows else block.take(pa.array(taken))
        if self._chunk is None:
            name = f"{self._attempt}-{len(self._chunks)}"
            first = (int(kept.column("source")[0].as_py()), int(kept.column("offset")[0].as_py()))
            self._chunk = _Chunk(self._plan, self._store, name, source, first)
        self._chunk.add(kept, rows, routes, schemas)
        if self._chunk.is_full:
            self._end_chunk()

    def _reject(self, block: pa.RecordBatch, decoded: Decoded) -> None:
        if not decoded.rejected:
            return
        rejected = block.take(pa.array([rejection.index for rejection in decoded.rejected]))
        schemas = rejected.column("schema") if "schema" in block.schema.names else None
        columns = raw_columns(self._plan.topics, rejected, schemas)
        reasons = [str(rejection.reason) for rejection in decoded.rejected]
        columns.append(pa.array(reasons, pa.string()))
        columns.append(pa.array([rejection.detail for rejection in decoded.rejected], pa.string()))
        self._dead_letters[DeadLetterKind.DEAD].add(columns)

    def _keep_waiting(self, block: pa.RecordBatch, decoded: Decoded) -> None:
        if not decoded.waiting:
            return
        records = block.take(pa.array([waiting.index for waiting in decoded.waiting]))
        names = [waiting.schema for waiting in decoded.waiting]
        columns = raw_columns(self._plan.topics, records, pa.array(names, pa.string()))
        columns.append(pa.repeat(str(Reason.SCHEMA_UNKNOWN), len(names)))
        why = "" if self._may_wait else ", and the record waited for it for source.schema_wait"
        columns.append(pa.array([f"schema {name} is not known{why}" for name in names], pa.string()))
        self._dead_letters[DeadLetterKind.WAITING if self._may_wait else DeadLetterKind.DEAD].add(columns)

    def carry(self, dead_letters: pa.Table, kind: DeadLetterKind) -> None:
        """Dead letters that stay as they are, counted and written again."""
        if dead_letters.num_rows:
            self._read += dead_letters.num_rows
            self._dead_letters[kind].add(dead_letters.columns)

    def _end_chunk(self) -> None:
        if self._chunk is not None:
            self._chunks.append(self._chunk.finish())
            self._chunk = None

    def finish(self) -> TaskManifest:
        self._end_chunk()
        return TaskManifest(
            read=self._read,
            read_bytes=self._read_bytes,
            skipped=self._skipped,
            chunks=tuple(self._chunks),
            letters=tuple(found for writer in self._dead_letters.values() for found in writer.finish()),
            new_fields=self._new_fields,
        )


class _Chunk:
    def __init__(
        self, plan: ReadPlan, store: FileStore, name: str, source: int, first: tuple[int, int]
    ) -> None:
        self.source = source
        self._plan = plan
        self._store = store
        self._name = name
        self._first = first
        self._events = 0
        self._bytes = 0
        self._raw: list[pa.Table] = []
        self._keys: list[tuple[UInt64, ...]] = []
        self._routes: list[UInt32] = []
        self._parts = [PartFile(table, plan.columns) for table in plan.tables]

    @property
    def is_full(self) -> bool:
        return self._events >= self._plan.part_rows or self._bytes >= self._plan.part_bytes

    def add(
        self, kept: pa.RecordBatch, rows: pa.RecordBatch, routes: UInt32 | None, schemas: pa.Array | None
    ) -> None:
        values = kept.column("value")
        hi, lo = unique_ids(self._plan.identity, rows, kept, schemas)
        self._keys.append((hi, lo, hash_payloads(values, schemas)))
        raw = raw_columns(self._plan.topics, kept, schemas)
        self._raw.append(pa.Table.from_arrays(raw, schema=RAW_SCHEMA))
        events = np.arange(self._events, self._events + rows.num_rows, dtype=np.uint32)
        for number, part in enumerate(self._parts):
            if routes is None:
                part.add(rows, events, (hi, lo))
            elif len(chosen := np.flatnonzero(routes & np.uint32(1 << number))):
                part.add(rows.take(pa.array(chosen)), events[chosen], (hi[chosen], lo[chosen]))
        if routes is not None:
            self._routes.append(routes)
        self._events += rows.num_rows
        self._bytes += values.nbytes

    def finish(self) -> ChunkManifest:
        plan = self._plan
        base = epoch_path(plan.pipeline, plan.epoch, plan.token, self._name)
        keys = self._sorted_keys()
        parts = []
        for number, part in enumerate(self._parts):
            if not part.rows:
                continue
            file = self._store.put(f"{base}.{number}.part.arrow", part.write)
            parts.append(part.manifest(number, file))
        return ChunkManifest(
            first=self._first,
            events=self._events,
            keys=self._store.put(f"{base}.keys.arrow", lambda target: write_keys(target, keys)),
            raw=self._store.put(f"{base}.raw.arrow", lambda target: write_blocks(target, self._raw)),
            parts=tuple(parts),
        )

    def _sorted_keys(self) -> Keys:
        hi, lo, payload = (np.concatenate(column) for column in zip(*self._keys, strict=True))
        order = sort_order(hi, lo)
        return Keys(
            hi=hi[order],
            lo=lo[order],
            payload=payload[order],
            event=order.astype(np.uint32),
            routes=np.concatenate(self._routes)[order] if self._routes else np.empty(0, dtype=np.uint32),
        )
