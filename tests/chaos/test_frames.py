"""Somebody's own stream, and an import, killed again and again: in the end everything is there once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frame_job import QUERY, ROWS_A_BATCH, run_job
from oncehouse import Sink
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, FileFormat
from oncehouse.pipeline.external.file_import import import_files, make_job
from road import Road, make_event, wait_until


@pytest.fixture
def frame_road(make_road) -> Road:
    road = make_road(tables=False)
    road.document["source"] = {"format": "frame", "fields": road.document["source"]["fields"]}
    road.create_tables()
    return road


def settled_batches(road: Road, query: str) -> int:
    if not road.catalog.exists():
        return 0
    return sum(last - first + 1 for first, last, _ in list_settled(road.catalog).get(query, ()))


def kill_soon(road: Road, command: list[str], query: str, chance: random.Random) -> None:
    """Start it, let it settle something, and kill it a random moment later."""
    before = settled_batches(road, query)
    with (road.folder / "process.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: settled_batches(road, query) > before or process.poll() is not None, "a batch")
        time.sleep(chance.random() * 2)
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_killed_at_random_moments_ends_exact(frame_road, tmp_path, seed):
    road, chance = frame_road, random.Random(seed)
    checkpoint = str(tmp_path / "checkpoint")
    job = str(Path(__file__).parents[1] / "support" / "frame_job.py")
    command = [sys.executable, job, road.command_line("run")[-1], checkpoint, "1000000"]
    for _ in range(4):
        kill_soon(road, command, QUERY, chance)
    with Sink.open(road.pipeline, spark=road.spark, wait=True) as sink:
        run_job(road.spark, sink, checkpoint, settled_batches(road, QUERY) + 3)
    road.assert_frames(settled_batches(road, QUERY) * ROWS_A_BATCH)


@pytest.mark.parametrize(
    "point", ["parts written", "before registering:2", "after registering", "after inserting"]
)
def test_a_stream_killed_at_any_step_ends_exact(frame_road, tmp_path, point):
    road = frame_road
    road.crash_job(point, tmp_path / "checkpoint", 6)
    with Sink.open(road.pipeline, spark=road.spark, wait=True) as sink:
        run_job(road.spark, sink, str(tmp_path / "checkpoint"), 4)
    road.assert_frames(settled_batches(road, QUERY) * ROWS_A_BATCH)


@pytest.mark.timeout(900)
def test_an_import_killed_at_random_moments_ends_exact_and_finds_what_kafka_brought(make_road, tmp_path):
    road, chance = make_road(batch={"max_rows": 100_000}), random.Random(3)
    road.send(make_event(number) for number in range(500))
    road.run()
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
    command = [*road.command_line("import", str(folder)), "--format", "parquet", "--batch-bytes", "1B"]
    for _ in range(3):
        kill_soon(road, command, job.name, chance)
    assert 0 < settled_batches(road, job.name) < files
    import_files(road.pipeline, job, spark=road.spark, wait=True)
    found = road.client.query(f"SELECT count(), uniqExact(product_id) FROM {road.table}").result_rows
    assert found == [(rows * files, rows * files)]
    counts = road.counts(EpochKind.FRAME)
    assert (counts.read, counts.duplicate) == (rows * files, 500)
    assert not road.findings()
