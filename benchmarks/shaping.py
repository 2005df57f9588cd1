"""What shaping costs, against decoding the same events in the same run; and the engines that could do it.

    python benchmarks/shaping.py [events]

Events are those of decode.py. Times are processor time of this process, all threads together, a million events,
best of several rounds. Polars and DataFusion are given the same five expressions; DataFusion is measured only where
it is installed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

import decode
from oncehouse.config.pipeline import Pipeline
from oncehouse.expressions.duckdb_engine import open_engine
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.transform import lookup_join
from oncehouse.pipeline.transform.plan_builder import plan_transform
from oncehouse.pipeline.transform.transformer import Transformer

EXPRESSIONS = {
    "day": ("Date", "(created_at + INTERVAL {number} HOUR)::DATE"),
    "gross": ("Decimal(21, 4)", "price * 1.{number:02}"),
    "host": ("String", "split_part(url, '/', 3) || {number}"),
    "kind": ("String", "upper(event_type) || {number}"),
    "shard": ("UInt8", "product_id % (16 + {number})"),
}
# The same in words that all three engines understand.
COMMON = {
    "day": "CAST(created_at AS DATE)",
    "gross": "price * 1.19",
    "shop": "substr(project, 6)",
    "kind": "upper(event_type)",
    "shard": "product_id % 16",
}
FUNCTION = """
import pyarrow.compute as pc

def enrich(events):
    return events.append_column("length", pc.utf8_length(events["url"]))
"""


def make_pipeline(folder: Path, **transform) -> Pipeline:
    return Pipeline(
        pipeline="bench",
        source={
            "kafka": {"bootstrap_servers": "localhost:9092", "topics": ["events"]},
            "fields": decode.FIELDS,
        },
        identity={"fields": ["product_id"]},
        transform=transform,
        tables=[{"name": "events"}],
        clickhouse={"url": "http://localhost:8123"},
        ledger={"catalog": "sqlite:///catalog.db", "files": str(folder)},
    )


def seconds_a_million(work: Callable[[pa.RecordBatch], object], blocks: list[pa.RecordBatch]) -> float:
    best = float("inf")
    for _ in range(decode.ROUNDS):
        start = time.process_time()
        for block in blocks:
            work(block)
        best = min(best, time.process_time() - start)
    return best * 1_000_000 / sum(block.num_rows for block in blocks)


def make_transform(folder: Path, **transform) -> Callable[[pa.RecordBatch], object]:
    plan = plan_transform(make_pipeline(folder, **transform), token=1)
    assert plan is not None
    return Transformer(plan, FileStore(str(folder))).transform


def columns(count: int) -> dict[str, dict[str, str]]:
    kinds = list(EXPRESSIONS.items())
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    return {
        # No two alike, or the engine would compute them once.
        f"{name}_{number}": {"type": type_, "sql": sql.format(number=number)}
        for number, (name, (type_, sql)) in enumerate(chosen)
    }


def make_lookup(folder: Path, rows: int) -> dict[str, object]:
    file = folder / f"products-{rows}.csv"
    lines = (f"{number * 3},name of {number}" for number in range(rows))
    file.write_text("product_id,name\n" + "\n".join(lines) + "\n")
    return {
        "lookups": {"products": {"file": str(file), "key": "product_id", "columns": {"name": "String"}}},
        "columns": {"name": {"type": "Nullable(String)", "sql": "products.name"}},
    }


def list_cases(folder: Path) -> dict[str, dict[str, object]]:
    (folder / "enrich.py").write_text(FUNCTION)
    return {
        "1 expression": {"columns": columns(1)},
        "5 expressions": {"columns": columns(5)},
        "20 expressions": {"columns": columns(20)},
        "1 name alone": {"columns": {"same": {"type": "String", "sql": "url"}}},
        "where (two thirds stay)": {"where": "event_type <> 'view'"},
        "look-up of 1,000 rows": make_lookup(folder, 1_000),
        "look-up of 100,000 rows": make_lookup(folder, 100_000),
        "a function": {
            "columns": {"length": {"type": "UInt32"}},
            "function": {"file": str(folder / "enrich.py"), "name": "enrich"},
        },
        "1 expression, 1 in 1,000 fails": {
            "columns": {"odd": {"type": "Int64", "sql": "1 // (product_id % 1000)"}}
        },
    }


def list_engines() -> dict[str, Callable[[pa.RecordBatch], object]]:
    query = "SELECT " + ", ".join(f"{sql} AS {name}" for name, sql in COMMON.items()) + " FROM block"
    duck = open_engine()

    def run_duckdb(block: pa.RecordBatch) -> object:
        duck.register("block", pa.Table.from_batches([block]))
        return duck.sql(query).to_arrow_table()

    def run_polars(block: pa.RecordBatch) -> object:
        return pl.SQLContext(block=pl.from_arrow(block)).execute(query, eager=True).to_arrow()

    engines: dict[str, Callable[[pa.RecordBatch], object]] = {"DuckDB": run_duckdb, "Polars SQL": run_polars}
    try:
        from datafusion import SessionConfig, SessionContext
    except ImportError:
        return engines
    context = SessionContext(SessionConfig().with_target_partitions(1))

    def run_datafusion(block: pa.RecordBatch) -> object:
        context.register_record_batches("block", [[block]])
        table = context.sql(query).to_arrow_table()
        context.deregister_table("block")
        return table

    return engines | {"DataFusion": run_datafusion}


def find_keys(rows: int, kind: pa.DataType, small_rows: int) -> float:
    """Milliseconds to find the keys of a block in a look-up; `small_rows` chooses the way."""
    keys = pa.array(np.random.default_rng(0).permutation(rows)).cast(kind)
    asked = pa.array(np.random.default_rng(1).integers(0, rows, decode.BLOCK)).cast(kind)
    kept, lookup_join.SMALL_ROWS = lookup_join.SMALL_ROWS, small_rows
    try:
        joined = lookup_join.LoadedLookup(pa.table({lookup_join.KEY: keys}))
    finally:
        lookup_join.SMALL_ROWS = kept
    best = float("inf")
    for _ in range(2 * decode.ROUNDS):
        start = time.process_time()
        joined.find(asked)
        best = min(best, time.process_time() - start)
    return best * 1000


def show_keys() -> None:
    for rows in (10_000, 100_000, 200_000, 1_000_000):
        for kind in (pa.int64(), pa.string()):
            by_arrow, sorted_ = find_keys(rows, kind, rows), find_keys(rows, kind, 0)
            print(
                f"{f'{rows:,} keys of {kind}':36} Arrow {by_arrow:6.1f} ms a block  sorted {sorted_:6.1f} ms a block"
            )


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    rng = random.Random(1)
    messages = decode.encode([decode.make_event(number, rng) for number in range(events)])
    decoder = decode.make_decoder(decode.FIELDS)
    raw = [
        pa.record_batch([pa.array(messages[at : at + decode.BLOCK], pa.binary())], names=["value"])
        for at in range(0, events, decode.BLOCK)
    ]
    plain = seconds_a_million(lambda block: decoder.decode(block.column("value")), raw)
    blocks = [decoder.decode(block.column("value")).rows for block in raw]
    print(f"{'decoding':36} {plain:6.2f} s a million")
    with tempfile.TemporaryDirectory() as folder:
        for name, case in list_cases(Path(folder)).items():
            seconds = seconds_a_million(make_transform(Path(folder), **case), blocks)
            print(f"{name:36} {seconds:6.2f} s a million  {seconds / plain:5.2f} of decoding")
    for name, run in list_engines().items():
        print(f"{'five expressions, ' + name:36} {seconds_a_million(run, blocks):6.2f} s a million")
    show_keys()


if __name__ == "__main__":
    main()
