"""Anybody's DataFrame through the sink: rows by name and type, batches once, letters, refill and the lease."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from dataframe_job import QUERY, ROWS_A_BATCH, run_job
from live_pipeline import FIELDS, LivePipeline
from oncehouse import Sink
from oncehouse.errors import ConfigurationError, LeaseHeldError
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, RequestKind
from oncehouse.pipeline.external import dataframe_ingest
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters


@pytest.fixture
def frame_pipeline(make_pipeline) -> LivePipeline:
    """A pipeline without Kafka: rows come from frames alone."""
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["source"] = {
        "format": "frame",
        "fields": FIELDS
        | {"price": "Nullable(Float64)", "blob": "Nullable(String)", "tags": "Array(String)"},
    }
    live_pipeline.create_tables()
    return live_pipeline


def frame_of(live_pipeline: LivePipeline, numbers: range, **columns: Any) -> DataFrame:
    frame = live_pipeline.spark.range(numbers.start, numbers.stop, 1, 4).select(
        f.lit("shop").alias("project"),
        f.lit("view").alias("event_type"),
        f.col("id").alias("product_id"),
        f.concat(f.lit("note of "), f.col("id")).alias("note"),
    )
    return frame.withColumns(columns)


def test_frames_reach_clickhouse_once_and_can_be_read_again_from_the_ledger(frame_pipeline):
    live_pipeline = frame_pipeline
    odd = f.when(f.col("product_id") == 7, f.lit(-7)).otherwise(f.col("product_id"))
    price = f.when(f.col("product_id") == 3, f.lit(math.nan)).otherwise(f.lit(0.1))
    told: list[str] = []
    with Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark, say=told.append) as sink:
        first = frame_of(live_pipeline, range(100), price=price, blob=f.unhex(f.lit("00ff")), extra=f.lit(1))
        written = sink.write(first.withColumn("product_id", odd), query="fill", batch=0)
        assert (written.counts.read, written.counts.new, written.counts.dead_letter) == (100, 99, 1)
        parts = batches.list_parts(live_pipeline.catalog, table=live_pipeline.table)
        assert [part.rows for part in parts] == [99], "a small frame makes one part"
        # Run again, a batch is known, whatever it would give now; under a new number rows are duplicates.
        again = sink.write(frame_of(live_pipeline, range(1000)), query="fill", batch=0)
        assert again.was_settled
        assert "batch 0 of query fill is settled already" in told[-1]
        counts = sink.write(frame_of(live_pipeline, range(90, 110)), query="fill", batch=1).counts
        assert (counts.new, counts.duplicate) == (10, 10)
        with pytest.raises(LeaseHeldError, match=r"run by .* pid \d+.*one process at a time"):
            Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark)
        with pytest.raises(ConfigurationError, match=r"no column product_id.*rename product to it"):
            sink.write(first.withColumnRenamed("product_id", "product"), query="fill", batch=2)
        with pytest.raises(ConfigurationError, match="cannot name a query"):
            sink.write(first, query="a/b", batch=2)
    assert live_pipeline.client.query(
        f"SELECT count(), uniqExact(product_id) FROM {live_pipeline.table}"
    ).result_rows == [(109, 109)]
    query = f"SELECT hex(blob), tags FROM {live_pipeline.table} WHERE isNaN(price)"
    assert live_pipeline.client.query(query).result_rows == [("00FF", [])]
    assert not live_pipeline.findings()

    # The row that did not fit is kept as text with its position.
    letters = read_dead_letters(
        live_pipeline.store, [found.file for found in epochs.list_dead_letter_files(live_pipeline.catalog)]
    )
    letter = letters.to_pylist()[0]
    assert (letter["topic"], letter["partition"], letter["reason"]) == ("frame:fill", 0, "out_of_range")
    assert b'"product_id": -7' in letter["value"]
    live_pipeline.document["tables"].append({"name": f"{live_pipeline.database}.copy"})
    live_pipeline.create_tables(f"{live_pipeline.database}.copy")
    result = live_pipeline.request(RequestKind.REFILL_TABLE, table=f"{live_pipeline.database}.copy")
    assert "109 rows" in result
    columns = "project, event_type, product_id, note, isNaN(price), blob, tags, _unique_id"
    old, new = (
        live_pipeline.client.query(f"SELECT {columns} FROM {table} ORDER BY product_id").result_rows
        for table in (live_pipeline.table, f"{live_pipeline.database}.copy")
    )
    assert [tuple(row) for row in old] == [tuple(row) for row in new]


@pytest.mark.long
def test_a_stream_run_again_after_a_crash_settles_each_batch_once(frame_pipeline, tmp_path):
    live_pipeline = frame_pipeline
    live_pipeline.crash_job("after registering:2", tmp_path / "checkpoint", 6)
    settled = list_settled(live_pipeline.catalog)[QUERY]
    assert [first for first, _, _ in settled] == [0, 1], "batch 1 is settled, but Spark does not know that"
    told: list[str] = []
    with Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark, say=told.append) as sink:
        numbers = run_job(live_pipeline.spark, sink, str(tmp_path / "checkpoint"), 4)
        assert numbers[0] == 1, "Spark hands the batch over once more"
        assert "batch 1 of query orders-join is settled already" in told[0]
        with pytest.raises(Exception, match="counted by Spark's query"):
            run_job(live_pipeline.spark, sink, str(tmp_path / "another"), 1)
    live_pipeline.assert_dataframe_rows(len(list_settled(live_pipeline.catalog)[QUERY]) * ROWS_A_BATCH)
    counts = live_pipeline.counts(EpochKind.FRAME)
    assert counts.read == 2 * counts.new == 2 * counts.duplicate


def test_large_partitions_are_read_where_they_are_and_small_ones_together(frame_pipeline, monkeypatch):
    live_pipeline = frame_pipeline
    monkeypatch.setattr(dataframe_ingest, "SMALL_EPOCH_RECORDS", 1000)
    live_pipeline.document["shape"] = {"where": "product_id NOT IN (5, 10005)"}
    small, large = (
        frame_of(live_pipeline, range(900)),
        frame_of(live_pipeline, range(10_000, 15_000)).coalesce(1),
    )
    with Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark, load=False) as sink:
        counts = sink.write(small.union(large), query="mixed", batch=0).counts
    assert (counts.new, counts.skipped) == (5898, 2), "rows of frames are shaped like events"
    parts = batches.list_parts(live_pipeline.catalog, table=live_pipeline.table)
    assert sorted(part.rows for part in parts) == [899, 4999]
    live_pipeline.run()
    assert live_pipeline.client.query(f"SELECT count() FROM {live_pipeline.table}").result_rows == [(5898,)]
    assert not live_pipeline.findings()


def test_the_examples_of_the_docs_run(frame_pipeline, tmp_path, monkeypatch):
    live_pipeline = frame_pipeline
    live_pipeline.client.command(f"DROP TABLE {live_pipeline.table}")
    page = (Path(__file__).parents[2] / "docs" / "dataframes.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n")[1].split("```")[0]
    live_pipeline.document = (
        live_pipeline.document | yaml.safe_load(text) | {"ledger": live_pipeline.document["ledger"]}
    )
    live_pipeline.document["clickhouse"] = {"url": frame_pipeline.url}
    live_pipeline.document["tables"] = [{"name": live_pipeline.table}]
    live_pipeline.create_tables()
    monkeypatch.chdir(tmp_path)
    Path("pipeline.yaml").write_text(yaml.safe_dump(live_pipeline.document), encoding="utf-8")
    names: dict[str, Any] = {}
    stream, batch = (piece.split("```")[0] for piece in page.split("```python\n")[1:])
    exec(stream.replace('"checkpoint"', repr(str(tmp_path / "checkpoint"))), names)
    rows = live_pipeline.client.query(
        f"SELECT count(), uniqExact(product_id) FROM {live_pipeline.table}"
    ).result_rows[0]
    assert rows[0] == rows[1] > 0
    frame_of(live_pipeline, range(1_000_000, 1_000_010)).createOrReplaceTempView("orders_2026")
    exec(batch, names)
    assert names["written"].counts.new == 10
    assert not live_pipeline.findings()
