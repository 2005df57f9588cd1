"""A user's own Spark job: a stream joined with a table, written through a sink. Also runs as a process.

`python dataframe_job.py PIPELINE CHECKPOINT BATCHES` goes on until that many batches are settled. The source gives the
same rows for the same batch, so what must be in ClickHouse in the end can be told.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from oncehouse import Sink
from oncehouse.config.file_loader import load_pipeline
from oncehouse.pipeline.spark.session import open_session

ROWS_A_BATCH = 40
QUERY = "orders-join"


def make_stream(spark: SparkSession) -> DataFrame:
    """Every number twice, with the kind that a table knows for it."""
    kinds = spark.createDataFrame([(0, "view"), (1, "click"), (2, "buy")], "remainder int, event_type string")
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_A_BATCH)
        .option("numPartitions", 3)
        .option("startTimestamp", 0)
        .load()
    )
    twice = numbers.withColumn("copy", f.explode(f.array(f.lit(1), f.lit(2))))
    return twice.join(f.broadcast(kinds), twice.value % 3 == kinds.remainder).select(
        f.lit("shop").alias("project"),
        "event_type",
        f.col("value").alias("product_id"),
        f.concat(f.lit("note of "), f.col("value")).alias("note"),
    )


def run_job(spark: SparkSession, sink: Sink, checkpoint: str, batches: int) -> list[int]:
    """Until that many batches are settled; gives the numbers that Spark handed over."""
    seen: list[int] = []
    write = sink.write_stream(query=QUERY)

    def write_batch(frame: DataFrame, number: int) -> None:
        write(frame, number)
        seen.append(number)

    query = (
        make_stream(spark)
        .writeStream.foreachBatch(write_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    while query.isActive and (not seen or seen[-1] < batches - 1):
        query.awaitTermination(1)
    error: Any = query.exception()
    query.stop()
    if error is not None:
        raise error
    return seen


def main() -> None:
    pipeline = load_pipeline(sys.argv[1])
    spark = open_session(pipeline)
    with Sink.open(Path(sys.argv[1]), spark=spark) as sink:
        run_job(spark, sink, sys.argv[2], int(sys.argv[3]))
    spark.stop()


if __name__ == "__main__":
    main()
