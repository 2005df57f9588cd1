"""oncehouse as a sink of anybody's Spark job: frames go in, each row reaches ClickHouse once.

A sink holds the ingest lease of its pipeline while it is open, and loads what it wrote unless `load=False`. A
batch is known by its query and number: settled once, it is skipped when Spark runs it again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError, LeaseHeldError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Counts, QueryBatch, Stage
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.checks.startup import ignore, prepare
from oncehouse.pipeline.external.dataframe_ingest import DataFrameIngest, require_dataframes, require_name
from oncehouse.pipeline.stages.ingest_stage import IngestStage
from oncehouse.pipeline.stages.progress_reporter import ProgressReporter
from oncehouse.pipeline.stages.supervisor import StageSupervisor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where Spark gives a callback the id of its stream, which is kept in the checkpoint.
_STREAM_ID = "sql.streaming.queryId"


@dataclass(frozen=True, kw_only=True)
class SinkResult:
    """What became of one batch."""

    query: str
    batch: int
    counts: Counts | None
    """None when the batch was settled before, so that nothing was read."""

    @property
    def was_settled(self) -> bool:
        return self.counts is None


def say_on_stderr(message: str) -> None:
    print(f"oncehouse: {message}", file=sys.stderr, flush=True)


class Sink:
    """Use it as a context: leaving it waits until all is in ClickHouse, unless an error leaves it."""

    def __init__(self, catalog: Catalog, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Use `Sink.open`."""
        self._catalog = catalog
        self._stop = stop
        self._say = say
        self._ready = threading.Event()
        self._ingest: DataFrameIngest | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        pipeline: Pipeline | str | os.PathLike[str],
        *,
        spark: SparkSession | None = None,
        load: bool = True,
        wait: bool = False,
        say: Callable[[str], None] = say_on_stderr,
    ) -> Self:
        """Check everything, take the leases, and be ready to write.

        `spark` is the session that is active here, if none is given. With `load=False` only epochs are written, and
        `oncehouse run` in another process takes them to ClickHouse. While another process holds a lease, LeaseHeldError
        names it; with `wait` it is waited for.
        """
        if not isinstance(pipeline, Pipeline):
            pipeline = load_pipeline(pipeline)
        catalog = open_catalog(pipeline, report=say)
        try:
            require_dataframes(pipeline)
            pipeline = prepare(pipeline, catalog, None, say=say).pipeline
        except BaseException:
            catalog.close()
            raise
        sink = cls(catalog, threading.Event(), say)
        sink._start(pipeline, spark or _active_session(), load=load, wait=wait)
        return sink

    def write(self, frame: DataFrame, *, query: str, batch: int) -> SinkResult:
        """Settle the frame as a batch of a query; one that is settled already is not even computed."""
        return self._write(frame, QueryBatch(query=query, batch=batch, origin="the caller of `write`"))

    def write_stream(self, query: str | None = None) -> Callable[[DataFrame, int], None]:
        """For `foreachBatch`. Without a name the query goes by Spark's own id, which its checkpoint keeps."""
        if query is not None:
            require_name(query)

        def write_batch(frame: DataFrame, batch: int) -> None:
            stream = frame.sparkSession.sparkContext.getLocalProperty(_STREAM_ID)
            origin = f"Spark's query {stream}"
            self._write(frame, QueryBatch(query=query or str(stream), batch=batch, origin=origin))

        return write_batch

    def close(self, *, load: bool = True) -> None:
        """Give the leases back; first wait until what was written is in ClickHouse, unless `load` is off."""
        if self._thread is None:
            return
        if not load or self._ingest is None:
            self._stop.set()
        if self._ingest is not None:
            self._ingest.close()
        self._thread.join()
        self._thread = None
        self._catalog.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(load=kind is None)

    def _start(self, pipeline: Pipeline, spark: SparkSession | None, *, load: bool, wait: bool) -> None:
        stages = StageSupervisor(
            pipeline,
            self._catalog,
            ProgressReporter(self._catalog, None, ignore),
            self._make_ingest,
            stages=tuple(Stage) if load else (Stage.INGEST,),
            stop=self._stop,
            say=self._say,
            spark=spark,
        )

        def work() -> None:
            try:
                stages.go(once=False, wait=wait)
            except BaseException as error:  # noqa: BLE001 - raised again where the sink is used or closed
                self._failure = error
            finally:
                self._ready.set()

        self._thread = threading.Thread(target=work, name="oncehouse-sink", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.close(load=False)
            raise _advise(failure)

    def _make_ingest(self, stages: StageSupervisor) -> IngestStage:
        self._ingest = DataFrameIngest(stages, self._ready)
        return self._ingest

    def _write(self, frame: DataFrame, batch: QueryBatch) -> SinkResult:
        require_name(batch.query)
        if self._thread is None or self._ingest is None:
            raise ConfigurationError("the sink is closed; open it again to write")
        if self._failure is not None:
            raise self._failure
        counts = self._ingest.settle(frame, batch)
        if counts is None:
            self._say(f"batch {batch.batch} of query {batch.query} is settled already; it was skipped")
        return SinkResult(query=batch.query, batch=batch.batch, counts=counts)


def _active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _advise(failure: BaseException) -> BaseException:
    if not isinstance(failure, LeaseHeldError):
        return failure
    return LeaseHeldError(
        f"{failure} A pipeline is written by one process at a time: `Sink.open(..., wait=True)` waits for the other, "
        "and a pipeline of its own with `source.format: frame` needs no turns."
    )
