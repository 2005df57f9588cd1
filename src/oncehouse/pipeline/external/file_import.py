"""Imports folders of files through the pipeline, batch by batch; each batch is an epoch.

Which files and which pieces make a batch is pinned in the ledger before the first row is read; an import that was
stopped goes on with the first batch that is not settled. It holds the leases of the pipeline meanwhile.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common.redaction import hide_credentials
from oncehouse.errors import ConfigurationError, LeaseHeldError, TransientError
from oncehouse.ledger.catalog import imports
from oncehouse.ledger.catalog.imports import Piece
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, FileFormat, QueryBatch
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.checks.startup import ignore, prepare
from oncehouse.pipeline.external.dataframe_ingest import require_dataframes, require_name
from oncehouse.pipeline.external.import_manifest import (
    find_new,
    list_files,
    plan_batches,
    plan_pieces,
    share_out,
)
from oncehouse.pipeline.external.import_reader import ImportPlan, import_task
from oncehouse.pipeline.formats.dataframe import DataFrameFormat, schema_of
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.ingest.epoch import EpochInput, settle
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.part_files import topic_of
from oncehouse.pipeline.progress import Progress
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.tasks import run_tasks
from oncehouse.pipeline.stages.ingest_stage import IngestLeaseHolder
from oncehouse.pipeline.stages.progress_reporter import ProgressReporter, RunResult
from oncehouse.pipeline.stages.supervisor import StageSupervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

BATCH_BYTES = 256 << 20
_TRIES = 6
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    place: str
    """A folder or file, as an absolute path or an address."""
    format: FileFormat
    name: str
    batch_bytes: int = BATCH_BYTES

    @property
    def origin(self) -> str:
        return f"the import of {hide_credentials(self.place)} as {self.format}"[:255]


def make_job(
    place: str, format_: FileFormat, *, name: str | None = None, batch_bytes: int = BATCH_BYTES
) -> ImportJob:
    """The import of a place; without a name it goes by what it imports, so that it is found again."""
    if name is not None:
        require_name(name)
    whole = place if "://" in place else str(Path(place).absolute())
    digest = hashlib.sha256(f"{format_}:{whole}".encode()).hexdigest()[:12]
    return ImportJob(place=whole, format=format_, name=name or f"import-{digest}", batch_bytes=batch_bytes)


def import_files(
    pipeline: Pipeline,
    job: ImportJob,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = ignore,
    say: Callable[[str], None] = ignore,
    jars: Sequence[Path] = (),
    wait: bool = False,
    spark: SparkSession | None = None,
) -> RunResult:
    """Import until all is in ClickHouse, or until `stop` is set; the same call goes on where one was stopped."""
    catalog = open_catalog(pipeline, report=say)
    try:
        require_dataframes(pipeline)
        list_files(job.place, job.format)  # so that a wrong folder is reported before Spark is started
        pipeline = prepare(pipeline, catalog, None, say=say).pipeline
        stages = StageSupervisor(
            pipeline,
            catalog,
            ProgressReporter(catalog, None, progress),
            lambda stages: FileImportStage(stages, job),
            stop=stop or threading.Event(),
            say=say,
            spark=spark,
            jars=jars,
        )
        return stages.go(once=True, wait=wait)
    except LeaseHeldError as error:
        raise LeaseHeldError(
            f"{error} An import writes the pipeline itself: stop that process for as long as the import takes (Kafka "
            "keeps what comes meanwhile), or let the import wait for it with --wait."
        ) from error
    finally:
        catalog.close()


class FileImportStage(IngestLeaseHolder):
    def __init__(self, stages: StageSupervisor, job: ImportJob) -> None:
        super().__init__(stages)
        self._report = stages.reporter
        self._job = job

    def run(self, stop: threading.Event, *, once: bool) -> None:
        del once  # an import has an end
        self._perform_requests()
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest")
        pieces = self._pin()
        batches = {number: tuple(found) for number, found in groupby(pieces, key=lambda piece: piece.batch)}
        settled = self._settled()
        total = sum(piece.size_bytes for piece in pieces)
        done = sum(piece.size_bytes for piece in pieces if piece.batch in settled)
        if settled:
            self._say(f"{len(settled)} of {len(batches)} batches of {self._job.name} are settled already")
        self._report.set_done_share(done, total)
        for number, found in batches.items():
            if stop.is_set():
                return
            if number not in settled:
                self._settle_patiently(number, found, stop)
                done += sum(piece.size_bytes for piece in found)
                self._report.set_done_share(done, total)

    def _settled(self) -> set[int]:
        spans = list_settled(self._catalog).get(self._job.name, ())
        return {number for first, last, _ in spans for number in range(first, last + 1)}

    def _pin(self) -> tuple[Piece, ...]:
        """All pieces of the import: those of earlier times, and those of files that are new since."""
        job = self._job
        listing = list_files(job.place, job.format)
        if listing.left_out:
            self._say(
                f"{listing.left_out} files of {hide_credentials(job.place)} are not named as {job.format}"
            )
        pinned = imports.list_import_files(self._catalog, job.name)
        pieces = imports.list_pieces(self._catalog, job.name)
        settled = self._settled()
        unsettled = {piece.number for piece in pieces if piece.batch not in settled}
        fresh = find_new(job.place, listing.files, pinned, unsettled)
        if not fresh and not pinned:
            raise ConfigurationError(
                f"{hide_credentials(job.place)} holds no {job.format} file; name another folder or --format"
            )
        first_batch = max((piece.batch for piece in pieces), default=-1) + 1
        cut = tuple(
            plan_batches(
                plan_pieces(job.place, fresh, job.format),
                first_batch=first_batch,
                batch_bytes=job.batch_bytes,
            )
        )
        if fresh:
            imports.pin_files(self._catalog, self._lease.token, job.name, fresh, cut)
        return (*pieces, *cut)

    def _settle_patiently(self, number: int, pieces: Sequence[Piece], stop: threading.Event) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                if self._gate.wait(stop.is_set):
                    self._settle(number, pieces)
            except TransientError as error:
                if attempt == _TRIES or stop.is_set():
                    raise
                pause_seconds = min(_LONGEST_PAUSE_SECONDS, 0.5 * 2**attempt)
                self._say(f"{error} Trying again in {pause_seconds:.0f} s.")
                stop.wait(pause_seconds)
            else:
                return

    def _settle(self, number: int, pieces: Sequence[Piece]) -> None:
        batch = QueryBatch(query=self._job.name, batch=number, origin=self._job.origin)
        with self._epoch_lock, translated_errors(self._pipeline.pipeline):
            counts = settle(
                self._spark,
                self._pipeline,
                self._catalog,
                self._lease.token,
                lambda plan: self._read(plan, pieces),
                EpochInput(kind=EpochKind.FRAME, topic_ids={}, query=batch),
                small=False,
            )
        self._on_epoch(counts)

    def _read(self, plan: ReadPlan, pieces: Sequence[Piece]) -> list[TaskManifest]:
        files = {file.number: file for file in imports.list_import_files(self._catalog, self._job.name)}
        add_schemas(self._catalog, [schema_of(plan.fields)])
        as_messages = self._job.format is FileFormat.JSON and isinstance(plan.format, JsonFormat)
        plan = replace(
            plan,
            format=plan.format if as_messages else DataFrameFormat(),
            topics=(topic_of(self._job.name),),
        )
        shares = share_out(pieces, tasks=self._spark.sparkContext.defaultParallelism)
        tasks = [
            ImportPlan(
                read=plan,
                place=self._job.place,
                format=self._job.format,
                files=tuple(files[number] for number in sorted({piece.number for piece in share})),
                pieces=share,
                mark_json=not as_messages,
            )
            for share in shares
        ]
        return run_tasks(self._spark, import_task, tasks)
