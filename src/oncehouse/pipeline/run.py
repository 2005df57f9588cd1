"""Running a pipeline: what `oncehouse run` does with a pipeline file.

A pipeline over Kafka runs all its stages. One that takes DataFrames and imports gets its epochs from other
processes; its run loads them, and performs requests while no other process holds the ingest lease. Stages may also be
spread over processes and machines: each takes the leases of its own, and the catalog is all they share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Stage
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.checks.startup import ignore, prepare
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, group_of
from oncehouse.pipeline.ingest.record_sizes import RecordSizes
from oncehouse.pipeline.progress import Progress
from oncehouse.pipeline.stages.direct_ingest import DirectIngestStage
from oncehouse.pipeline.stages.ingest_stage import IngestStage
from oncehouse.pipeline.stages.kafka_stream import KafkaIngestStage
from oncehouse.pipeline.stages.progress_reporter import ProgressReporter, RunResult
from oncehouse.pipeline.stages.request_only_stage import RequestOnlyStage
from oncehouse.pipeline.stages.supervisor import StageSupervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline


def run_pipeline(
    pipeline: Pipeline,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = ignore,
    say: Callable[[str], None] = ignore,
    jars: Sequence[Path] = (),
    wait: bool = True,
    only: Sequence[Stage] = (),
    spark: SparkSession | None = None,
) -> RunResult:
    """Run until `stop` is set; with `once`, until all that is in Kafka now is in ClickHouse.

    `only`: the stages to run here, where other processes run the rest; none means all of them. With `once` each does
    what there is for it now: ingest reads what is in Kafka, load sends what is in the ledger.

    A Spark session that is given is used and left running; otherwise one is started and stopped here.

    Where the pipeline has run before, it starts without ClickHouse too (not with `once`): reading goes on, and the
    tables are looked at before the first insert.

    Raises ConfigurationError before any data moves, FencedError when another process took over, LeaseHeldError
    when one is running and `wait` is off.
    """
    catalog = open_catalog(pipeline, report=say)
    stages = choose_stages(pipeline, only)
    # A process that does not read Kafka need not reach it.
    kafka = pipeline.source.kafka if Stage.INGEST in stages else None
    topics = KafkaTopics(kafka, group=group_of(pipeline.pipeline)) if kafka else None
    try:
        prepared = prepare(pipeline, catalog, topics, may_wait=not once, say=say)
        pipeline = prepared.pipeline
        sizes = _measure_records(catalog, topics)
        running = StageSupervisor(
            pipeline,
            catalog,
            ProgressReporter(catalog, topics, progress),
            lambda running: _make_ingest(running, topics, sizes, tends=not only),
            stages=stages,
            stop=stop or threading.Event(),
            say=say,
            spark=spark,
            jars=jars,
            tables_unseen=not prepared.tables_seen,
        )
        return running.go(once=once, wait=wait)
    finally:
        catalog.close()


def choose_stages(pipeline: Pipeline, only: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages that this process runs, in the order in which their leases are taken."""
    own = tuple(Stage) if pipeline.source.kafka is not None else (Stage.LOAD, Stage.RETENTION)
    if refused := [stage for stage in only if stage not in own]:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline} has no stage {refused[0]} of its own: its epochs are written by a "
            "process that opens a Sink or runs `oncehouse import`. Leave it out."
        )
    return tuple(stage for stage in own if not only or stage in only)


def _measure_records(catalog: Catalog, topics: KafkaTopics | None) -> RecordSizes | None:
    """Begun before Spark starts, which takes longer."""
    if topics is None:
        return None
    return RecordSizes(topics, epochs.read_topic_ids(catalog), epochs.read_positions(catalog))


def _make_ingest(
    running: StageSupervisor, topics: KafkaTopics | None, sizes: RecordSizes | None, *, tends: bool
) -> IngestStage:
    if topics is not None and sizes is not None:
        stage = DirectIngestStage if topics.kafka.reader == "direct" else KafkaIngestStage
        return stage(running, topics, sizes)
    return RequestOnlyStage(running) if tends else IdleIngestStage()


class IdleIngestStage:
    """The ingest of a process that was started for other stages only."""

    def run(self, stop: threading.Event, *, once: bool) -> None:
        if not once:
            stop.wait()

    def keep_compact(self, stop: threading.Event) -> None:
        """The process that writes epochs merges segments."""
