"""Running a pipeline: what `oncehouse run` does with a pipeline file.

A pipeline over Kafka runs all its stages. One that takes DataFrames and imports gets its epochs from other
processes; its run loads them, and performs requests while nobody else holds the ingest lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import Stage
from oncehouse.ledger.schemas import add_schemas
from oncehouse.pipeline.adopting import adopt
from oncehouse.pipeline.deciding import Ingesting
from oncehouse.pipeline.prepare import demand_ready, open_catalog
from oncehouse.pipeline.report import Report, RunResult
from oncehouse.pipeline.schemas import declared_schemas
from oncehouse.pipeline.source import Topics
from oncehouse.pipeline.stages import Stages
from oncehouse.pipeline.stream import Ingest
from oncehouse.pipeline.tending import Tending
from oncehouse.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline


def keep_quiet(_message: object) -> None:
    """The listener of those who do not want to hear."""


def run_pipeline(
    pipeline: Pipeline,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = keep_quiet,
    say: Callable[[str], None] = keep_quiet,
    jars: Sequence[Path] = (),
    wait: bool = True,
    spark: SparkSession | None = None,
) -> RunResult:
    """Run until `stop` is set; with `once`, until all that is in Kafka now is in ClickHouse.

    A Spark session that is given is used and left running; otherwise one is started and stopped here.

    Raises ConfigurationError before any data moves, FencedError when another process took over, LeaseHeldError
    when one is running and `wait` is off.
    """
    catalog = open_catalog(pipeline)
    topics = None if pipeline.source.kafka is None else Topics(pipeline.source.kafka)
    try:
        prepare(pipeline, catalog, topics)
        stages = Stages(
            pipeline,
            catalog,
            Report(catalog, topics, progress),
            Tending if topics is None else lambda stages: _read_kafka(stages, topics),
            stages=(Stage.LOAD, Stage.RETENTION) if topics is None else tuple(Stage),
            stop=stop or threading.Event(),
            say=say,
            spark=spark,
            jars=jars,
        )
        return stages.go(once=once, wait=wait)
    finally:
        catalog.close()


def prepare(pipeline: Pipeline, catalog: Catalog, topics: Topics | None) -> None:
    """Look at everything, then make the ledger ready; raises before any data moves."""
    demand_ready(pipeline, catalog, topics)
    catalog.prepare()
    adopt(pipeline, catalog)
    add_schemas(catalog, declared_schemas(pipeline))


def _read_kafka(stages: Stages, topics: Topics) -> Ingesting:
    return Ingest(stages, topics)
