"""Packing: the files of many small, loaded epochs become a few, so that files grow with days and not with epochs.

`plan_packs` is pure. A pack task copies rows in their order and says where each range came to lie. Packs never
span much of the window, for a pack goes only when the last range in it has left the window.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oncehouse.common import failpoints
from oncehouse.ledger.catalog import packs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.packs import Move, PackBundle
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.ingest.part_files import read_columns, read_rows
from oncehouse.pipeline.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

LEAST_EPOCHS = 64
MOST_EPOCHS = 4096
MOST_BYTES = 64 << 20
# Epochs with more raw bytes than this are large enough to stand alone.
SMALL_BYTES = 4 << 20
_AGE_SHARE = 1 / 12


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    files_root: str
    out: str
    bundles: tuple[PackBundle, ...]


def plan_packs(bundles: Sequence[PackBundle], *, window_seconds: float) -> Iterator[tuple[PackBundle, ...]]:
    """Runs of small epochs, each long enough to be worth a pack."""
    run: list[PackBundle] = []
    size_bytes = 0
    for bundle in bundles:
        if bundle.size_bytes > SMALL_BYTES:
            continue
        full = len(run) >= MOST_EPOCHS or size_bytes + bundle.size_bytes > MOST_BYTES
        if run and (full or bundle.registered_at - run[0].registered_at > window_seconds * _AGE_SHARE):
            if len(run) >= LEAST_EPOCHS:
                yield tuple(run)
            run, size_bytes = [], 0
        run.append(bundle)
        size_bytes += bundle.size_bytes
    if len(run) >= LEAST_EPOCHS:
        yield tuple(run)


def pack(spark: SparkSession, pipeline: Pipeline, catalog: Catalog, token: int) -> int:
    """Pack what is worth it; returns the number of epochs."""
    packed = 0
    bundles = packs.list_bundles(catalog)
    for chosen in plan_packs(bundles, window_seconds=pipeline.identity.window):
        plan = PackPlan(
            files_root=pipeline.ledger.files,
            out=f"{pipeline.pipeline}/packs/{token}-{uuid.uuid4().hex}",
            bundles=chosen,
        )
        moves: list[Move] = run_tasks(spark, pack_task, [plan])[0]
        failpoints.reach("before moving files")
        packs.move_files(catalog, token, moves)
        failpoints.reach("after moving files")
        packed += len(chosen)
    return packed


def pack_task(plan: PackPlan) -> list[Move]:
    """The work of one pack task."""
    store = FileStore(plan.files_root)
    key_files = [found for bundle in plan.bundles for found in bundle.key_files]
    moves = _pack_keys(store, plan.out, [found.keys for found in key_files])
    moves += _pack_rows(store, f"{plan.out}.raw.parquet", [found.raw for found in key_files])
    by_table: dict[tuple[str, pa.Schema], list[FileRef]] = {}
    for part in (part for bundle in plan.bundles for part in bundle.parts):
        # A table's columns may have changed in between: only like goes with like.
        key = (part.table, read_columns(store, part.file))
        if part.file not in by_table.setdefault(key, []):
            by_table[key].append(part.file)
    for number, files in enumerate(by_table.values()):
        moves += _pack_rows(store, f"{plan.out}.{number}.part.parquet", files)
    duplicates = [found.file for bundle in plan.bundles for found in bundle.duplicate_files]
    return moves + _pack_duplicates(store, plan.out, duplicates)


def _moves(files: Sequence[FileRef], rows: Iterable[int], put: Callable[[], FileRef]) -> list[Move]:
    new = put()
    moves, row = [], 0
    for file, count in zip(files, rows, strict=True):
        moves.append(Move(old=file, new=replace(new, row=row, rows=count)))
        row += count
    return moves


def _pack_keys(store: FileStore, out: str, files: Sequence[FileRef]) -> list[Move]:
    tables = [key_index.open_keys(store.compared(file)) for file in files]
    # Where an event is routed to was needed only while its epoch was decided.
    together = Keys(
        hi=np.concatenate([keys.hi for keys in tables]),
        lo=np.concatenate([keys.lo for keys in tables]),
        payload=np.concatenate([keys.payload for keys in tables]),
        event=np.concatenate([keys.event for keys in tables]),
    )
    return _moves(
        files,
        [len(keys) for keys in tables],
        lambda: store.put(f"{out}.keys.arrow", lambda path: key_index.write_keys(path, together)),
    )


def _pack_rows(store: FileStore, out: str, files: Sequence[FileRef]) -> list[Move]:
    tables = [read_rows(store, file) for file in files]
    # Arrow files and Parquet may call the values of a list by different names.
    whole = pa.concat_tables(table.cast(tables[0].schema) for table in tables).unify_dictionaries()

    def write(path: str) -> None:
        pq.write_table(
            whole,
            path,
            compression="zstd",
            row_group_size=50_000,
            write_statistics=False,
            write_page_checksum=True,
        )

    return _moves(files, [table.num_rows for table in tables], lambda: store.put(out, write))


def _pack_duplicates(store: FileStore, out: str, files: Sequence[FileRef]) -> list[Move]:
    if not files:
        return []
    batches = [pa.ipc.open_file(pa.memory_map(str(store.compared(file)))).get_batch(0) for file in files]
    whole = pa.Table.from_batches(batches, DUPLICATE_SCHEMA).combine_chunks().to_batches()[0]

    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, DUPLICATE_SCHEMA) as writer:
            writer.write_batch(whole)

    return _moves(
        files,
        [batch.num_rows for batch in batches],
        lambda: store.put(f"{out}.duplicates.arrow", write),
    )
