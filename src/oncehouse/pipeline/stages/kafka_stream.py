"""The ingest stage: a Spark stream that settles epochs, and the requests performed between them.

Whatever ends the stream, it starts again from the ledger's offsets with a checkpoint of its own; a checkpoint
that is lost or damaged costs nothing but that restart. It also starts again when epochs should hold more or fewer
records than the stream was started with. Errors of ours stop the pipeline unless they may pass.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, cast

from oncehouse.common import structured_logging
from oncehouse.common.file_permissions import make_private_folder
from oncehouse.errors import DataLossError, OncehouseError, TransientError
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.models import EpochKind, OffsetRange
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import require_current
from oncehouse.pipeline.formats.factory import needs_headers
from oncehouse.pipeline.ingest.epoch import SMALL_EPOCH_RECORDS, EpochInput, read_dataframe, settle
from oncehouse.pipeline.ingest.epoch_sizing import (
    EpochSize,
    SettledEpoch,
    adjust_size,
    cut_ranges,
    first_size,
    full_bound,
)
from oncehouse.pipeline.ingest.kafka_log import KafkaLog
from oncehouse.pipeline.ingest.kafka_probe import KafkaProbe
from oncehouse.pipeline.ingest.kafka_source import (
    KafkaTopics,
    Positions,
    check_topics,
    group_of,
    open_ranges,
    open_stream,
    read_ranges,
    read_starting,
)
from oncehouse.pipeline.ingest.log_history import StaleLeaders
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.progress import StreamProgress
from oncehouse.pipeline.schema.identity_guard import under_ledgers_rule
from oncehouse.pipeline.spark.arrow_batches import HandoverChooser
from oncehouse.pipeline.spark.job_errors import rebuild_error, translated_errors
from oncehouse.pipeline.spark.session import scratch_folder
from oncehouse.pipeline.stages.ingest_stage import IngestLeaseHolder
from oncehouse.pipeline.stages.server_watch import TIMEOUT_SECONDS, ServerWatch, WatchedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from oncehouse.pipeline.ingest.record_sizes import RecordSizes
    from oncehouse.pipeline.stages.supervisor import StageSupervisor

_log = logging.getLogger("oncehouse.pipeline")

_LONGEST_PAUSE_SECONDS = 30.0
_TRIES_WHEN_DRAINING = 6
_POLLS_A_SECOND = 10


class KafkaIngestStage(IngestLeaseHolder):
    """Runs on the thread that calls `run`; epochs are settled on Spark's own callback thread."""

    def __init__(self, stages: StageSupervisor, topics: KafkaTopics, sizes: RecordSizes) -> None:
        super().__init__(stages)
        self._topics = topics
        self._stale_leaders = StaleLeaders()
        self._set_stream = stages.reporter.set_stream
        self._settled = False
        self._stopping = threading.Event()
        self._failure: OncehouseError | None = None
        self._starts = 0
        self._sizes = sizes
        self._size: EpochSize | None = None
        # The bound of the stream's micro-batches; those that are larger than the next epoch may be are cut.
        self._most_streamed = 0
        self._read_bytes = 0
        # Set when the stream has to start again with another bound, or with headers; no epoch begins before that.
        self._resizing = threading.Event()
        self._has_headers = False
        self._counting = HandoverChooser(self._pipeline.spark.settings)

    def run(self, stop: threading.Event, *, once: bool) -> None:
        """Until `stop` is set, or with `once` until all that was there at the start is settled."""
        probe = KafkaProbe(
            self._topics.kafka, group=group_of(self._pipeline.pipeline), timeout_seconds=TIMEOUT_SECONDS
        )
        kafka = WatchedServer(
            name=f"Kafka at {self._topics.kafka.bootstrap_servers}",
            find_trouble=probe.find_trouble,
            meanwhile="Nothing is read until it does; what was read is loaded.",
        )
        try:
            with ServerWatch(kafka, self._pauses, say=self._say).watching():
                self._run_streams(stop, once=once)
        finally:
            probe.close()

    def _run_streams(self, stop: threading.Event, *, once: bool) -> None:
        failures, reported = 0, ""
        # Events wait for a new rule only where the old one is not known, or where nothing goes on anyway.
        self._handler.rekeys = once or under_ledgers_rule(self._pipeline, self._catalog) is None
        while not stop.is_set():
            self._settled = False
            try:
                self._run_stream(stop, once=once)
                if once and not self._resizing.is_set():
                    return
            except TransientError as error:
                failures = 1 if self._settled else failures + 1
                if once and failures >= _TRIES_WHEN_DRAINING:
                    raise
                pause_seconds = min(_LONGEST_PAUSE_SECONDS, 0.5 * 2**failures)
                if self._settled or str(error) != reported:
                    self._say(
                        f"{error} Starting again in {pause_seconds:.0f} s, and then as often as it takes."
                    )
                reported = str(error)
                stop.wait(pause_seconds)

    def _run_stream(self, stop: threading.Event, *, once: bool) -> None:
        self._failure = None
        self._stopping.clear()
        self._resizing.clear()
        self._perform_requests()
        if not self._gate.wait(stop.is_set):
            return
        starting = self._starting_positions()
        self._require_current()
        with translated_errors(self._pipeline.pipeline):
            checkpoint = self._new_checkpoint()
            query = self._start(starting, checkpoint, once=once)
        try:
            while query.isActive and not stop.is_set() and not self._resizing.is_set():
                self._wait_a_second(query)
                self._set_stream(_read_progress(query))
                if not once:
                    self._perform_requests()
            error = query.exception() if not query.isActive else None
        finally:
            self._end(query)
            shutil.rmtree(checkpoint, ignore_errors=True)
        failure = self._failure
        if failure is None and error is not None:
            failure = rebuild_error(self._pipeline.pipeline, str(error))
        if isinstance(failure, DataLossError):
            # Spark says that records are gone, in words of its own; Kafka knows which.
            self._starting_positions()
        if failure is not None:
            raise failure

    def _require_current(self) -> None:
        """Offsets of a catalog that has lost epochs would be read, and delivered, once more."""
        leases.require_held(self._catalog, self._lease)
        require_current(self._catalog, FileStore(self._pipeline.ledger.files))

    def _starting_positions(self) -> Positions:
        known = epochs.read_topic_ids(self._catalog)
        self._topic_ids, starting = read_starting(self._topics, known, epochs.read_positions(self._catalog))
        self._log = KafkaLog(
            self._topics, starting, epochs.read_leader_epochs(self._catalog), self._stale_leaders
        )
        return starting

    def _on_rule_changed(self) -> None:
        if needs_headers(self._pipeline) and not self._has_headers:
            self._resizing.set()

    def _new_checkpoint(self) -> Path:
        self._starts += 1
        root = self._pipeline.ledger.files
        folder = scratch_folder(root) / self._pipeline.pipeline
        checkpoints = folder / "checkpoints"
        make_private_folder(checkpoints)
        for old in checkpoints.iterdir():
            # A successor's checkpoint is not ours to remove, should this process have been frozen meanwhile.
            if old.name.partition("-")[0].isdigit() and int(old.name.partition("-")[0]) <= self._lease.token:
                shutil.rmtree(old, ignore_errors=True)
        return checkpoints / f"{self._lease.token}-{self._starts}"

    def _start(self, starting: Positions, checkpoint: Path, *, once: bool) -> StreamingQuery:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest")
        if self._size is None:
            self._size = first_size(self._pipeline.epoch, self._sizes.mean_bytes())
            self._most_streamed = full_bound(self._pipeline.epoch, self._size.record_bytes)
        self._has_headers = needs_headers(self._pipeline)
        records = open_stream(
            self._spark,
            self._topics.kafka,
            starting,
            headers=self._has_headers,
            max_rows=self._most_streamed,
            group=group_of(self._pipeline.pipeline),
        )

        def on_micro_batch(frame: DataFrame | None, number: int) -> None:
            # What is not settled now is read again from the ledger's offsets at the next start.
            try:
                waiting = read_ranges(checkpoint, number, starting)
                while waiting and self._gate.wait(self._stopping.is_set) and self._acquire_epoch_lock():
                    try:
                        waiting = self._settle_next(frame, waiting)
                    finally:
                        self._epoch_lock.release()
                    # The next epoch's records are no longer the micro-batch's.
                    frame = None
            except OncehouseError as error:
                # Spark ships only the text of what its callback raises; the error itself is kept here.
                self._failure = error
                raise

        writer = records.writeStream.foreachBatch(on_micro_batch).option(
            "checkpointLocation", checkpoint.as_uri()
        )
        if once:
            return writer.trigger(availableNow=True).start()
        interval = f"{int(self._pipeline.epoch.max_wait * 1000)} milliseconds"
        return writer.trigger(processingTime=interval).start()

    def _acquire_epoch_lock(self) -> bool:
        """With a timeout: the thread that stops the stream holds it, and waits for Spark's callback to end."""
        while not self._stopping.is_set():
            if self._resizing.is_set():
                self._stopping.wait()
            elif self._epoch_lock.acquire(timeout=0.1):
                # A request that was performed meanwhile may have changed what the stream has to bring.
                if not self._resizing.is_set():
                    return True
                self._epoch_lock.release()
        return False

    def _settle_next(
        self, micro_batch: DataFrame | None, waiting: Sequence[OffsetRange]
    ) -> tuple[OffsetRange, ...]:
        """One epoch of what waits; returns the rest. `micro_batch`: all of its records, if the stream has them."""
        size = self._known_size
        ranges, rest = cut_ranges(waiting, size.most_records)
        records = micro_batch
        if records is None or rest:
            records = open_ranges(
                self._spark,
                self._topics.kafka,
                ranges,
                headers=self._has_headers,
                group=group_of(self._pipeline.pipeline),
            )
        self._settle(lambda plan: self._read(records, plan), ranges)
        most_records = self._known_size.most_records
        # Epochs that no longer grow are here to stay: the stream has consumers that read on, a cut part has not.
        if (rest and most_records <= size.most_records) or most_records > self._most_streamed:
            self._most_streamed = most_records
            self._resizing.set()
        return rest

    @property
    def _known_size(self) -> EpochSize:
        return self._size or first_size(self._pipeline.epoch)

    def _settle(
        self, read: Callable[[ReadPlan], list[TaskManifest]], ranges: tuple[OffsetRange, ...]
    ) -> None:
        records = sum(span.end - span.start for span in ranges)
        if not records:
            return
        started = time.monotonic()
        self._take_up_tables()
        with translated_errors(self._pipeline.pipeline):
            counts = settle(
                self._spark,
                self._pipeline,
                self._catalog,
                self._lease.token,
                read,
                EpochInput(
                    kind=EpochKind.KAFKA,
                    ranges=ranges,
                    topic_ids=self._topic_ids,
                    confirm=self._log.confirm,
                ),
                small=records <= SMALL_EPOCH_RECORDS,
            )
        self._settled = True
        self._on_epoch(counts)
        self._follow(
            SettledEpoch(records=records, size_bytes=self._read_bytes, seconds=time.monotonic() - started)
        )

    def _follow(self, seen: SettledEpoch) -> None:
        """Let the size of epochs follow what was seen."""
        known = self._known_size
        self._size = adjust_size(known, seen, self._pipeline.epoch)
        if self._size.most_records != known.most_records:
            structured_logging.write(
                _log,
                logging.INFO,
                "epoch size changed",
                most_records=self._size.most_records,
                record_bytes=round(self._size.record_bytes),
            )

    def _read(self, frame: DataFrame, plan: ReadPlan) -> list[TaskManifest]:
        known_bytes = self._size.record_bytes if self._size and not self._has_headers else 0.0
        manifests = read_dataframe(frame, replace(plan, counted=self._counting.choose(known_bytes)))
        if any(task.outsize for task in manifests):
            self._counting.found_outsize()
            # What the first reading wrote has no row in the catalog, and is swept.
            structured_logging.write(_log, logging.INFO, "epoch read again", record_bytes=round(known_bytes))
            manifests = read_dataframe(frame, plan)
        return self._note_read(manifests)

    def _note_read(self, manifests: list[TaskManifest]) -> list[TaskManifest]:
        self._read_bytes = sum(task.read_bytes for task in manifests)
        # Asked after the records were read: a topic created again meanwhile may go on with the same offsets.
        check_topics(self._topics.describe(), self._topic_ids, {}, {})
        return manifests

    def _wait_a_second(self, query: StreamingQuery) -> None:
        """Or less, where the stream ends or has to start again."""
        from pyspark.errors import StreamingQueryException

        # It raises what ended the query; the caller asks for that when everything has been put away.
        with suppress(StreamingQueryException):
            pause = cast("int", 1 / _POLLS_A_SECOND)  # A part of a second is allowed, whatever its type says.
            for _ in range(_POLLS_A_SECOND):
                if query.awaitTermination(pause) or self._resizing.is_set():
                    return

    def _end(self, query: StreamingQuery) -> None:
        self._stopping.set()
        if query.isActive:
            with self._epoch_lock:
                query.stop()


def _read_progress(query: StreamingQuery) -> StreamProgress | None:
    progress = query.lastProgress
    if progress is None:
        return None
    return StreamProgress(
        batch=progress.batchId,
        records=progress.numInputRows,
        # Spark has no rate for a first or an empty trigger, and says NaN.
        input_per_second=_number(progress.inputRowsPerSecond),
        processed_per_second=_number(progress.processedRowsPerSecond),
        phase_seconds={phase: took / 1000 for phase, took in progress.durationMs.items()},
    )


def _number(rate: float) -> float:
    return rate if isfinite(rate) else 0.0
