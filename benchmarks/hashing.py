"""How fast ids and payload hashes can be had, by every way that was considered.

    python benchmarks/hashing.py [rows]

All on one thread. Ways whose package is not installed are left out; the choice and its reasons stand in
docs/decisions/0003-hashing.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is first imported

import numpy as np
import pyarrow as pa

from oncehouse.common.hashing import xxh3_hashes
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.dedup.unique_id import encode_identity, unique_ids
from oncehouse.pipeline.formats.base import HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable

RULE = Rule(fields=(("project",), ("event_type",), ("product_id",)))
ROUNDS = 4


def measure(name: str, rows: int, work: Callable[[], object]) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    print(f"{name:44} {rows / best / 1e6:8.2f} M/s")


def measure_sha256(encoded: pa.Array) -> None:
    rows = len(encoded)
    sha256 = hashlib.sha256
    measure(
        "SHA-256, hashlib in a loop",
        rows,
        lambda: b"".join([sha256(e).digest() for e in encoded.to_pylist()]),
    )
    if importlib.util.find_spec("duckdb"):
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET threads = 1")
        relation = connection.from_arrow(pa.table({"x": encoded.cast(pa.string())}))
        measure("SHA-256, DuckDB, as text", rows, lambda: relation.project("sha256(x)").to_arrow_table())
        measure(
            "SHA-256, DuckDB, as bytes", rows, lambda: relation.project("unhex(sha256(x))").to_arrow_table()
        )
    import polars as pl
    import polars_hash

    frame = pl.DataFrame({"x": pl.from_arrow(encoded)})
    measure("SHA-256, polars-hash", rows, lambda: frame.select(polars_hash.col("x").chash.sha2_256()))


def measure_payload(values: pa.Array) -> None:
    rows = len(values)
    if importlib.util.find_spec("xxhash"):
        xxhash: Any = importlib.import_module("xxhash")
        digest = xxhash.xxh3_64_intdigest
        measure(
            "XXH3, xxhash in a loop",
            rows,
            lambda: np.fromiter(map(digest, values.to_pylist()), np.uint64, rows),
        )
    measure("XXH3, polars-hash (xxh3_hashes)", rows, lambda: xxh3_hashes(values))


def measure_rules(batch: pa.RecordBatch) -> None:
    """What a rule costs that takes its values from elsewhere than plain fields."""
    rows = batch.num_rows
    nested = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
    inside = pa.record_batch({"event": nested})
    headers = [[{"key": "trace", "value": b"-"}, {"key": "id", "value": b"%d" % row}] for row in range(rows)]
    records = pa.record_batch(
        {
            "key": pa.array([b"%d" % row for row in range(rows)], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    paths = Rule(fields=tuple(("event", name) for name in batch.schema.names))
    hybrid = Rule(fields=RULE.fields, key=True)
    measure("unique_ids, three fields inside a Tuple", rows, lambda: unique_ids(paths, inside))
    measure("unique_ids, three fields and the key", rows, lambda: unique_ids(hybrid, batch, records))
    measure("unique_ids, one header of two", rows, lambda: unique_ids(Rule(headers=("id",)), batch, records))


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    batch = pa.record_batch(
        {
            "project": [f"shop-{number % 20}" for number in range(rows)],
            "event_type": ["click"] * rows,
            "product_id": pa.array(range(rows), pa.int64()),
        }
    )
    encoded = encode_identity(RULE, batch)
    measure_sha256(encoded)
    measure("encoding of three fields", rows, lambda: encode_identity(RULE, batch))
    measure("unique_ids, encoding and hash", rows, lambda: unique_ids(RULE, batch))
    measure_rules(batch)
    payload = pa.array([b"%213d" % number for number in range(rows)], pa.binary())
    measure_payload(payload)


if __name__ == "__main__":
    main()
