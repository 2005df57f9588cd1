"""Registers a batch of a DataFrame as an epoch, with the same two jobs as records of Kafka.

One `mapInArrow` pass over the frame; its rows go through no shuffle and never back to the JVM. A partition with
few rows is put aside as it came, and small ones are then read together, so that a small frame makes one part.
The epoch is the batch of a query: if it is settled, nothing is computed, whatever the frame would give now.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.column_types.types import Array, ColumnType, Map, bare, clickhouse_name, is_nullable
from oncehouse.config.problems import nearest, printable
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.catalog.query_batches import is_settled
from oncehouse.ledger.marks import Sending, write_mark
from oncehouse.ledger.models import Counts, EpochKind, FileRef, QueryBatch, Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.external.dataframe_rows import FrameRows
from oncehouse.pipeline.formats.dataframe import DataFrameFormat, schema_of
from oncehouse.pipeline.ingest.epoch import SMALL_EPOCH_RECORDS, EpochInput, settle
from oncehouse.pipeline.ingest.manifest import MANIFEST_SCHEMA, ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.part_files import PARTITIONS, epoch_path, topic_of
from oncehouse.pipeline.ingest.read_task import ReadTask
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.tasks import name_attempt, run_tasks
from oncehouse.pipeline.stages.ingest_stage import IngestLeaseHolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.pipeline.stages.supervisor import StageSupervisor

# A row's offset is its batch and its number in the partition: unique in the query, and in order.
_ROWS_A_BATCH = 1 << 32
_MOST_BATCHES = 1 << 31
_REQUEST_SECONDS = 1.0
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,200}$")


class DataFrameIngest(IngestLeaseHolder):
    """Settles batches on the caller's thread; `run` only performs requests, until it is closed."""

    def __init__(self, stages: StageSupervisor, ready: threading.Event) -> None:
        """`ready` is set when batches can be settled."""
        super().__init__(stages)
        self._ready = ready
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()

    def run(self, stop: threading.Event, *, once: bool) -> None:
        del once  # it ends when it is closed
        # What was asked before comes first: it may change the identity rule.
        self._perform_requests()
        self._ready.set()
        while not stop.is_set() and not self._closing.wait(_REQUEST_SECONDS):
            try:
                self._perform_requests()
            except TransientError as error:
                self._say(str(error))

    def _is_over(self) -> bool:
        return self._closing.is_set() or super()._is_over()

    def settle(self, frame: DataFrame, batch: QueryBatch) -> Counts | None:
        """The counts of the new epoch; None when the batch is settled already."""
        if not 0 <= batch.batch < _MOST_BATCHES:
            raise ConfigurationError(f"a batch is numbered from 0 to {_MOST_BATCHES - 1}, not {batch.batch}")
        if not is_settled(self._catalog, batch) and not self._gate.wait(self._is_over):
            raise TransientError(
                f"Pipeline {self._pipeline.pipeline}: batch {batch.batch} of {batch.query} was not settled: the sink "
                "was closed while there was no room for it in the ledger. Write it again."
            )
        with self._epoch_lock:
            if is_settled(self._catalog, batch):
                # Perhaps by a call that could not mark it, and is repeated for that.
                store = FileStore(self._pipeline.ledger.files)
                last = Sending(epoch=epochs.next_epoch(self._catalog) - 1)
                write_mark(self._catalog, store, Stage.INGEST, self._lease.token, last)
                return None
            with translated_errors(self._pipeline.pipeline):
                counts = settle(
                    self._spark,
                    self._pipeline,
                    self._catalog,
                    self._lease.token,
                    lambda plan: self._read(frame, plan, batch),
                    EpochInput(kind=EpochKind.FRAME, topic_ids={}, query=batch),
                    small=True,
                )
        self._on_epoch(counts)
        return counts

    def _read(self, frame: DataFrame, plan: ReadPlan, batch: QueryBatch) -> list[TaskManifest]:
        chosen = choose_columns(plan.fields, frame, needed=plan.needed_columns)
        add_schemas(self._catalog, [schema_of(plan.fields)])
        plan = replace(plan, format=DataFrameFormat(), topics=(topic_of(batch.query),))
        rows = FramePlan(
            read=plan, first_offset=batch.batch * _ROWS_A_BATCH, timestamp_us=int(time.time() * 1_000_000)
        )
        found = chosen.mapInArrow(lambda blocks: read_partition(rows, blocks), MANIFEST_SCHEMA).collect()
        outcomes = [json.loads(row.manifest) for row in found]
        manifests = [TaskManifest.from_json(text["read"]) for text in outcomes if "read" in text]
        small_partitions = sorted(
            (
                SmallPartition(
                    **{**text["small_partition"], "file": FileRef(**text["small_partition"]["file"])}
                )
                for text in outcomes
                if "small_partition" in text
            ),
            key=lambda one: one.partition,
        )
        groups = [replace(rows, small_partitions=group) for group in group_small(small_partitions)]
        if groups:
            manifests += run_tasks(self._spark, read_small_partitions, groups)
        store = FileStore(plan.files_root)
        for one in small_partitions:
            store.delete(one.file.path)
        return manifests


def require_dataframes(pipeline: Pipeline) -> None:
    """Refuse a pipeline whose identity needs what rows of DataFrames and files do not have."""
    rule = pipeline.identity
    if rule.headers or rule.key or rule.schema_version:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: its identity rule names headers, key or schema version of a record, "
            "and rows of DataFrames and files have none. Let the rule name fields alone, or use a pipeline of its own."
        )


def require_name(query: str) -> None:
    if not _NAME.match(query):
        raise ConfigurationError(
            f"{printable(query)!r} cannot name a query; use letters, digits, '.', '_' and '-', at most 200"
        )


def choose_columns(
    fields: Mapping[str, ColumnType], frame: DataFrame, *, needed: Mapping[str, str] = MappingProxyType({})
) -> DataFrame:
    """The frame with the declared fields alone; raises when one cannot be found.

    A column may be left out where its field takes null, unless it is `needed` for the reason given there.
    """
    if not hasattr(frame.sparkSession, "sparkContext"):
        raise ConfigurationError(
            "a frame of Spark Connect cannot be written; run the job in a classic Spark session"
        )
    found = frame.columns
    for name, declared in fields.items():
        if found.count(name) > 1:
            raise ConfigurationError(
                f"the frame has the column {printable(name)} {found.count(name)} times; rename one"
            )
        may_lack = name not in needed and (is_nullable(declared) or isinstance(bare(declared), Array | Map))
        if name not in found and not may_lack:
            near = nearest(name, found)
            hint = (
                f"rename {printable(near)} to it?" if near else f"it has: {', '.join(map(printable, found))}"
            )
            reason = f", and which {needed[name]}" if name in needed else ""
            raise ConfigurationError(
                f"the frame has no column {printable(name)}, which source.fields declares as "
                f"{clickhouse_name(declared)}{reason}; {hint}"
            )
    return frame.select(*(quote(name) for name in fields if name in found))


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, kw_only=True)
class SmallPartition:
    """A small partition, as it came."""

    partition: int
    rows: int
    size_bytes: int
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class FramePlan:
    read: ReadPlan
    first_offset: int
    timestamp_us: int
    small_partitions: tuple[SmallPartition, ...] = ()


def group_small(small_partitions: Sequence[SmallPartition]) -> Iterator[tuple[SmallPartition, ...]]:
    """Neighbours that are read together by one task, and make one part."""
    group: list[SmallPartition] = []
    for one in small_partitions:
        if group and sum(known.rows for known in group) + one.rows > SMALL_EPOCH_RECORDS:
            yield tuple(group)
            group = []
        group.append(one)
    if group:
        yield tuple(group)


def read_partition(plan: FramePlan, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The work of one task over the frame: a manifest, or the file with its few rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    if partition >= PARTITIONS:
        raise PermanentError(f"the frame has more than {PARTITIONS} partitions; `coalesce` it first")
    attempt = name_attempt("w")
    coming = iter(blocks)
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    outcome: dict[str, object] = {}
    for block in coming:
        held.append(block)
        rows, size_bytes = rows + block.num_rows, size_bytes + block.nbytes
        if rows > SMALL_EPOCH_RECORDS or size_bytes > plan.read.part_bytes:
            outcome = {"read": _read_all(plan, attempt, partition, held, coming)}
            break
    else:
        if rows:
            file = _write_small_partition(plan.read, attempt, held)
            outcome = {
                "small_partition": asdict(
                    SmallPartition(partition=partition, rows=rows, size_bytes=size_bytes, file=file)
                )
            }
    yield pa.record_batch([pa.array([json.dumps(outcome)])], names=["manifest"])


def _read_all(
    plan: FramePlan,
    attempt: str,
    partition: int,
    held: list[pa.RecordBatch],
    coming: Iterator[pa.RecordBatch],
) -> str:
    made = FrameRows(plan.read.fields)
    task = ReadTask(plan.read, attempt, decoder=made)
    offset = plan.first_offset
    while held or (held := [block] if (block := next(coming, None)) is not None else []):
        found = held.pop(0)
        offset = _take(task, made, found, plan, partition, offset)
    return task.finish().to_json()


def _take(
    task: ReadTask, made: FrameRows, found: pa.RecordBatch, plan: FramePlan, partition: int, offset: int
) -> int:
    if offset + found.num_rows > plan.first_offset + _ROWS_A_BATCH:
        raise PermanentError(f"a partition of the frame has more than {_ROWS_A_BATCH} rows; `repartition` it")
    if found.num_rows:
        task.add(made.make_block(found, source=partition, offset=offset, timestamp_us=plan.timestamp_us))
    return offset + int(found.num_rows)


def _write_small_partition(plan: ReadPlan, attempt: str, held: Sequence[pa.RecordBatch]) -> FileRef:
    def write(path: str) -> None:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].schema) as writer:
            for block in held:
                writer.write_batch(block)

    path = epoch_path(plan.pipeline, plan.epoch, plan.token, f"{attempt}.aside.arrow")
    return FileStore(plan.files_root).put(path, write)


def read_small_partitions(plan: FramePlan) -> TaskManifest:
    """Small partitions read together, in their order."""
    store = FileStore(plan.read.files_root)
    made = FrameRows(plan.read.fields)
    task = ReadTask(plan.read, f"g{uuid.uuid4().hex[:12]}", ordered=True, decoder=made)
    for one in plan.small_partitions:
        offset = plan.first_offset
        opened = pa.ipc.open_file(pa.memory_map(str(store.local(one.file))))
        for number in range(opened.num_record_batches):
            offset = _take(task, made, opened.get_batch(number), plan, one.partition, offset)
    return task.finish()
