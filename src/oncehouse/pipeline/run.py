"""Running a pipeline: leases, threads and the order in which things start and stop. It decides nothing.

Three stages run side by side in one process: ingest on Spark's callback thread, batching and loading on one
thread a table, retention on its own. The first error that cannot pass ends all of them; a stop lets what has
been started finish and gives the leases back.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse import crash
from oncehouse.errors import LeaseHeldError, OncehouseError, TransientError
from oncehouse.ledger import batches, epochs, leases
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import Batch, BatchStatus, Counts, Lease, Part, Stage
from oncehouse.pipeline.batcher import PARKED_LIMIT, TableFeedback, plan_batches
from oncehouse.pipeline.holder import describe_holder, is_dead
from oncehouse.pipeline.job_errors import naming_own_errors
from oncehouse.pipeline.loader import Verdict, load
from oncehouse.pipeline.prepare import demand_ready, identity_of, open_catalog, read_tables
from oncehouse.pipeline.retention import retain
from oncehouse.pipeline.session import open_session
from oncehouse.pipeline.source import Positions, Topics
from oncehouse.pipeline.stream import Ingest
from oncehouse.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline

_TICK_SECONDS = 0.1
_RETENTION_SECONDS = 60.0
_RATE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    progress: Progress
    parked: int


def keep_quiet(_message: object) -> None:
    """The listener of those who do not want to hear."""


def run_pipeline(
    pipeline: Pipeline,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = keep_quiet,
    say: Callable[[str], None] = keep_quiet,
    jars: Sequence[Path] = (),
    wait: bool = True,
    spark: SparkSession | None = None,
) -> RunResult:
    """Run until `stop` is set; with `once`, until all that is in Kafka now is in ClickHouse.

    A Spark session that is given is used and left running; otherwise one is started and stopped here.

    Raises ConfigurationError before any data moves, FencedError when another process took over, LeaseHeldError
    when one is running and `wait` is off.
    """
    stop = stop or threading.Event()
    catalog = open_catalog(pipeline)
    topics = Topics(pipeline.source.kafka)
    try:
        demand_ready(pipeline, catalog, topics)
        catalog.prepare()
        catalog.adopt(identity_of(pipeline))
        session = spark or open_session(pipeline, jars)
        try:
            run = _Run(pipeline, catalog, topics, session, stop=stop, progress=progress, say=say)
            return run.go(once=once, wait=wait)
        finally:
            if spark is None:
                session.stop()
    finally:
        catalog.close()


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        catalog: Catalog,
        topics: Topics,
        spark: SparkSession,
        *,
        stop: threading.Event,
        progress: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._topics = topics
        self._spark = spark
        self._stop = stop
        self._say = say
        self._drain = threading.Event()
        self._failure: OncehouseError | Exception | None = None
        self._report = _Report(pipeline, catalog, topics, progress)

    def go(self, *, once: bool, wait: bool) -> RunResult:
        held = self._acquire(wait=wait)
        if not held:
            return self._report.result()
        heartbeat = leases.Heartbeat(
            self._catalog, held, lease_seconds=self._pipeline.lease, on_lost=self._fail
        )
        by_stage = {lease.stage: lease for lease in held}
        ingest = self._make_ingest(by_stage[Stage.INGEST])
        threads = [
            self._thread("load", lambda: _Loader(self, by_stage[Stage.LOAD]).run()),
            self._thread("compact", lambda: ingest.keep_compact(self._stop)),
            self._thread("retention", lambda: self._retain(by_stage)),
            self._thread("report", self._keep_reporting),
        ]
        try:
            ingest.run(self._stop, once=once)
        except OncehouseError as error:
            self._fail(error)
        finally:
            self._drain.set()
            threads[0].join()
            self._stop.set()
            for thread in threads[1:]:
                thread.join()
            heartbeat.stop()
            self._release(held)
        if self._failure is not None:
            raise self._failure
        return self._report.result()

    def _make_ingest(self, lease: Lease) -> Ingest:
        return Ingest(
            self._spark,
            self._pipeline,
            self._catalog,
            self._topics,
            lease,
            on_epoch=self._report.add_epoch,
            say=self._say,
        )

    def _acquire(self, *, wait: bool) -> tuple[Lease, ...]:
        """All three leases, or none when the wait was ended."""
        held: list[Lease] = []
        told = False
        holder = describe_holder()
        for stage in Stage:
            while not self._stop.is_set():
                try:
                    held.append(self._take(stage, holder))
                    break
                except LeaseHeldError as error:
                    if not wait:
                        self._release(held)
                        raise
                    if not told:
                        self._say(f"{error} Waiting.")
                        told = True
                    self._stop.wait(1.0)
        if self._stop.is_set():
            self._release(held)
            return ()
        return tuple(held)

    def _take(self, stage: Stage, holder: str) -> Lease:
        for lease in leases.list_leases(self._catalog):
            if lease.stage is stage and is_dead(lease.holder):
                leases.release(self._catalog, lease)
        return leases.acquire(self._catalog, stage, holder=holder, lease_seconds=self._pipeline.lease)

    def _release(self, held: Sequence[Lease]) -> None:
        for lease in held:
            try:
                leases.release(self._catalog, lease)
            except TransientError:
                return  # it runs out by itself

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a thread's edge: whatever it was, the run ends with it
                self._fail(error)

        thread = threading.Thread(target=guarded, name=f"oncehouse-{name}", daemon=True)
        thread.start()
        return thread

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._stop.set()

    def _retain(self, by_stage: dict[Stage, Lease]) -> None:
        while not self._stop.is_set():
            try:
                with naming_own_errors(self._pipeline.pipeline):
                    retain(
                        self._pipeline,
                        self._catalog,
                        token=by_stage[Stage.RETENTION].token,
                        ingest_token=by_stage[Stage.INGEST].token,
                        spark=self._spark,
                    )
            except TransientError as error:
                self._say(str(error))
            self._stop.wait(_RETENTION_SECONDS)

    def _keep_reporting(self) -> None:
        while not self._stop.wait(0.5):
            self._report.tell()


class _Loader:
    """Cuts batches and sends them: at most one insert at a time a table, and no faster than it allows."""

    def __init__(self, run: _Run, lease: Lease) -> None:
        self._run = run
        self._pipeline = run._pipeline  # noqa: SLF001 - two halves of one module
        self._catalog = run._catalog  # noqa: SLF001
        self._token = lease.token
        self._tables = [table.name for table in self._pipeline.tables]
        self._limits = {name: self._pipeline.limits(name) for name in self._tables}
        self._facts = read_tables(self._pipeline)
        self._in_flight: dict[str, Future[Verdict]] = {}
        self._last_cut: dict[str, float] = {}
        self._last_start: dict[str, float] = {}
        self._too_many_parts: dict[str, bool] = {}

    def run(self) -> None:
        stop, drain = self._run._stop, self._run._drain  # noqa: SLF001
        with ThreadPoolExecutor(len(self._tables), thread_name_prefix="oncehouse-load") as pool:
            while not (stop.is_set() and not self._in_flight):
                try:
                    busy = self._step(pool, stopping=stop.is_set(), draining=drain.is_set())
                except TransientError as error:
                    self._run._say(str(error))  # noqa: SLF001
                    busy = True
                if drain.is_set() and not busy:
                    return
                time.sleep(_TICK_SECONDS)

    def _step(self, pool: ThreadPoolExecutor, *, stopping: bool, draining: bool) -> bool:
        """One look at the catalog; says whether anything is left to do."""
        self._collect()
        if stopping:
            return bool(self._in_flight)
        now = self._catalog.now()
        known = batches.list_batches(self._catalog, statuses=(*batches.WAITING, BatchStatus.PARKED))
        parked = Counter(batch.table for batch in known if batch.status is BatchStatus.PARKED)
        # What waits for a table that has left the pipeline file waits until the table comes back.
        waiting = [
            batch for batch in known if batch.status is not BatchStatus.PARKED and batch.table in self._limits
        ]
        parts = [part for part in batches.open_parts(self._catalog) if part.table in self._limits]
        if self._cut(parts, waiting, parked, now, draining=draining):
            waiting = [
                batch for batch in batches.waiting_batches(self._catalog) if batch.table in self._limits
            ]
        for batch in self._due(waiting, now):
            self._last_start[batch.table] = now
            self._in_flight[batch.table] = pool.submit(self._load, batch)
        # A table with too many parked batches gets no further ones until somebody has looked at them.
        open_tables = {part.table for part in parts if parked[part.table] < PARKED_LIMIT}
        return bool(self._in_flight or waiting or open_tables)

    def _cut(
        self,
        parts: Sequence[Part],
        waiting: Sequence[Batch],
        parked: Counter[str],
        now: float,
        *,
        draining: bool,
    ) -> bool:
        feedback = {
            table: TableFeedback(
                waiting=sum(batch.table == table for batch in waiting),
                parked=parked[table],
                last_cut_at=self._last_cut.get(table, float("-inf")),
                too_many_parts=self._too_many_parts.get(table, False),
            )
            for table in {part.table for part in parts}
        }
        planned = plan_batches(parts, limits=self._limits, feedback=feedback, now=now, draining=draining)
        made = [
            batches.NewBatch(batch_id=str(uuid.uuid4()), table=found.table, parts=found.parts)
            for found in planned
        ]
        if not made:
            return False
        crash.reach("before making batches")
        batches.create_batches(self._catalog, self._token, made)
        crash.reach("after making batches")
        for batch in made:
            self._last_cut[batch.table] = now
        return True

    def _due(self, waiting: Sequence[Batch], now: float) -> list[Batch]:
        due: dict[str, Batch] = {}
        for batch in waiting:
            table = batch.table
            if table in self._in_flight or table in due:
                continue
            rested = now - self._last_start.get(table, float("-inf")) >= self._limits[table].min_interval
            if rested and batch.next_attempt_at <= now:
                due[table] = batch
        return list(due.values())

    def _load(self, batch: Batch) -> Verdict:
        spark = self._run._spark  # noqa: SLF001
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "load")
        verdict = load(
            spark,
            self._pipeline,
            self._catalog,
            self._token,
            batch,
            facts=self._facts.get(batch.table),
        )
        if verdict.status is BatchStatus.IN_CLICKHOUSE:
            self._run._report.add_rows(batch.rows)  # noqa: SLF001
        else:
            self._run._say(f"{batch.table}: {verdict.status}: {verdict.detail}")  # noqa: SLF001
        return verdict

    def _collect(self) -> None:
        for table, future in list(self._in_flight.items()):
            if future.done():
                del self._in_flight[table]
                self._too_many_parts[table] = future.result().too_many_parts


class _Report:
    """Counts what has been done since the start, for whoever looks on."""

    def __init__(
        self, pipeline: Pipeline, catalog: Catalog, topics: Topics, listen: Callable[[Progress], None]
    ) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._topics = topics
        self._listen = listen
        self._lock = threading.Lock()
        self._counts = Counts()
        self._rows = 0
        self._recent: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._last = Progress()

    def add_epoch(self, counts: Counts) -> None:
        with self._lock:
            mine = self._counts
            self._counts = Counts(
                read=mine.read + counts.read,
                new=mine.new + counts.new,
                duplicate=mine.duplicate + counts.duplicate,
                dead_letter=mine.dead_letter + counts.dead_letter,
                skipped=mine.skipped + counts.skipped,
                waiting=mine.waiting + counts.waiting,
                conflicts=mine.conflicts + counts.conflicts,
            )
            self._recent.append((time.monotonic(), self._counts.read))
            edge = time.monotonic() - _RATE_SECONDS
            while len(self._recent) > 2 and self._recent[1][0] < edge:
                self._recent.pop(0)

    def add_rows(self, rows: int) -> None:
        with self._lock:
            self._rows += rows

    def tell(self) -> None:
        try:
            self._last = self._look()
        except TransientError:
            return  # shown again when Kafka and the catalog answer
        self._listen(self._last)

    def result(self) -> RunResult:
        self.tell()
        parked = batches.list_batches(self._catalog, statuses=[BatchStatus.PARKED])
        return RunResult(progress=self._last, parked=len(parked))

    def _look(self) -> Progress:
        # A topic that has left the pipeline file may have left Kafka too, and lags behind nothing.
        topics = self._pipeline.source.kafka.topics
        known = epochs.read_positions(self._catalog)
        positions = {place: offset for place, offset in known.items() if place[0] in topics}
        latest = self._topics.latest(positions)
        waiting = batches.waiting_batches(self._catalog)
        parked = batches.list_batches(self._catalog, statuses=[BatchStatus.PARKED])
        with self._lock:
            first, last = self._recent[0], (time.monotonic(), self._counts.read)
            return Progress(
                read=self._counts.read,
                new=self._counts.new,
                duplicate=self._counts.duplicate,
                rejected=self._counts.dead_letter,
                batches_waiting=len(waiting) + len(parked),
                rows_in_clickhouse=self._rows,
                lag=_lag(positions, latest),
                events_per_second=(last[1] - first[1]) / max(last[0] - first[0], 0.001),
            )


def _lag(positions: Positions, latest: Positions) -> int | None:
    """Unknown until the first epoch has said which partitions there are."""
    if not positions:
        return None
    return sum(max(0, latest[place] - offset) for place, offset in positions.items())
