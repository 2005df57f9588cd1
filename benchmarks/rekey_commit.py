"""How long the transaction takes that puts another identity rule in place, by the key files of a ledger.

    python benchmarks/rekey_commit.py [--key-files 10000 --key-files 100000]

Reading waits for it, whatever else is left to do. No Spark and no files: a catalog is filled by hand, in SQLite and in
PostgreSQL, with key files that are all prepared. The median of three catalogs counts.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sqlalchemy import create_engine, insert, text

from figures import OUT, Figure, figure, show_and_save
from oncehouse.devstack.stack import Stack
from oncehouse.ledger.catalog import leases, rekey, requests, schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_values
from oncehouse.ledger.models import FileRef, LedgerIdentity, RequestKind, Stage

SIZES = (10_000, 100_000)
_EVENTS = 1_000
_TIMES = 3


def fill(catalog: Catalog, number: int) -> int:
    """Epochs of one key file each, all of them prepared; returns the token."""
    catalog.prepare()
    catalog.adopt(LedgerIdentity(fingerprint="old", buckets=16))
    lease = leases.acquire(catalog, Stage.INGEST, holder="bench", lease_seconds=3600)
    requests.add_request(catalog, RequestKind.REKEY, {"fingerprint": "new", "buckets": 16})
    mine = {"pipeline": catalog.pipeline, "events": _EVENTS}
    held, prepared = [], []
    for epoch in range(1, number + 1):
        name = f"{epoch:010d}-1-r{epoch:012d}-0"
        held.append(
            {**mine, "key_file": name, "epoch": epoch, "ordinal": 0, "registered_at": 1.0}
            | file_values("keys", _file(f"shop/epochs/{name}.keys.arrow"))
            | file_values("raw", _file(f"shop/epochs/{name}.raw.arrow"))
        )
        prepared.append(
            {**mine, "key_file": name, "request": 1}
            | file_values("keys", _file(f"shop/index/rekeyed-1-{epoch:032d}.keys.arrow"))
        )
    with catalog.engine.begin() as connection:
        connection.execute(insert(schema.key_files), held)
        connection.execute(insert(schema.rekeyed_files), prepared)
    return lease.token


def _file(path: str) -> FileRef:
    return FileRef(path=path, size_bytes=1, checksum="0" * 64)


def change(url: str, number: int) -> float:
    """Seconds that reading waits for the catalog."""
    catalog = Catalog(url, "shop")
    try:
        token = fill(catalog, number)
        since = time.perf_counter()
        done = rekey.change_identity(
            catalog, token, LedgerIdentity(fingerprint="new", buckets=16), request=1, rule="{}"
        )
        seconds = time.perf_counter() - since
        if done.events != number * _EVENTS:
            raise SystemExit(f"No figures: the ids of {done.events} events were made anew")
        return seconds
    finally:
        catalog.close()


def on_sqlite(number: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return change(f"sqlite:///{folder}/catalog.db", number)


def on_postgres(server: str, number: int) -> float:
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA rekey_commit"))
    try:
        return change(f"{server}?options=-csearch_path%3Drekey_commit", number)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA rekey_commit CASCADE"))
        engine.dispose()


def measure(sizes: Sequence[int] = SIZES) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-"))
    stack = Stack(folder=folder)
    figures: list[Figure] = []
    try:
        stack.up(["postgres"])
        for number in sizes:
            ways = {
                "sqlite": partial(on_sqlite, number),
                "postgresql": partial(on_postgres, stack.postgres.url, number),
            }
            for name, once in ways.items():
                seconds = statistics.median(once() for _ in range(_TIMES))
                figures.append(figure(f"rekey_commit_{name}_{number}_key_files", seconds, "s"))
    finally:
        stack.down()
        shutil.rmtree(folder)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--key-files", type=int, action="append", help="in the ledger; may be given several times"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    given = parser.parse_args()
    show_and_save(measure(given.key_files or SIZES), out=given.out, length="rekey-commit")
