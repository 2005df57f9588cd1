"""What the parts of the pipeline could do alone: the bare insert of ready parts, and the fixed cost of an epoch.

    python benchmarks/limits.py [--events 2000000]

The bare insert sends the batches of a finished run once more, already encoded, one after the other, into an empty table
and does nothing else. The fixed cost is the median time between two epochs of so few events that these hardly count.
The third limit, Spark's bare read, is measured where the pipeline is (end_to_end.py).
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

import figures
from figures import Figure, figure, rate, say
from measure import (
    Place,
    Topic,
    create_table,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    run_bench_pipeline,
)
from oncehouse.clickhouse.insert.repeatable_block import encode_block, repeatable_settings
from oncehouse.config.pipeline import Epoch
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.load.insert_task import live_rows
from oncehouse.pipeline.run import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 2_000_000
WARM_UP_EVENTS = 50_000
EPOCHS = 30
EPOCH_EVENTS = 1_000


def encode_batches(place: Place, topic: Topic) -> tuple[list[tuple[str, ...]], list[pa.Buffer], int]:
    """Columns, Arrow streams and rows of the batches that a run of the topic left in its ledger."""
    pipeline = make_pipeline(place, topic)
    catalog, store = open_catalog(pipeline), FileStore(pipeline.ledger.files)
    columns, streams, total = [], [], 0
    for batch in batches.list_batches(catalog):
        rows = live_rows(store, batches.load_parts(catalog, batch.batch_id)).combine_chunks()
        columns.append(tuple(rows.column_names))
        streams.append(encode_block(rows.to_batches()[0]))
        total += rows.num_rows
    catalog.close()
    return columns, streams, total


def insert_bare(place: Place, topic: Topic) -> tuple[int, float]:
    """Rows, and the seconds that their inserts took."""
    columns, streams, rows = encode_batches(place, topic)
    bare = make_pipeline(place, topic, name=f"{topic.name}_bare")
    create_table(place, bare)
    client = place.client
    seconds = 0.0
    for names, stream in zip(columns, streams, strict=True):
        token = str(uuid.uuid4())
        settings = repeatable_settings(client, token, token)
        started = time.perf_counter()
        client.insert_arrow(bare.tables[0].name, names, stream, settings)
        seconds += time.perf_counter() - started
    ((found,),) = client.query(f"SELECT count() FROM {bare.tables[0].name}")
    if found != rows or rows != topic.unique:
        raise SystemExit(f"No figures: {found} of {topic.unique} rows after the bare insert of {rows}")
    return rows, seconds


def median_epoch_seconds(place: Place, spark: SparkSession, *, epochs: int = EPOCHS) -> float:
    topic = fill_topic(place, "epochs", epochs * EPOCH_EVENTS)
    pipeline = make_pipeline(place, topic, epoch=Epoch(max_rows=EPOCH_EVENTS))
    create_table(place, pipeline)
    run_pipeline(pipeline, once=True, spark=spark)
    catalog = open_catalog(pipeline)
    registered = sorted(epoch.registered_at for epoch in list_epochs(catalog))
    catalog.close()
    return statistics.median(later - earlier for earlier, later in pairwise(registered))


def measure_in(place: Place, spark: SparkSession, topic: Topic, *, epochs: int = EPOCHS) -> list[Figure]:
    """Where the topic has gone through the pipeline already."""
    rows, seconds = insert_bare(place, topic)
    return [
        rate("bare_insert_rows_per_s", rows, seconds, "rows/s"),
        figure("epoch_fixed_cost_s", median_epoch_seconds(place, spark, epochs=epochs), "s"),
    ]


def measure(events: int = EVENTS) -> list[Figure]:
    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        warm, topic = fill_topic(place, "warm", WARM_UP_EVENTS), fill_topic(place, "bench", events)
        spark = at_end.enter_context(open_spark(make_pipeline(place, topic)))
        run_bench_pipeline(place, spark, warm)
        run_bench_pipeline(place, spark, topic)
        return [*measure_in(place, spark, topic), figure("limits_load_average", os.getloadavg()[0], "1")]


if __name__ == "__main__":
    figures.main(
        measure, described=__doc__, asked="events", default=EVENTS, help_="events of the pipeline before"
    )
