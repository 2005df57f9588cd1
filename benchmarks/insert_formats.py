"""How fast one batch of a million rows enters ClickHouse, by format and by encoding of the batch column.

    python benchmarks/insert_formats.py http://127.0.0.1:8123

Makes and drops a database of its own. Prints the median of five inserts: wall time of encoding and call
together, processor time here and in the server (from its query log, which neighbours disturb less), bytes.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import clickhouse_connect
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oncehouse.clickhouse.insert.repeatable_block import batch_id_array, insert_settings

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 1_000_000
REPEATS = 5
BATCH = uuid.uuid4()
COLUMNS = (
    "project String, event_type LowCardinality(String), product_id UInt64, price Float64, "
    "at DateTime64(3, 'UTC'), payload String, _unique_id FixedString(16), _batch_id UUID"
)


@dataclass(frozen=True, kw_only=True)
class Run:
    query_id: str
    wall_seconds: float
    processor_seconds: float
    size: int


def make_rows() -> pa.Table:
    random = np.random.default_rng(1)
    kinds = np.array(["click", "view", "purchase", "cart"])
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), ROWS, [None, pa.py_buffer(random.bytes(16 * ROWS))]
    )
    return pa.table(
        {
            "project": random.integers(0, 50, ROWS).astype("U"),
            "event_type": kinds[random.integers(0, 4, ROWS)],
            "product_id": random.integers(0, 1 << 40, ROWS).astype(np.uint64),
            "price": random.random(ROWS),
            "at": pa.array(random.integers(1_700_000_000_000, 1_701_000_000_000, ROWS)).cast(
                pa.timestamp("ms", tz="UTC")
            ),
            "payload": np.char.add("some text of the event number ", np.arange(ROWS).astype("U")),
            "_unique_id": ids,
        }
    )


def with_batch(rows: pa.Table, encoding: str) -> pa.Table:
    match encoding:
        case "dictionary of text":
            column = batch_id_array(str(BATCH), ROWS)
        case "16 bytes":
            buffer = pa.py_buffer(BATCH.bytes * ROWS)
            column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), ROWS, [None, buffer])
        case _:
            column = pa.array([str(BATCH)] * ROWS)
    return rows.append_column("_batch_id", column)


def arrow(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="lz4", row_group_size=ROWS)
    return sink.getvalue()


def main(url: str) -> None:
    client = clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False, compress=False)
    database = f"formats_{uuid.uuid4().hex[:8]}"
    client.command(f"CREATE DATABASE {database}")
    try:
        compare(client, database)
    finally:
        client.command(f"DROP DATABASE {database} SYNC")


def compare(client, database: str) -> None:
    table = f"{database}.events"
    client.command(f"CREATE TABLE {table} ({COLUMNS}) ENGINE = MergeTree ORDER BY (project, product_id)")
    cases = make_cases()
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for _ in range(REPEATS):  # case after case in each round, so that neighbours disturb all alike
        for name, (fmt, encode) in cases.items():
            runs[name].append(measure(client, table, fmt, encode))
    for name, measured in runs.items():
        wall = statistics.median(run.wall_seconds for run in measured)
        here = statistics.median(run.processor_seconds for run in measured)
        server = server_seconds(client, [run.query_id for run in measured])
        print(
            f"{name:38s} wall {wall:.2f} s  processor here {here:.2f} s  server {server:.2f} s  "
            f"{measured[0].size / 1e6:.0f} MB"
        )


def make_cases() -> dict[str, tuple[str, Callable[[], bytes]]]:
    rows = make_rows()
    text, raw = with_batch(rows, "dictionary of text"), with_batch(rows, "16 bytes")
    plain, ready = with_batch(rows, "text"), parquet(raw)
    return {
        "ArrowStream, id as dictionary of text": ("ArrowStream", lambda: arrow(text)),
        "ArrowStream, id as 16 bytes": ("ArrowStream", lambda: arrow(raw)),
        "ArrowStream, id as text": ("ArrowStream", lambda: arrow(plain)),
        "ArrowStream, lz4 inside": ("ArrowStream", lambda: arrow(text, "lz4")),
        "Parquet, lz4": ("Parquet", lambda: parquet(raw)),
        "Parquet, lz4, ready bytes": ("Parquet", lambda: ready),
    }


def measure(client, table: str, fmt: str, encode: Callable[[], bytes]) -> Run:
    client.command(f"TRUNCATE TABLE {table}")
    query_id = str(uuid.uuid4())
    settings = insert_settings(query_id) | {
        "input_format_parquet_max_block_size": 1 << 40,
        "query_id": query_id,
    }
    started, processor = time.perf_counter(), time.process_time()
    body = encode()
    client.raw_insert(table, None, body, settings, fmt)
    wall, here = time.perf_counter() - started, time.process_time() - processor
    (found,) = client.query(f"SELECT count(), uniqExact(_batch_id) FROM {table}").result_rows
    assert found == (ROWS, 1), found
    return Run(query_id=query_id, wall_seconds=wall, processor_seconds=here, size=len(body))


def server_seconds(client, queries: list[str]) -> float:
    client.command("SYSTEM FLUSH LOGS")
    rows = client.query(
        "SELECT ProfileEvents['OSCPUVirtualTimeMicroseconds'] / 1e6 FROM system.query_log "
        "WHERE type = 'QueryFinish' AND query_id IN {ids:Array(String)}",
        parameters={"ids": queries},
    ).result_rows
    return statistics.median(row[0] for row in rows)


if __name__ == "__main__":
    main(sys.argv[1])
