"""What a snapshot of the catalog costs, by the epochs that a ledger holds: `python benchmarks/snapshots.py`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from oncehouse.ledger.catalog import schema, snapshots
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import LedgerIdentity
from oncehouse.ledger.storage.file_store import FileStore

_EPOCHS = (10, 1_000, 10_000, 50_000)


def _file(prefix: str, path: str) -> dict[str, object]:
    return {
        f"{prefix}_path": path,
        f"{prefix}_bytes": 1,
        f"{prefix}_checksum": "0" * 64,
        f"{prefix}_row": 0,
    }


def fill(catalog: Catalog, number: int) -> None:
    """Epochs of one key file and one part each, five to a batch."""
    counts = dict.fromkeys(schema.COUNTS, 1)
    mine = {"pipeline": "shop", "registered_at": 1.0}
    rows: dict[str, list[dict[str, object]]] = {"epochs": [], "key_files": [], "parts": [], "batches": []}
    for epoch in range(1, number + 1):
        name, own = f"{epoch:010d}-1-0", {**mine, "epoch": epoch}
        rows["epochs"].append({**own, **counts, "kind": "kafka", "token": 1, "started_at": 1.0})
        rows["key_files"].append(
            {**own, "key_file": name, "ordinal": 0, "events": 1, **_file("keys", name), **_file("raw", name)}
        )
        rows["parts"].append(
            {**own, "part": name, "table_name": "t", "key_file": name, "ordinal": 0, "rows_total": 1}
            | {"rows_live": 1, "live_bytes": 1, "shape": "s", "batch_id": f"{epoch // 5:036d}"}
            | {**_file("file", name), "batch_position": 0}
        )
    rows["batches"] = [
        {"pipeline": "shop", "batch_id": f"{at:036d}", "table_name": "t", "status": "IN_CLICKHOUSE"}
        | {"rows_total": 5, "live_bytes": 5, "created_at": 1.0, "sequence": at, "attempts": 1}
        | {"next_attempt_at": 0.0}
        for at in range(number // 5 + 1)
    ]
    with catalog.engine.begin() as connection:
        for table, values in rows.items():
            connection.execute(insert(getattr(schema, table)), values)


def measure(number: int) -> tuple[float, float, int]:
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{folder}/catalog.db", "shop")
        catalog.prepare()
        catalog.adopt(LedgerIdentity(fingerprint="x", buckets=16))
        fill(catalog, number)
        store = FileStore(f"{folder}/files")
        snapshots.write_snapshot(catalog, store)
        begin, worked = time.perf_counter(), time.process_time()
        found = snapshots.write_snapshot(catalog, store)
        seconds, work_seconds = time.perf_counter() - begin, time.process_time() - worked
        catalog.close()
        return seconds, work_seconds, (Path(store.root) / found.path).stat().st_size


def main() -> None:
    print(f"{'epochs':>8} {'milliseconds':>13} {'of processor':>13} {'MB':>7}")
    for number in _EPOCHS:
        seconds, work_seconds, size_bytes = measure(number)
        print(f"{number:>8,} {seconds * 1000:>13.0f} {work_seconds * 1000:>13.0f} {size_bytes / 1e6:>7.1f}")


if __name__ == "__main__":
    main()
