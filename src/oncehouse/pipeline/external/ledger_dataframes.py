"""The ledger as three plain tables, as Spark DataFrames: deduplication, new_events and batches.

For people and jobs that want to look at events with Spark instead of asking files and catalog by themselves.
Which files there are is read when a frame is made; rows only when the frame is used.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile, read_state
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import open_keys
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest.part_files import read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = "table string, uniqueId binary, created_at timestamp, proto binary, schema_version string"
BATCHES = "batchId string, table string, status string, batch array<string>"

# Shown for a format without versions: the bytes say by themselves how they are to be read.
NO_VERSION = ""
_ROWS_A_BLOCK = 50_000


@dataclass(frozen=True, kw_only=True)
class _Source:
    """One key file with its raw bytes, and for new events the part whose rows are asked for."""

    files_root: str
    key_file: RegisteredKeyFile
    duplicate_files: tuple[FileRef, ...]
    table: str = ""
    part: FileRef | None = None


def deduplication(spark: SparkSession, catalog: Catalog, store: FileStore) -> DataFrame:
    """uniqueId, created_at, proto, schema_version: every event inside the window, once."""
    state = read_state(catalog)
    sources = [_source(store, state, key_file) for key_file in state.key_files]
    return _events(spark, sources).drop("table")


def new_events(spark: SparkSession, catalog: Catalog, store: FileStore) -> DataFrame:
    """table, uniqueId, created_at, proto, schema_version: events that no batch of the table holds yet."""
    state = read_state(catalog)
    key_files = {found.key_file.key_file: found for found in state.key_files}
    sources = [
        _source(store, state, key_files[part.key_file], table=part.table, part=part.file)
        for part in state.parts
        if part.batch_id is None and part.live_rows
    ]
    return _events(spark, sources)


def batches(spark: SparkSession, catalog: Catalog) -> DataFrame:
    """batchId, table, status, batch: the names of its parts."""
    state = read_state(catalog)
    members: dict[str, list[str]] = {}
    for part in state.parts:
        members.setdefault(part.batch_id or "", []).append(part.part)
    rows = [
        (batch.batch_id, batch.table, str(batch.status), members.get(batch.batch_id, []))
        for batch in state.batches
    ]
    return spark.createDataFrame(rows, BATCHES)


def _source(
    store: FileStore,
    state: LedgerState,
    key_file: RegisteredKeyFile,
    *,
    table: str = "",
    part: FileRef | None = None,
) -> _Source:
    return _Source(
        files_root=store.root,
        key_file=key_file,
        duplicate_files=tuple(found.file for found in state.duplicates.get(key_file.epoch, ())),
        table=table,
        part=part,
    )


def _events(spark: SparkSession, sources: Sequence[_Source]) -> DataFrame:
    """A task reads whole sources, so that Spark can spread them over its cores."""
    plans = spark.createDataFrame([(bytearray(pickle.dumps(source)),) for source in sources], "source binary")
    return plans.repartition(max(1, min(len(sources), 200))).mapInArrow(_read_all, EVENTS)


def _read_all(blocks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for block in blocks:
        for plan in block.column(0).to_pylist():
            # The plan was pickled by this very job's driver.
            yield from _read(pickle.loads(plan))  # noqa: S301


def _read(source: _Source) -> Iterator[pa.RecordBatch]:
    store = FileStore(source.files_root)
    key_file = source.key_file.key_file
    wanted = live_events(store, source.duplicate_files, ordinal=key_file.ordinal, events=key_file.events)
    if source.part is not None:
        events = read_rows(store, source.part, [EVENT_COLUMN]).column(EVENT_COLUMN)
        held = np.zeros(key_file.events, dtype=np.bool_)
        held[events.to_numpy()] = True
        wanted &= held
    ids = _ids_by_event(store, source)
    start = 0
    for block in read_rows(store, key_file.raw, ["value", "schema"]).to_batches(max_chunksize=_ROWS_A_BLOCK):
        chosen = np.flatnonzero(wanted[start : start + block.num_rows])
        yield _rows(source, ids[start + chosen], block.take(pa.array(chosen)))
        start += block.num_rows


def _ids_by_event(store: FileStore, source: _Source) -> npt.NDArray[np.uint64]:
    file = source.key_file.key_file.keys
    keys = open_keys(store.local(file)).take(slice(file.row, file.row + source.key_file.key_file.events))
    ids = np.empty((len(keys), 2), dtype=">u8")
    ids[keys.event, 0], ids[keys.event, 1] = keys.hi, keys.lo
    return ids


def _rows(source: _Source, ids: npt.NDArray[np.uint64], raw: pa.RecordBatch) -> pa.RecordBatch:
    rows = raw.num_rows
    unique_ids = pa.Array.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(np.ascontiguousarray(ids))])
    created_at = pa.scalar(round(source.key_file.registered_at * 1e6), pa.timestamp("us", tz="UTC"))
    return pa.record_batch(
        {
            "table": pa.repeat(source.table, rows),
            "uniqueId": unique_ids.cast(pa.binary()),
            "created_at": pa.repeat(created_at, rows),
            "proto": raw.column("value"),
            "schema_version": raw.column("schema").fill_null(NO_VERSION),
        }
    )
