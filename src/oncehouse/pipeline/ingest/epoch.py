"""Ingest: one epoch from raw records to its registration, in two small Spark jobs.

The driver plans, collects manifests of a few lines, and registers. It never touches a row; tasks never talk
to the catalog. If anything fails before the registration, the epoch has not happened.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.common import failpoints, structured_logging
from oncehouse.common.tracing import Span, add_attributes, span
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import FullDiskError, OncehouseError
from oncehouse.ledger.catalog import epochs, segments
from oncehouse.ledger.catalog import registration as registering
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.marks import Sending, write_mark
from oncehouse.ledger.models import (
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    EpochKind,
    KeyFile,
    OffsetRange,
    Part,
    QueryBatch,
    Registration,
    Segment,
    Stage,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, Decision, decide, plan_ranges
from oncehouse.pipeline.formats.json.new_fields import NewFields, merge_fields
from oncehouse.pipeline.ingest.dead_letter_writer import MOST_SCHEMAS
from oncehouse.pipeline.ingest.manifest import (
    MANIFEST_SCHEMA,
    ChunkManifest,
    DeadLetterManifest,
    ReadPlan,
    TaskManifest,
)
from oncehouse.pipeline.ingest.part_files import epoch_path
from oncehouse.pipeline.ingest.poison import require_few
from oncehouse.pipeline.ingest.read_plan import plan_epoch_read
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.schema.discovery import learn_schemas
from oncehouse.pipeline.schema.evolution import learn_new_fields
from oncehouse.pipeline.schema.identity_guard import remembered
from oncehouse.pipeline.spark.arrow_batches import (
    OutsizeRecordError,
    cutting,
    hand_to_workers,
    require_usual_size,
)
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.tasks import name_attempt, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("oncehouse.pipeline")

# Up to this many records one task reads all partitions: a small epoch makes one part.
SMALL_EPOCH_RECORDS = 50_000


@dataclass(frozen=True, kw_only=True)
class EpochInput:
    """What an epoch settles besides its records."""

    kind: EpochKind
    ranges: tuple[OffsetRange, ...] = ()
    confirm: Callable[[tuple[OffsetRange, ...]], tuple[OffsetRange, ...]] = tuple
    """Asked when all records were read, before they are registered: the same ranges, with what is known of them now."""
    topic_ids: dict[str, str]
    tried_dead_letter_files: tuple[str, ...] = ()
    request: int | None = None
    request_counts: Counts = field(default_factory=Counts)
    """What epochs before made of the same request."""
    query: QueryBatch | None = None


def settle(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    token: int,
    read: Callable[[ReadPlan], list[TaskManifest]],
    given: EpochInput,
    *,
    small: bool,
) -> Counts:
    """Read, decide and register one epoch; returns its counts."""
    epoch, started_at = epochs.next_epoch(catalog), catalog.now()
    with (
        structured_logging.bound(epoch=epoch),
        span("epoch", pipeline=pipeline.pipeline, epoch=epoch, kind=given.kind) as whole,
    ):
        with _free_space_when_full(pipeline, epoch, token), translated_errors(pipeline.pipeline):
            plan, manifests, registry_is_away = _read_all(
                pipeline, catalog, read, epoch=epoch, token=token, whole=small
            )
            failpoints.reach("parts written")
            chunks = sorted(
                (chunk for task in manifests for chunk in task.chunks), key=lambda chunk: chunk.first
            )
            with _phase("decide", plan):
                decisions = _decide_all(spark, pipeline, catalog, plan, chunks)
        registration = replace(
            assemble(plan, manifests, chunks, decisions, given, started_at=started_at),
            identity=remembered(plan.identity, plan.fields, pipeline.identity.buckets),
            ranges=given.confirm(given.ranges),
        )
        for kind in (DeadLetterKind.DEAD, DeadLetterKind.WAITING):
            if kind is DeadLetterKind.DEAD or not registry_is_away:
                samples = [found.sample for found in _dead_letters(manifests, kind)]
                require_few(pipeline, registration, kind, samples)
        failpoints.reach("before registering")
        with _phase("register", plan):
            registering.register(catalog, token, registration)
        failpoints.reach("after registering")
        if given.query is not None:
            # The caller takes these rows for settled and cannot send them again, as Kafka can.
            store = FileStore(pipeline.ledger.files)
            write_mark(catalog, store, Stage.INGEST, token, Sending(epoch=epoch))
        figures = asdict(registration.counts)
        seconds = round(catalog.now() - started_at, 3)
        structured_logging.write(
            _log, logging.INFO, "epoch settled", kind=given.kind, seconds=seconds, **figures
        )
        add_attributes(whole, **figures)
    return registration.counts


def _read_all(
    pipeline: Pipeline,
    catalog: Catalog,
    read: Callable[[ReadPlan], list[TaskManifest]],
    *,
    epoch: int,
    token: int,
    whole: bool,
) -> tuple[ReadPlan, list[TaskManifest], bool]:
    """With all schemas and fields that are to be known; the plan that it was read by, and whether a registry that may
    know more schemas did not answer.
    """
    plan = _plan(pipeline, catalog, epoch=epoch, token=token, whole=whole)
    failpoints.reach("before writing parts")
    manifests = _read(read, plan)
    while (
        learned := learn_schemas(pipeline, catalog, _awaited_schemas(manifests))
    ).schemas or learn_new_fields(pipeline, catalog, token, _new_fields(manifests)):
        # Read once more with what is known now; what the first time wrote has no row in the catalog.
        # A version that marks other fields than the rest is refused here, before anything of it is settled.
        plan = _plan(pipeline, catalog, epoch=epoch, token=token, whole=whole)
        manifests = _read(read, plan)
    return plan, manifests, learned.registry_is_away


def _plan(pipeline: Pipeline, catalog: Catalog, *, epoch: int, token: int, whole: bool) -> ReadPlan:
    with span("plan", pipeline=pipeline.pipeline, epoch=epoch):
        return plan_epoch_read(pipeline, catalog, epoch=epoch, token=token, whole=whole)


def _read(read: Callable[[ReadPlan], list[TaskManifest]], plan: ReadPlan) -> list[TaskManifest]:
    with _phase("read", plan) as phase:
        manifests = read(plan)
        add_attributes(phase, records=sum(task.read for task in manifests), tasks=len(manifests))
    return manifests


def _phase(name: str, plan: ReadPlan) -> AbstractContextManager[Span]:
    return span(name, pipeline=plan.pipeline, epoch=plan.epoch)


@contextmanager
def _free_space_when_full(pipeline: Pipeline, epoch: int, token: int) -> Iterator[None]:
    """Around all that an epoch writes: if a disk is full, what it had written goes at once.

    Before its registration nothing names a file of this epoch and token, and each further try has names of its own.
    Without this, tries that fail would keep the disk full until the sweep comes by.
    """
    try:
        yield
    except FullDiskError:
        store, own = FileStore(pipeline.ledger.files), epoch_path(pipeline.pipeline, epoch, token, "")
        with suppress(OncehouseError):
            for path in store.walk(own.rpartition("/")[0]):
                if path.startswith(own):
                    store.delete(path)
        raise


def read_dataframe(records: DataFrame, plan: ReadPlan) -> list[TaskManifest]:
    """The read job: one task a Kafka partition, or one for all of a small epoch."""

    def task(blocks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        attempt = name_attempt("r")
        with structured_logging.bound(pipeline=plan.pipeline, epoch=plan.epoch):
            try:
                manifest = read_records(plan, attempt, require_usual_size(blocks) if plan.counted else blocks)
            except OutsizeRecordError:
                manifest = TaskManifest(read=0, skipped=0, chunks=(), letters=(), outsize=True)
        yield pa.record_batch([pa.array([manifest.to_json()])], names=["manifest"])

    records = hand_to_workers(records, plan.counted)
    if plan.whole:
        records = records.coalesce(1)
    with cutting(records.sparkSession, plan.counted):
        rows = records.mapInArrow(task, MANIFEST_SCHEMA).collect()
    return [TaskManifest.from_json(row.manifest) for row in rows]


def _decide_all(
    spark: SparkSession,
    pipeline: Pipeline,
    catalog: Catalog,
    plan: ReadPlan,
    chunks: Sequence[ChunkManifest],
) -> list[Decision]:
    events = sum(chunk.events for chunk in chunks)
    if not events:
        return []
    index = segments.list_segments(catalog)
    cores = spark.sparkContext.defaultParallelism
    plans = [
        DecidePlan(
            bucket_from=first,
            bucket_to=last,
            buckets=pipeline.identity.buckets,
            files_root=plan.files_root,
            key_files=tuple(chunk.keys for chunk in chunks),
            segments=tuple(
                segment.file
                for segment in index
                if segment.bucket_from <= last and segment.bucket_to >= first
            ),
            out=epoch_path(plan.pipeline, plan.epoch, plan.token, f"d{first}"),
            tables=len(plan.tables),
        )
        for first, last in plan_ranges(keys=events, buckets=pipeline.identity.buckets, cores=cores)
    ]
    return run_tasks(spark, decide_task, plans)


def decide_task(plan: DecidePlan) -> Decision:
    return decide(replace(plan, out=f"{plan.out}-{name_attempt()}"))


def assemble(
    plan: ReadPlan,
    manifests: Sequence[TaskManifest],
    chunks: Sequence[ChunkManifest],
    decisions: Sequence[Decision],
    given: EpochInput,
    *,
    started_at: float,
) -> Registration:
    """Everything that an epoch settles, from what its tasks have reported. Pure."""
    duplicate_rows: dict[tuple[int, int], int] = {}
    for decision in decisions:
        for ordinal, table, rows in decision.duplicate_rows:
            duplicate_rows[ordinal, table] = duplicate_rows.get((ordinal, table), 0) + rows
    names = [f"{plan.epoch:010d}-{plan.token}-{ordinal}" for ordinal in range(len(chunks))]
    return Registration(
        epoch=plan.epoch,
        kind=given.kind,
        started_at=started_at,
        counts=_counts(manifests, decisions),
        ranges=given.ranges,
        topic_ids=given.topic_ids,
        key_files=tuple(
            KeyFile(key_file=name, ordinal=ordinal, events=chunk.events, keys=chunk.keys, raw=chunk.raw)
            for ordinal, (name, chunk) in enumerate(zip(names, chunks, strict=True))
        ),
        parts=tuple(
            part
            for ordinal, (name, chunk) in enumerate(zip(names, chunks, strict=True))
            for part in _parts(plan, name, ordinal, chunk, duplicate_rows)
        ),
        duplicate_files=tuple(decision.duplicate_file for decision in decisions if decision.duplicate_file),
        dead_letter_files=tuple(
            DeadLetterFile(
                dead_letter_file=f"{plan.epoch:010d}-{plan.token}-{number}",
                kind=found.kind,
                epoch=plan.epoch,
                rows=found.rows,
                reasons=found.reasons,
                file=found.file,
            )
            for number, found in enumerate(found for task in manifests for found in task.letters)
        ),
        segments=tuple(
            Segment(
                segment=f"{plan.epoch:010d}-{plan.token}-{decision.bucket_from}",
                bucket_from=decision.bucket_from,
                bucket_to=decision.bucket_to,
                keys=decision.new,
                first_seen_from=started_at,
                first_seen_to=started_at,
                file=decision.segment,
            )
            for decision in decisions
            if decision.segment
        ),
        tried_dead_letter_files=given.tried_dead_letter_files,
        request=given.request,
        request_counts=given.request_counts,
        query=given.query,
    )


def _parts(
    plan: ReadPlan,
    key_file: str,
    ordinal: int,
    chunk: ChunkManifest,
    duplicate_rows: dict[tuple[int, int], int],
) -> Iterator[Part]:
    for part in chunk.parts:
        live_rows = part.rows - duplicate_rows.get((ordinal, part.table), 0)
        yield Part(
            part=f"{key_file}-{part.table}",
            epoch=plan.epoch,
            table=plan.tables[part.table].name,
            key_file=key_file,
            ordinal=ordinal,
            rows=part.rows,
            live_rows=live_rows,
            size_bytes=part.size_bytes * live_rows // max(part.rows, 1),
            shape=part.shape,
            file=part.file,
        )


def _counts(manifests: Sequence[TaskManifest], decisions: Sequence[Decision]) -> Counts:
    return Counts(
        read=sum(task.read for task in manifests),
        new=sum(decision.new for decision in decisions),
        duplicate=sum(decision.duplicates for decision in decisions),
        dead_letter=sum(found.rows for found in _dead_letters(manifests, DeadLetterKind.DEAD)),
        waiting=sum(found.rows for found in _dead_letters(manifests, DeadLetterKind.WAITING)),
        skipped=sum(task.skipped for task in manifests),
        conflicts=sum(decision.conflicts for decision in decisions),
    )


def _dead_letters(manifests: Sequence[TaskManifest], kind: DeadLetterKind) -> Iterator[DeadLetterManifest]:
    return (found for task in manifests for found in task.letters if found.kind is kind)


def _awaited_schemas(manifests: Sequence[TaskManifest]) -> tuple[str, ...]:
    """The most frequent first, and no more than the records of one file may wait for."""
    counted: Counter[str] = Counter()
    for letters in _dead_letters(manifests, DeadLetterKind.WAITING):
        counted.update(letters.reasons)
    return tuple(schema for schema, _ in counted.most_common(MOST_SCHEMAS))


def _new_fields(manifests: Sequence[TaskManifest]) -> NewFields:
    found: NewFields = {}
    for task in manifests:
        merge_fields(found, task.new_fields)
    return found
