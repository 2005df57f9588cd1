"""Files of the pipeline: the columns of parts, raw bytes and dead letters, how they are written and read again.

Parts and raw bytes are Arrow files, which cost least to write and to read, and are compared whole with their checksum.
Packs of them, dead letters, and parts and raw bytes that 0.1.0 wrote are Parquet, each page with a checksum of its own.
Which rows go where is decided in `read_task.py`; where a file lies and whether it exists is the ledger's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oncehouse.column_types.types import ColumnType, arrow_type
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.file_store import REPAIR_ADVICE, FileStore
from oncehouse.ledger.storage.key_index import UInt32, UInt64
from oncehouse.pipeline.formats.base import EVENT_COLUMN, HEADERS
from oncehouse.pipeline.ingest.manifest import PartManifest, TableReadPlan

RAW_SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        # The place in a message that holds several rows.
        ("row", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        # Kept where the format needs them, so that everything can be decoded again.
        ("headers", HEADERS),
        ("schema", pa.string()),
    ]
)
DEAD_LETTER_SCHEMA = pa.schema(
    [*(RAW_SCHEMA.field(name) for name in RAW_SCHEMA.names), ("reason", pa.string()), ("detail", pa.string())]
)
# Partition and topic travel as one integer: `topic ordinal * PARTITIONS + partition`, which also sorts.
PARTITIONS = 1 << 20
# Stands before a query's name where a topic's would stand; no topic of Kafka has a colon.
_QUERY_PREFIX = "frame:"


def topic_of(query: str) -> str:
    """What stands for the topic of a query's rows."""
    return f"{_QUERY_PREFIX}{query}"


# A reader of dead letters holds one row group at a time.
_GROUP_ROWS = 10_000
_GROUP_BYTES = 8 << 20


def write_dead_letters(path: str, table: pa.Table) -> None:
    """With statistics of the columns by which dead letters are selected, so that reading a few does not read all."""
    fitting = table.num_rows * _GROUP_BYTES // max(table.nbytes, 1)
    pq.write_table(
        table,
        path,
        row_group_size=max(1, min(_GROUP_ROWS, fitting)),
        compression="zstd",
        use_dictionary=["topic", "row", "schema", "reason"],
        write_statistics=["topic", "partition", "offset", "timestamp"],
        write_page_checksum=True,
    )


class PartFile:
    """A part being gathered: the rows of one table, each with the number of its event."""

    def __init__(self, table: TableReadPlan, fields: Mapping[str, ColumnType]) -> None:
        self._table = table
        self._schema = part_schema(table, fields)
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
        return PartManifest(
            table=table,
            rows=self.rows,
            size_bytes=self.size_bytes,
            shape=schema_digest(self._schema),
            file=file,
        )

    def write(self, path: str) -> None:
        write_blocks(path, self._blocks)


def schema_digest(schema: pa.Schema) -> str:
    """Names the columns and types of a part."""
    return hashlib.sha256(str(schema).encode()).hexdigest()[:16]


def part_schema(table: TableReadPlan, fields: Mapping[str, ColumnType]) -> pa.Schema:
    columns = [pa.field(column, arrow_type(fields[name])) for column, name in table.columns]
    columns.append(pa.field(EVENT_COLUMN, pa.uint32()))
    if table.id_column is not None:
        columns.append(pa.field(table.id_column, pa.binary(16)))
    return pa.schema(columns)


def write_blocks(path: str, blocks: list[pa.Table]) -> None:
    """By one thread: there is a task for every core already."""
    rows = pa.concat_tables(blocks).unify_dictionaries()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)


def raw_columns(topics: tuple[str, ...], block: pa.RecordBatch, schemas: pa.Array | None) -> list[pa.Array]:
    """The columns of RAW_SCHEMA; `schemas` names the schema of each record."""
    source = block.column("source").to_numpy()
    names = pa.DictionaryArray.from_arrays(
        pa.array(source // PARTITIONS, pa.int32()), pa.array(topics, pa.string())
    )
    partition = pa.array(source % PARTITIONS, pa.int32())
    return [
        names,
        partition,
        *(block.column(name) for name in ("offset", "row", "timestamp", "key", "value")),
        _headers(block),
        pa.nulls(block.num_rows, pa.string()) if schemas is None else schemas,
    ]


def _headers(block: pa.RecordBatch) -> pa.Array:
    if "headers" not in block.schema.names:
        return pa.nulls(block.num_rows, HEADERS)
    return block.column("headers").cast(HEADERS)


def _id_array(hi: UInt64, lo: UInt64) -> pa.Array:
    halves = np.empty((len(hi), 2), dtype=">u8")
    halves[:, 0], halves[:, 1] = hi, lo
    return pa.Array.from_buffers(pa.binary(16), len(hi), [None, pa.py_buffer(halves)])


def route(tables: tuple[TableReadPlan, ...], rows: pa.RecordBatch) -> UInt32 | None:
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
    """The rows of a part or of raw bytes, also where they are a range of a pack; damage is noticed.

    By one thread: there is a task for every core already.
    """
    with _naming_damage(file):
        return _read_arrow(store, file, columns) if _is_arrow(file) else _read_parquet(store, file, columns)


def read_columns(store: FileStore, file: FileRef) -> pa.Schema:
    """The columns of a part."""
    path = store.local(file)
    with _naming_damage(file):
        return pa.ipc.open_file(pa.memory_map(str(path))).schema if _is_arrow(file) else pq.read_schema(path)


@contextmanager
def _naming_damage(file: FileRef) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"The ledger's file {file.path} cannot be read ({error}): it is damaged. {REPAIR_ADVICE}"
        ) from error


def _is_arrow(file: FileRef) -> bool:
    return file.path.endswith(".arrow")


def _read_arrow(store: FileStore, file: FileRef, columns: Sequence[str] | None) -> pa.Table:
    source = pa.memory_map(str(store.compared(file)))
    opened = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
    if columns is not None:
        found = [opened.schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=found)
        opened = pa.ipc.open_file(source, options=options)
    rows = opened.read_all()
    rows = rows if columns is None else rows.select(list(columns))
    return rows if file.rows is None else rows.slice(file.row, file.rows)


def _read_parquet(store: FileStore, file: FileRef, columns: Sequence[str] | None) -> pa.Table:
    opened = pq.ParquetFile(store.local(file), memory_map=True, page_checksum_verification=True)
    wanted = None if columns is None else list(columns)
    if file.rows is None:
        return opened.read(wanted, use_threads=False)
    groups, before = _groups(opened.metadata, file.row, file.row + file.rows)
    return opened.read_row_groups(groups, wanted, use_threads=False).slice(file.row - before, file.rows)


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
