"""Reading: raw Kafka records become parts, key files and dead letters, inside one Spark task.

A task writes chunks. A chunk is one key file, one file of raw bytes, and a part for each table it has rows
for; it ends at a cap of rows or bytes. Rows keep Kafka's order, never leave the task, and the driver gets only
a manifest of a few lines. What is written here does not exist until the driver registers it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oncehouse.columns import ColumnType, Enum, LowCardinality, arrow_type
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.keyindex import Keys, UInt32, UInt64, sort_order, write_keys
from oncehouse.ledger.records import FileRef
from oncehouse.pipeline.decode import Decoded, JsonDecoder
from oncehouse.pipeline.identity import payload_hashes, unique_ids
from oncehouse.pipeline.manifest import (
    ChunkManifest,
    LettersManifest,
    PartManifest,
    ReadPlan,
    TablePlan,
    TaskManifest,
)

EVENT_COLUMN = "_event"

RAW_SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
LETTER_SCHEMA = pa.schema(
    [*(RAW_SCHEMA.field(name) for name in RAW_SCHEMA.names), ("reason", pa.string()), ("detail", pa.string())]
)
# Partition and topic travel as one integer: `topic ordinal * PARTITIONS + partition`, which also sorts.
PARTITIONS = 1 << 20


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
    """Takes blocks in Kafka's order, writes files, and tells what it wrote."""

    def __init__(self, plan: ReadPlan, attempt: str, *, ordered: bool = False) -> None:
        """`ordered`: blocks come in the order of all sources together, so that one chunk may hold several."""
        self._plan = plan
        self._attempt = attempt
        self._ordered = ordered
        self._store = FileStore(plan.files_root)
        self._decoder = JsonDecoder(
            fields=plan.fields, max_message_bytes=plan.max_message_bytes, max_depth=plan.max_depth
        )
        self._chunk: _Chunk | None = None
        self._chunks: list[ChunkManifest] = []
        self._letters: list[pa.Table] = []
        self._reasons: Counter[str] = Counter()
        self._read = 0
        self._skipped = 0

    def add(self, block: pa.RecordBatch) -> None:
        if not block.num_rows:
            return
        source = int(block.column("source")[0].as_py())
        # Another Kafka partition begins: end the chunk, so that chunks stay in the order of Kafka's records.
        if self._chunk is not None and not self._ordered and self._chunk.source != source:
            self._end_chunk()
        decoded = self._decoder.decode(block.column("value"))
        self._read += block.num_rows
        self._skipped += len(decoded.skipped)
        self._reject(block, decoded)
        self._keep(block, decoded, source)

    def _keep(self, block: pa.RecordBatch, decoded: Decoded, source: int) -> None:
        rows, taken = decoded.rows, decoded.taken
        routes = route(self._plan.tables, rows)
        if routes is not None:
            wanted = np.flatnonzero(routes)
            self._skipped += rows.num_rows - len(wanted)
            rows, taken, routes = rows.take(pa.array(wanted)), taken[wanted], routes[wanted]
        if not rows.num_rows:
            return
        kept = block if len(taken) == block.num_rows else block.take(pa.array(taken))
        if self._chunk is None:
            name = f"{self._attempt}-{len(self._chunks)}"
            first = (int(kept.column("source")[0].as_py()), int(kept.column("offset")[0].as_py()))
            self._chunk = _Chunk(self._plan, self._store, name, source, first)
        self._chunk.add(kept, rows, routes)
        if self._chunk.is_full:
            self._end_chunk()

    def _reject(self, block: pa.RecordBatch, decoded: Decoded) -> None:
        if not decoded.rejected:
            return
        rejected = block.take(pa.array([rejection.index for rejection in decoded.rejected]))
        columns = _raw_columns(self._plan.topics, rejected)
        reasons = [str(rejection.reason) for rejection in decoded.rejected]
        columns.append(pa.array(reasons, pa.string()))
        columns.append(pa.array([rejection.detail for rejection in decoded.rejected], pa.string()))
        self._reasons.update(reasons)
        self._letters.append(pa.Table.from_arrays(columns, schema=LETTER_SCHEMA))

    def carry(self, letters: pa.Table, reasons: Counter[str]) -> None:
        """Letters that stay as they are, counted and written down again."""
        if letters.num_rows:
            self._read += letters.num_rows
            self._reasons.update(reasons)
            self._letters.append(letters)

    def _end_chunk(self) -> None:
        if self._chunk is not None:
            self._chunks.append(self._chunk.finish())
            self._chunk = None

    def finish(self) -> TaskManifest:
        self._end_chunk()
        return TaskManifest(
            read=self._read,
            skipped=self._skipped,
            chunks=tuple(self._chunks),
            letters=self._write_letters(),
        )

    def _write_letters(self) -> LettersManifest | None:
        if not self._letters:
            return None
        table = pa.concat_tables(self._letters).unify_dictionaries()
        path = epoch_path(
            self._plan.pipeline, self._plan.epoch, self._plan.token, f"{self._attempt}.letters.parquet"
        )
        file = self._store.put(path, lambda target: write_letters(target, table))
        return LettersManifest(rows=table.num_rows, reasons=dict(self._reasons), file=file)


def write_letters(path: str, table: pa.Table) -> None:
    pq.write_table(
        table, path, compression="zstd", use_dictionary=["topic", "reason"], write_page_checksum=True
    )


class PartFile:
    """A part being gathered: the rows of one table, each with the number of its event."""

    def __init__(self, table: TablePlan, fields: Mapping[str, ColumnType]) -> None:
        self._table = table
        self._schema = part_schema(table, fields)
        self._repeating = [
            name for name, field in table.columns if isinstance(fields[field], Enum | LowCardinality)
        ]
        self._blocks: list[pa.Table] = []
        self.rows = 0
        self.size_bytes = 0

    def add(self, rows: pa.RecordBatch, events: UInt32, ids: tuple[UInt64, UInt64]) -> None:
        columns = [rows.column(name) for _, name in self._table.columns]
        columns.append(pa.array(events))
        if self._table.id_column is not None:
            columns.append(_id_array(*ids))
        block = pa.Table.from_arrays(columns, schema=self._schema)
        self._blocks.append(block)
        self.rows += block.num_rows
        self.size_bytes += block.nbytes

    def manifest(self, table: int, file: FileRef) -> PartManifest:
        shape = hashlib.sha256(str(self._schema).encode()).hexdigest()[:16]
        return PartManifest(table=table, rows=self.rows, size_bytes=self.size_bytes, shape=shape, file=file)

    def write(self, path: str) -> None:
        with pq.ParquetWriter(
            path,
            self._schema,
            compression="lz4",
            use_dictionary=self._repeating,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer:
            for block in self._blocks:
                writer.write_table(block)


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
        self._parts = [PartFile(table, plan.fields) for table in plan.tables]

    @property
    def is_full(self) -> bool:
        return self._events >= self._plan.part_rows or self._bytes >= self._plan.part_bytes

    def add(self, kept: pa.RecordBatch, rows: pa.RecordBatch, routes: UInt32 | None) -> None:
        values = kept.column("value")
        hi, lo = unique_ids(rows, self._plan.identity)
        self._keys.append((hi, lo, payload_hashes(values)))
        self._raw.append(pa.Table.from_arrays(_raw_columns(self._plan.topics, kept), schema=RAW_SCHEMA))
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
            file = self._store.put(f"{base}.{number}.part.parquet", part.write)
            parts.append(part.manifest(number, file))
        return ChunkManifest(
            first=self._first,
            events=self._events,
            keys=self._store.put(f"{base}.keys.arrow", lambda target: write_keys(target, keys)),
            raw=self._store.put(f"{base}.raw.parquet", lambda target: _write_raw(target, self._raw)),
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


def part_schema(table: TablePlan, fields: Mapping[str, ColumnType]) -> pa.Schema:
    columns = [pa.field(column, arrow_type(fields[name])) for column, name in table.columns]
    columns.append(pa.field(EVENT_COLUMN, pa.uint32()))
    if table.id_column is not None:
        columns.append(pa.field(table.id_column, pa.binary(16)))
    return pa.schema(columns)


def _write_raw(path: str, blocks: list[pa.Table]) -> None:
    with pq.ParquetWriter(
        path,
        RAW_SCHEMA,
        compression="lz4",
        use_dictionary=["topic"],
        write_statistics=["partition", "offset"],
        write_page_checksum=True,
    ) as writer:
        for block in blocks:
            writer.write_table(block)


def _raw_columns(topics: tuple[str, ...], block: pa.RecordBatch) -> list[pa.Array]:
    source = block.column("source").to_numpy()
    names = pa.DictionaryArray.from_arrays(
        pa.array(source // PARTITIONS, pa.int32()), pa.array(topics, pa.string())
    )
    partition = pa.array(source % PARTITIONS, pa.int32())
    return [names, partition, *(block.column(name) for name in ("offset", "timestamp", "key", "value"))]


def _id_array(hi: UInt64, lo: UInt64) -> pa.Array:
    halves = np.empty((len(hi), 2), dtype=">u8")
    halves[:, 0], halves[:, 1] = hi, lo
    return pa.Array.from_buffers(pa.binary(16), len(hi), [None, pa.py_buffer(halves)])


def route(tables: tuple[TablePlan, ...], rows: pa.RecordBatch) -> UInt32 | None:
    """For each row a bit a table that takes it; None where one table takes all."""
    if len(tables) == 1 and tables[0].route_field is None:
        return None
    routes = np.zeros(rows.num_rows, dtype=np.uint32)
    for number, table in enumerate(tables):
        bit = np.uint32(1 << number)
        if table.route_field is None:
            routes |= bit
            continue
        column = rows.column(table.route_field)
        wanted = pa.array(table.route_values, column.type)
        routes[pc.is_in(column, value_set=wanted).to_numpy(zero_copy_only=False)] |= bit
    return routes


def epoch_path(pipeline: str, epoch: int, token: int, name: str) -> str:
    """Where an epoch's files lie. Names carry token and attempt, so an older writer never meets a newer one."""
    return f"{pipeline}/{epoch // 1000:07d}/{epoch:010d}-{token}-{name}"


def read_rows(store: FileStore, file: FileRef, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a part or of raw bytes, also where they are a range of a pack. Pages check themselves."""
    try:
        opened = pq.ParquetFile(store.local(file), memory_map=True, page_checksum_verification=True)
        wanted = None if columns is None else list(columns)
        if file.rows is None:
            return opened.read(wanted)
        groups, before = _groups(opened.metadata, file.row, file.row + file.rows)
        return opened.read_row_groups(groups, wanted).slice(file.row - before, file.rows)
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"The ledger's file {file.path} cannot be read ({error}): it is damaged. Restore it from a backup."
        ) from error


def _groups(metadata: pq.FileMetaData, start: int, end: int) -> tuple[list[int], int]:
    """The row groups that hold the rows start to end, and how many rows stand before them."""
    groups: list[int] = []
    before, row = start, 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if row < end and row + rows > start:
            before = row if not groups else before
            groups.append(number)
        row += rows
    return groups, before
