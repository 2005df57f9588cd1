"""What the load stage sees of its tables, kept as a pace each: the shell around `pace.py`.

Used on the thread of the load stage alone; only `ask` runs where an insert ran. How full a table's partitions are is
asked after an insert that was taken; a server that does not answer that is no reason to stop.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert.part_pressure import Crowding
from oncehouse.errors import OncehouseError
from oncehouse.ledger.models import Batch, BatchStatus, Part
from oncehouse.pipeline.load.insert_rate import (
    SLOW_SHARE,
    Ended,
    Pace,
    Rhythm,
    decide_rhythm,
    see_arrivals,
    see_insert,
)

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import BatchLimits
    from oncehouse.pipeline.load.insert_task import Verdict


class TablePaces:
    def __init__(self, client: Client, limits: Mapping[str, BatchLimits], *, insert_timeout: float) -> None:
        self._limits = limits
        self._slow_seconds = insert_timeout * SLOW_SHARE
        self._paces = {table: Pace() for table in limits}
        self._crowding = {table: Crowding(client, table) for table in limits}
        self._open: dict[str, set[str]] = {}

    def look(self, parts: Iterable[Part]) -> None:
        """Notice what has come since the last look at the open parts."""
        rows = dict.fromkeys(self._limits, 0)
        known, self._open = self._open, {table: set() for table in self._limits}
        for part in parts:
            self._open[part.table].add(part.part)
            if part.part not in known.get(part.table, ()):
                rows[part.table] += part.live_rows
        now = time.monotonic()
        for table, pace in self._paces.items():
            self._paces[table] = see_arrivals(pace, rows[table], now)

    def ask(self, table: str, verdict: Verdict) -> float:
        """The share of parts after an insert that was taken."""
        if verdict.status is BatchStatus.IN_CLICKHOUSE and self._limits[table].sizes == "adaptive":
            with suppress(OncehouseError):
                return self._crowding[table].read_share()
        return 0.0

    def hear(self, batch: Batch, verdict: Verdict, parts_share: float) -> None:
        """Take an insert's end into account; a batch that was parked says nothing of the server."""
        if verdict.status is BatchStatus.PARKED:
            return
        seen = Ended(
            answer=verdict.answer,
            rows=batch.rows,
            seconds=verdict.seconds,
            parts_share=parts_share,
            slow=verdict.seconds >= self._slow_seconds,
        )
        self._paces[batch.table] = see_insert(self._paces[batch.table], seen, self._limits[batch.table])

    def rhythm(self, table: str) -> Rhythm:
        return decide_rhythm(self._paces[table], self._limits[table])
