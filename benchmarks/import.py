"""An import of many rows, killed half-way and started again, over what Kafka has brought already.

`python benchmarks/import.py [--rows 10000000]` prints rows a second and what is in ClickHouse in the end; it ends with
an error unless every row is there once and the overlap with Kafka is counted as duplicates.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pyarrow.parquet as pq

from demo_traffic import make_columns
from measure import create_table, fill_topic, make_pipeline, open_place, open_spark, write_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog.epochs import total_counts
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, FileFormat
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.external.file_import import import_files, make_job
from oncehouse.pipeline.run import run_pipeline
from traffic import Kind

ROWS_A_FILE = 500_000
BATCH_BYTES = 64 << 20


def measure(rows: int, overlap: int) -> dict[str, float]:
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", file=sys.stderr, flush=True)

    with ExitStack() as at_end:
        place = at_end.enter_context(open_place(say))
        pipeline = make_pipeline(place, fill_topic(place, "archive", overlap, Kind(duplicates=0.0)))
        create_table(place, pipeline)
        folder = place.folder / "files"
        folder.mkdir()
        for first in range(0, rows, ROWS_A_FILE):
            serials = np.arange(first, min(first + ROWS_A_FILE, rows), dtype=np.int64)
            pq.write_table(make_columns(serials), folder / f"{first:012d}.parquet", row_group_size=100_000)
        say(f"{rows} rows are in files, {overlap} of them in Kafka too")
        job = make_job(str(folder), FileFormat.PARQUET, batch_bytes=BATCH_BYTES)
        catalog = open_catalog(pipeline)
        at_end.callback(catalog.close)
        spark = at_end.enter_context(open_spark(pipeline))
        run_pipeline(pipeline, once=True, spark=spark)
        say("what is in Kafka is in ClickHouse; importing, to be killed half-way")
        killed_at = kill_half_way(pipeline, job.name, place.folder, folder, catalog, rows)
        say(f"killed after {killed_at} rows; importing again")
        again = time.monotonic()
        import_files(pipeline, job, spark=spark, wait=True)
        seconds = time.monotonic() - again
        counts = total_counts(catalog, kind=EpochKind.FRAME)
        ((found, unique),) = place.client.query("SELECT count(), uniqExact(product_id) FROM archive")
    figures = {
        "rows": rows,
        "settled_before_the_kill": killed_at,
        "rows_per_s_after_it": round((rows - killed_at) / seconds),
        "rows_in_clickhouse": found,
        "different_rows": unique,
        "duplicates_of_kafka": counts.duplicate,
    }
    if not found == unique == rows or counts.duplicate != overlap or counts.read != rows:
        raise SystemExit(f"not exact: {figures}")
    return figures


def kill_half_way(pipeline: Pipeline, name: str, home, folder, catalog, rows: int) -> int:
    """Import in a process of its own until half of the rows are settled, then kill it."""
    file = home / "pipeline.yaml"
    write_pipeline(pipeline, file)
    starter = "from oncehouse.cli.app import main; main()"
    command = [sys.executable, "-c", starter, "import", str(folder), str(file), "--format", "parquet"]
    process = subprocess.Popen([*command, "--batch-bytes", str(BATCH_BYTES) + "B"], stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None and total_counts(catalog, kind=EpochKind.FRAME).read < rows // 2:
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert name in list_settled(catalog), "nothing was settled before the kill"
    return total_counts(catalog, kind=EpochKind.FRAME).read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--overlap", type=int, default=500_000)
    asked = parser.parse_args()
    for name, value in measure(asked.rows, asked.overlap).items():
        print(f"{name:28} {value:>14,}")


if __name__ == "__main__":
    main()
