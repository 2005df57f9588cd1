"""A peer: Spark Structured Streaming with its own stateful deduplication on RocksDB, and an insert a micro-batch.

A warm topic goes through the same session first, as for oncehouse. Time is that of Kafka, so that nothing is late, and
the watermark is longer than any topic here lasts, so that every key is remembered. Rows are decoded in the JVM and sent
by the tasks as Arrow streams. Ends by itself when all is read. Runs in oncehouse's environment for its PySpark, and
imports nothing of oncehouse.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SCHEMA = (
    "project STRING, event_type STRING, product_id LONG, created_at TIMESTAMP, price DECIMAL(18, 2), "
    "user_name STRING, comment STRING"
)
IDENTITY = ["project", "event_type", "product_id"]
WATERMARK = "60 days"


def open_spark(task: dict[str, Any]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    cores = len(os.sched_getaffinity(0))
    settings = {
        "spark.jars": task["jars"],
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": task["scratch"],
        # A partition of state a core: with the default of 200 a micro-batch would be 200 commits.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting them, which is the default, costs another look-up a row; nobody here asks for the count.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false" if task["tuned"] else "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[*]").appName("peer")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_stream(spark: SparkSession, task: dict[str, Any], topic: str, table: str) -> None:
    host, port = task["host"], task["port"]

    def send(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [block for block in blocks if block.num_rows]
        if found:
            client = clickhouse_connect.get_client(host=host, port=port, autogenerate_session_id=False)
            client.insert_arrow(table, pa.Table.from_batches(found), settings={"async_insert": 0})
            client.close()
        yield pa.record_batch({"rows": pa.array([sum(block.num_rows for block in found)], pa.int64())})

    def insert(rows: DataFrame, number: int) -> None:
        if number == 0:
            # Nothing has been polled yet: what a warm-up tells is told again.
            print(json.dumps({"started_at": time.time()}), flush=True)
        rows.drop("timestamp").mapInArrow(send, "rows LONG").collect()

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task["servers"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", task["micro_batch_events"])
        .load()
    )
    event = f.from_json(f.col("value").cast("string"), SCHEMA)
    rows = records.select(event.alias("event"), "timestamp").select("event.*", "timestamp")
    fresh = rows.withWatermark("timestamp", WATERMARK).dropDuplicatesWithinWatermark(IDENTITY)
    writer = fresh.writeStream.foreachBatch(insert).trigger(availableNow=True)
    checkpoint = Path(task["scratch"]) / "checkpoints" / table
    writer.option("checkpointLocation", checkpoint.as_uri()).start().awaitTermination()


def main() -> None:
    task = json.loads(sys.argv[1])
    spark = open_spark(task)
    if task.get("warm_topic"):
        # What is warmed is the session; its state has a checkpoint of its own, which nobody meets again.
        warm = {**task, "scratch": str(Path(task["scratch"]) / uuid.uuid4().hex)}
        run_stream(spark, warm, task["warm_topic"], task["warm_table"])
        client = clickhouse_connect.get_client(host=task["host"], port=task["port"])
        client.command(f"DROP TABLE {task['warm_table']} SYNC")
    run_stream(spark, task, task["topic"], task["table"])
    spark.stop()


if __name__ == "__main__":
    main()
