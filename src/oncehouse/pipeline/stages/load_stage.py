"""The load stage: cuts batches and sends them, at most one insert at a time a table and no faster than it allows.

It reads the catalog a few times a second and decides by the pure `plan_batches`; each insert runs on a thread
of its own as a Spark job. While ClickHouse does not answer no small batch is cut, so that what waits goes out in
large ones afterwards. A stop lets what has been started finish, a drain goes on until nothing is left.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.common import failpoints, structured_logging
from oncehouse.common.tracing import add_attributes, span
from oncehouse.errors import OncehouseError, TransientError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import LeasePauses
from oncehouse.ledger.models import BatchStatus, Lease, LedgerBatch, Part
from oncehouse.pipeline.checks.preflight import read_tables, require_tables
from oncehouse.pipeline.load.batch_planner import PARKED_LIMIT, PlannedBatch, TableFeedback, plan_batches
from oncehouse.pipeline.load.insert_rate import TableRates
from oncehouse.pipeline.load.insert_task import AttemptResult, load
from oncehouse.pipeline.stages.server_watch import ServerWatch, WatchedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

_log = logging.getLogger("oncehouse.pipeline")

_TICK_SECONDS = 0.1
_AWAY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """An attempt that has ended."""

    result: AttemptResult
    inserting_at: float
    """When the insert itself began, on this process's clock; rather later than earlier."""
    parts_share: float
    """How full the table is after it."""


class LoadStage:
    """Runs on the thread that calls `run`."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        catalog: Catalog,
        lease: Lease,
        *,
        on_loaded: Callable[[int], None],
        say: Callable[[str], None],
        tables_unseen: bool = False,
    ) -> None:
        """`tables_unseen`: ClickHouse was down at the start, so the tables have not been checked yet."""
        self._spark = spark
        self._pipeline = pipeline
        self._catalog = catalog
        self._token = lease.token
        self._on_loaded = on_loaded
        self._say = say
        self._tables_unseen = tables_unseen
        self._tables = [table.name for table in self._pipeline.tables]
        self._limits = {name: self._pipeline.limits(name) for name in self._tables}
        self._facts: dict[str, TableFacts] = {}
        self._client = connect(pipeline.clickhouse)
        self._server = ServerWatch(
            WatchedServer(
                name=f"ClickHouse at {self._client.address}",
                find_trouble=self._client.find_trouble,
                meanwhile="What is read waits in the ledger, and is inserted in large batches when it is back.",
            ),
            LeasePauses(catalog, lease),
            say=say,
        )
        self._in_flight: dict[str, tuple[LedgerBatch, Future[_Ended]]] = {}
        self._last_cut: dict[str, float] = {}
        self._last_start: dict[str, float] = {}
        self._rates = TableRates(
            self._client, self._limits, insert_timeout=pipeline.clickhouse.insert_timeout
        )

    def run(self, stop: threading.Event, drain: threading.Event) -> None:
        """Until `stop` is set, or until `drain` is set and everything that can be loaded is loaded."""
        reported = ""
        with (
            self._server.watching(),
            ThreadPoolExecutor(len(self._tables), thread_name_prefix="oncehouse-load") as pool,
        ):
            while not (stop.is_set() and not self._in_flight):
                try:
                    busy = self._step(pool, stopping=stop.is_set(), draining=drain.is_set())
                    reported = ""
                except TransientError as error:
                    if str(error) != reported:
                        reported = str(error)
                        self._say(reported)
                    busy = True
                    time.sleep(_AWAY_SECONDS)
                if drain.is_set() and not busy:
                    return
                time.sleep(_TICK_SECONDS)

    def _step(self, pool: ThreadPoolExecutor, *, stopping: bool, draining: bool) -> bool:
        """Read the catalog once and act; returns whether anything is left to do."""
        self._collect()
        if stopping:
            return bool(self._in_flight)
        if self._tables_unseen:
            if self._server.is_away():
                return True
            require_tables(self._pipeline, self._catalog)
            self._tables_unseen = False
        now = self._catalog.now()
        known = batches.list_batches(self._catalog, statuses=(*batches.WAITING, BatchStatus.PARKED))
        parked = Counter(batch.table for batch in known if batch.status is BatchStatus.PARKED)
        # What waits for a table that has left the pipeline file waits until the table comes back.
        waiting = [
            batch for batch in known if batch.status is not BatchStatus.PARKED and batch.table in self._limits
        ]
        parts = [part for part in batches.open_parts(self._catalog) if part.table in self._limits]
        self._rates.add_open_parts(parts)
        if self._cut(parts, waiting, parked, now, draining=draining):
            waiting = [
                batch for batch in batches.waiting_batches(self._catalog) if batch.table in self._limits
            ]
        for batch in self._due(waiting, now):
            self._last_start[batch.table] = time.monotonic()
            self._in_flight[batch.table] = batch, pool.submit(self._load, batch)
        # A table with too many parked batches gets no further ones until an operator has acted.
        open_tables = {part.table for part in parts if parked[part.table] < PARKED_LIMIT}
        return bool(self._in_flight or waiting or open_tables)

    def _cut(
        self,
        parts: Sequence[Part],
        waiting: Sequence[LedgerBatch],
        parked: Counter[str],
        now: float,
        *,
        draining: bool,
    ) -> bool:
        feedback = {
            table: TableFeedback(
                waiting=sum(batch.table == table for batch in waiting),
                parked=parked[table],
                seconds_since_cut=self._seconds_since(self._last_cut, table),
                timing=self._rates.timing(table),
            )
            for table in {part.table for part in parts}
        }
        planned = plan_batches(parts, limits=self._limits, feedback=feedback, now=now, draining=draining)
        made = [
            batches.NewBatch(batch_id=str(uuid.uuid4()), table=found.table, parts=found.parts)
            for found in planned
            if self._may_cut(found)
        ]
        if not made:
            return False
        failpoints.reach("before making batches")
        batches.create_batches(self._catalog, self._token, made)
        failpoints.reach("after making batches")
        for batch in made:
            self._last_cut[batch.table] = time.monotonic()
        return True

    def _may_cut(self, planned: PlannedBatch) -> bool:
        """A small batch only for a server that answers: once it is cut it cannot grow any more."""
        rows = sum(part.live_rows for part in planned.parts)
        return rows >= self._limits[planned.table].min_rows or not self._server.is_away()

    def _seconds_since(self, times: Mapping[str, float], table: str) -> float:
        """On this process's own clock: the catalog's may be set back."""
        return time.monotonic() - times.get(table, float("-inf"))

    def _due(self, waiting: Sequence[LedgerBatch], now: float) -> list[LedgerBatch]:
        due: dict[str, LedgerBatch] = {}
        for batch in waiting:
            table = batch.table
            if table in self._in_flight or table in due:
                continue
            rested = self._seconds_since(self._last_start, table) >= self._limits[table].min_interval
            if rested and is_due(batch.next_attempt_at, now, longest_seconds=self._pipeline.retry.longest):
                due[table] = batch
        return list(due.values())

    def _load(self, batch: LedgerBatch) -> _Ended:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "load")
        about = {"batch": batch.batch_id, "table": batch.table}
        with (
            structured_logging.bound(**about),
            span("batch", pipeline=self._pipeline.pipeline, **about, rows=batch.rows) as whole,
        ):
            result = self._send(batch)
            add_attributes(whole, status=result.status)
            return _Ended(
                result=result,
                inserting_at=time.monotonic() - result.seconds,
                parts_share=self._rates.read_parts_share(batch.table, result),
            )

    def _send(self, batch: LedgerBatch) -> AttemptResult:
        started = time.monotonic()
        result = load(
            self._spark,
            self._pipeline,
            self._catalog,
            self._token,
            batch,
            facts=self._facts_for(batch),
        )
        if result.status is BatchStatus.IN_CLICKHOUSE:
            self._on_loaded(batch.rows)
            seconds = round(time.monotonic() - started, 3)
            structured_logging.write(
                _log,
                logging.INFO,
                "batch loaded",
                rows=batch.rows,
                attempt=batch.attempts + 1,
                seconds=seconds,
            )
        else:
            self._say(f"{batch.table}: {result.status}: {result.detail}")
        return result

    def _collect(self) -> None:
        for table, (batch, future) in list(self._in_flight.items()):
            if future.done():
                del self._in_flight[table]
                ended = future.result()
                self._rates.add_insert(batch, ended.result, ended.parts_share)
                # A task begins its insert a moment after it was started. Two inserts must not come closer to each
                # other than was asked, so the interval is counted from the insert itself, and no batch is cut before
                # it could be sent.
                self._last_start[table] = max(self._last_start[table], ended.inserting_at)
                self._last_cut[table] = max(self._last_cut.get(table, 0.0), ended.inserting_at)

    def _facts_for(self, batch: LedgerBatch) -> TableFacts | None:
        """The table's facts; read again before a retry, because the table may have changed."""
        if batch.attempts or batch.table not in self._facts:
            with suppress(OncehouseError):  # the insert itself will say what is wrong
                self._facts = read_tables(self._pipeline)
        return self._facts.get(batch.table)


def is_due(next_attempt_at: float, now: float, *, longest_seconds: float) -> bool:
    """Whether a batch has waited long enough; no wait is longer than this, so the catalog's clock was set back."""
    return next_attempt_at <= now or next_attempt_at > now + longest_seconds
