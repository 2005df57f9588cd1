"""A user's own stream of DataFrames, and an import, killed again and again: each row is in ClickHouse once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataframe_job import QUERY, ROWS_A_BATCH, run_job
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse import Sink
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, FileFormat
from oncehouse.pipeline.external.file_import import import_files, make_job


@pytest.fixture
def frame_pipeline(make_pipeline) -> LivePipeline:
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["source"] = {
        "format": "frame",
        "fields": live_pipeline.document["source"]["fields"],
    }
    live_pipeline.create_tables()
    return live_pipeline


def settled_batches(live_pipeline: LivePipeline, query: str) -> int:
    if not live_pipeline.catalog.exists():
        return 0
    return sum(last - first + 1 for first, last, _ in list_settled(live_pipeline.catalog).get(query, ()))


def kill_soon(live_pipeline: LivePipeline, command: list[str], query: str, chance: random.Random) -> None:
    """Start it, let it settle something, and kill it a random moment later."""
    before = settled_batches(live_pipeline, query)
    with (live_pipeline.folder / "process.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(
            lambda: settled_batches(live_pipeline, query) > before or process.poll() is not None, "a batch"
        )
        time.sleep(chance.random() * 2)
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_killed_at_random_moments_ends_exact(frame_pipeline, tmp_path, seed):
    live_pipeline, chance = frame_pipeline, random.Random(seed)
    checkpoint = str(tmp_path / "checkpoint")
    job = str(Path(__file__).parents[1] / "support" / "dataframe_job.py")
    command = [sys.executable, job, live_pipeline.command_line("run")[-1], checkpoint, "1000000"]
    for _ in range(4):
        kill_soon(live_pipeline, command, QUERY, chance)
    with Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark, wait=True) as sink:
        run_job(live_pipeline.spark, sink, checkpoint, settled_batches(live_pipeline, QUERY) + 3)
    live_pipeline.assert_dataframe_rows(settled_batches(live_pipeline, QUERY) * ROWS_A_BATCH)


@pytest.mark.parametrize(
    "point", ["parts written", "before registering:2", "after registering", "after inserting"]
)
def test_a_stream_killed_at_any_step_ends_exact(frame_pipeline, tmp_path, point):
    live_pipeline = frame_pipeline
    live_pipeline.crash_job(point, tmp_path / "checkpoint", 6)
    with Sink.open(live_pipeline.pipeline, spark=live_pipeline.spark, wait=True) as sink:
        run_job(live_pipeline.spark, sink, str(tmp_path / "checkpoint"), 4)
    live_pipeline.assert_dataframe_rows(settled_batches(live_pipeline, QUERY) * ROWS_A_BATCH)


@pytest.mark.timeout(900)
def test_an_import_killed_at_random_moments_ends_exact_and_finds_what_kafka_brought(make_pipeline, tmp_path):
    live_pipeline, chance = make_pipeline(batch={"max_rows": 100_000}), random.Random(3)
    live_pipeline.send(make_event(number) for number in range(500))
    live_pipeline.run()
    folder = tmp_path / "archive"
    folder.mkdir()
    rows, files = 20_000, 30
    for number in range(files):
        ids = range(number * rows, number * rows + rows)
        events = [make_event(at) for at in ids]
        table = pa.table(
            {
                "project": [event[0] for event in events],
                "event_type": [event[1] for event in events],
                "product_id": pa.array(ids, pa.uint64()),
                "note": [""] * rows,
            }
        )
        pq.write_table(table, folder / f"{number:03d}.parquet")
    job = make_job(str(folder), FileFormat.PARQUET)
    command = [
        *live_pipeline.command_line("import", str(folder)),
        "--format",
        "parquet",
        "--batch-bytes",
        "1B",
    ]
    for _ in range(3):
        kill_soon(live_pipeline, command, job.name, chance)
    assert 0 < settled_batches(live_pipeline, job.name) < files
    import_files(live_pipeline.pipeline, job, spark=live_pipeline.spark, wait=True)
    found = live_pipeline.client.query(
        f"SELECT count(), uniqExact(product_id) FROM {live_pipeline.table}"
    ).result_rows
    assert found == [(rows * files, rows * files)]
    counts = live_pipeline.counts(EpochKind.FRAME)
    assert (counts.read, counts.duplicate) == (rows * files, 500)
    assert not live_pipeline.findings()
