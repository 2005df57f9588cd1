"""How far the pipeline has come, as somebody sees it who looks on: from the ledger's catalog and from ClickHouse.

Looks on a thread of its own, because ClickHouse is away at times; what was seen last stays until something newer
is seen. Kafka keeps a little longer what was settled, and no longer.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse, Pipeline
from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog import batches, epochs, leases, schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Stage
from oncehouse.pipeline.checks.preflight import open_catalog
from soak_oracle import TABLE
from soak_report import LedgerSize
from soak_traffic import Cleaning

_POLL_SECONDS = 0.5
_SIZE_SECONDS = 20.0
_CLEAN_SECONDS = 20.0
_RECENT_EPOCHS = 200


@dataclass(frozen=True, kw_only=True)
class Seen:
    settled: int = 0
    """Records that the ledger has read."""
    rows: int = 0
    """Rows in ClickHouse."""
    epochs: int = 0
    token: int = 0
    """Of the ingest lease."""
    epochs_of_token: int = 0
    waiting: int = 0
    """Batches and parts that are not in ClickHouse yet."""


class Observer:
    def __init__(self, pipeline: Pipeline, url: str, folder: Path, started: float) -> None:
        self.seen = Seen()
        self.sizes: list[LedgerSize] = []
        self.most_bytes = 0
        self.catalog: Catalog = open_catalog(pipeline)
        self._client = connect(ClickHouse(url=url, connect_timeout=2.0, insert_timeout=20.0))
        self._cleaning = Cleaning(pipeline.source.kafka.bootstrap_servers)
        self._folder = folder
        self._ledger = Path(pipeline.ledger.files)
        self._started = started
        self._sized_at = self._cleaned_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.catalog.close()

    def _work(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                self._poll()
            except (OncehouseError, OSError):
                continue  # away for a moment: it was killed, most likely by us

    def _poll(self) -> None:
        if not self.catalog.exists():
            return
        rows = self._count_rows()
        token = max(
            (one.token for one in leases.list_leases(self.catalog) if one.stage is Stage.INGEST), default=0
        )
        recent = epochs.list_epochs(self.catalog, limit=_RECENT_EPOCHS)
        waiting = len(batches.waiting_batches(self.catalog)) + len(batches.open_parts(self.catalog))
        self.seen = Seen(
            settled=epochs.total_counts(self.catalog).read,
            rows=rows,
            epochs=recent[0].epoch if recent else 0,
            token=token,
            epochs_of_token=sum(epoch.token == token for epoch in recent),
            waiting=waiting,
        )
        now = time.monotonic()
        if now - self._sized_at >= _SIZE_SECONDS:
            self._sized_at = now
            self.sizes.append(self._measure())
        if now - self._cleaned_at >= _CLEAN_SECONDS:
            self._cleaned_at = now
            self._cleaning.clean(epochs.read_positions(self.catalog))

    def _count_rows(self) -> int:
        try:
            ((rows,),) = self._client.query(f"SELECT count() FROM {TABLE}")
        except OncehouseError:
            return self.seen.rows
        return int(rows)

    def _measure(self) -> LedgerSize:
        with self.catalog.read() as connection:
            rows = sum(
                int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for table in schema.metadata.sorted_tables
            )
        files = sum(len(names) for _, _, names in os.walk(self._ledger))
        self.most_bytes = max(self.most_bytes, _bytes_below(self._folder))
        return LedgerSize(
            seconds=time.monotonic() - self._started,
            catalog_rows=rows,
            ledger_files=files,
            epochs=self.seen.epochs,
        )


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH116, PTH118 - many files
            except OSError:
                continue  # gone since it was listed
    return total
