"""Running a pipeline: leases, threads and the order in which things start and stop. It decides nothing.

Three stages run side by side in one process: ingest on Spark's callback thread, batching and loading on one
thread a table, retention on its own. The first error that cannot pass ends all of them; a stop lets what has
been started finish and gives the leases back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import FencedError, LeaseHeldError, OncehouseError, TransientError
from oncehouse.ledger import leases
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import Lease, Stage
from oncehouse.ledger.schemas import add_schemas
from oncehouse.pipeline.adopting import adopt
from oncehouse.pipeline.holder import describe_holder, is_dead
from oncehouse.pipeline.job_errors import naming_own_errors
from oncehouse.pipeline.loading import Loading
from oncehouse.pipeline.prepare import demand_ready, open_catalog
from oncehouse.pipeline.report import Report, RunResult
from oncehouse.pipeline.retention import retain
from oncehouse.pipeline.schemas import declared_schemas
from oncehouse.pipeline.session import close_session, has_ended, name_lost_java, open_session
from oncehouse.pipeline.source import Topics
from oncehouse.pipeline.stream import Ingest
from oncehouse.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline

_RETENTION_SECONDS = 60.0
# Packing and sweeping look at many files and names; the window is looked at each round.
_ROUNDS_A_SWEEP = 10


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
        adopt(pipeline, catalog)
        add_schemas(catalog, declared_schemas(pipeline))
        run = _Run(pipeline, catalog, topics, spark, jars, stop=stop, progress=progress, say=say)
        return run.go(once=once, wait=wait)
    finally:
        catalog.close()


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        catalog: Catalog,
        topics: Topics,
        spark: SparkSession | None,
        jars: Sequence[Path],
        *,
        stop: threading.Event,
        progress: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._topics = topics
        self._given_spark = spark
        self._jars = jars
        self._stop = stop
        self._say = say
        self._drain = threading.Event()
        self._failure: BaseException | None = None
        self._failed_while_ending = False
        self._lost_java = False
        # Held by whoever replaces or drops files of the ledger.
        self._filing = threading.Lock()
        self._report = Report(catalog, topics, progress)

    def go(self, *, once: bool, wait: bool) -> RunResult:
        held = self._acquire(wait=wait)
        if not held:
            return self._report.result()
        heartbeat = leases.Heartbeat(
            self._catalog, held, lease_seconds=self._pipeline.lease, on_lost=self._fail
        )
        try:
            # Started only now: whoever waits for a lease, or is refused one, needs no Spark.
            self._spark = self._given_spark or open_session(self._pipeline, self._jars)
            try:
                self._work({lease.stage: lease for lease in held}, once=once)
            finally:
                self._lost_java = has_ended(self._spark, self._failure)
                if self._given_spark is None:
                    close_session(self._spark)
        finally:
            heartbeat.stop()
            self._release(held)
        self._raise_failure()
        return self._report.result()

    def _work(self, by_stage: dict[Stage, Lease], *, once: bool) -> None:
        ingest = self._make_ingest(by_stage[Stage.INGEST])
        threads = [
            self._thread(
                "load", lambda: self._make_loading(by_stage[Stage.LOAD]).run(self._stop, self._drain)
            ),
            self._thread("compact", lambda: ingest.keep_compact(self._stop)),
            self._thread("retention", lambda: self._retain(by_stage)),
            self._thread("report", self._keep_reporting),
        ]
        try:
            ingest.run(self._stop, once=once)
        except BaseException as error:  # noqa: BLE001 - raised again below, when all threads have ended
            self._fail(error)
        finally:
            self._drain.set()
            threads[0].join()
            self._stop.set()
            for thread in threads[1:]:
                thread.join()

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        lasting = isinstance(self._failure, OncehouseError) and not isinstance(self._failure, TransientError)
        if lasting or not self._lost_java:
            raise self._failure
        # A supervisor may end the whole group of processes: Spark then goes while we put things away.
        if not self._failed_while_ending:
            raise name_lost_java(self._pipeline) from self._failure

    def _make_loading(self, lease: Lease) -> Loading:
        return Loading(
            self._spark,
            self._pipeline,
            self._catalog,
            lease,
            on_loaded=self._report.add_rows,
            say=self._say,
        )

    def _make_ingest(self, lease: Lease) -> Ingest:
        return Ingest(
            self._spark,
            self._pipeline,
            self._catalog,
            self._topics,
            lease,
            filing=self._filing,
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

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._failed_while_ending = self._stop.is_set()
        self._stop.set()

    def _retain(self, by_stage: dict[Stage, Lease]) -> None:
        rounds = 0
        while not self._stop.is_set():
            try:
                with self._filing, naming_own_errors(self._pipeline.pipeline):
                    retain(
                        self._pipeline,
                        self._catalog,
                        token=by_stage[Stage.RETENTION].token,
                        ingest_token=by_stage[Stage.INGEST].token,
                        spark=self._spark,
                        sweeping=rounds % _ROUNDS_A_SWEEP == 0,
                    )
            except FencedError:
                raise
            except OncehouseError as error:
                # Damage among old files must not keep new events out; it is named here and by `verify`.
                self._say(str(error))
            rounds += 1
            self._stop.wait(_RETENTION_SECONDS)

    def _keep_reporting(self) -> None:
        while not self._stop.wait(0.5):
            self._report.tell()
