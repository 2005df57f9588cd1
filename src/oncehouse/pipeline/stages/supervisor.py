"""The stages of a pipeline that this process runs: leases, threads and the order in which they start and stop.

It decides nothing. Ingest works on the thread that calls `go`, batching and loading on one thread a table, merges
and retention on their own. The first error that cannot pass ends all of them; a stop lets what has been started
finish and gives the leases back. Where epochs come from depends on the ingest stage that the caller makes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common import structured_logging
from oncehouse.errors import FencedError, LeaseHeldError, OncehouseError, TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.lease_holder import describe_holder
from oncehouse.ledger.models import Lease, Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import require_current, take_lease
from oncehouse.pipeline.checks.preflight import with_merging_fields_if_up
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.maintenance.retention import retain
from oncehouse.pipeline.spark.job_errors import translated_errors
from oncehouse.pipeline.spark.log_filters import hide_known_traces
from oncehouse.pipeline.spark.session import close_session, has_ended, name_lost_java, open_session
from oncehouse.pipeline.stages.ingest_stage import IngestStage
from oncehouse.pipeline.stages.load_stage import LoadStage
from oncehouse.pipeline.stages.progress_reporter import ProgressReporter, RunResult
from oncehouse.pipeline.stages.source_progress import ProgressDeclarer, declared_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

_log = logging.getLogger("oncehouse.pipeline")

RETENTION_SECONDS = 60.0
_TABLES_SECONDS = 1.0
_LAST_DECLARATION_SECONDS = 5.0
# Packing and sweeping look at many files and names; the window is looked at each round.
_ROUNDS_A_SWEEP = 10


class StageSupervisor:
    def __init__(
        self,
        pipeline: Pipeline,
        catalog: Catalog,
        reporter: ProgressReporter,
        make_ingest: Callable[[StageSupervisor], IngestStage],
        *,
        stages: Sequence[Stage] = tuple(Stage),
        stop: threading.Event,
        say: Callable[[str], None],
        spark: SparkSession | None = None,
        jars: Sequence[Path] = (),
        tables_unseen: bool = False,
    ) -> None:
        """A Spark session that is given is used and left running. Tables unseen are looked at before an insert."""
        self.pipeline = pipeline
        """Replaced once by one that knows the tables, where they were not there at the start."""
        self.catalog = catalog
        self.reporter = reporter
        self.say = say
        self.leases: dict[Stage, Lease] = {}
        """Those held, by stage."""
        self.filing = threading.Lock()
        """Held while files of the ledger are replaced or dropped."""
        self._make_ingest = make_ingest
        self._stages = tuple(stages)
        self._given_spark = spark
        self._jars = jars
        self._tables_unseen = tables_unseen
        self.stop = stop
        """Set when all of them are to end."""
        self._drain = threading.Event()
        self._failure: BaseException | None = None
        self._failed_while_ending = False
        self._lost_java = False

    def go(self, *, once: bool, wait: bool) -> RunResult:
        held = self._acquire(wait=wait)
        if not held:
            return self.reporter.result()
        self.leases = {lease.stage: lease for lease in held}
        heartbeat = leases.Heartbeat(
            self.catalog,
            held,
            lease_seconds=self.pipeline.lease,
            on_lost=self._fail,
            on_resumed=lambda: require_current(self.catalog, FileStore(self.pipeline.ledger.files)),
        )
        try:
            hide_known_traces()
            # Started only now: a process that waits for a lease, or is refused one, needs no Spark.
            try:
                self.spark = self._given_spark or open_session(
                    self.pipeline, self._jars, say=self.say, stop=self.stop
                )
            except TransientError:
                if not self.stop.is_set():
                    raise
                # A supervisor may end the whole group of processes: Spark's Java too, while it starts.
                self._raise_failure()
                return self.reporter.result()
            try:
                self._work(once=once)
            finally:
                self._lost_java = has_ended(self.spark, self._failure)
                if self._given_spark is None:
                    close_session(self.spark)
        finally:
            heartbeat.stop()
            self._release(held)
        self._raise_failure()
        return self.reporter.result()

    def _work(self, *, once: bool) -> None:
        ingest = self._make_ingest(self)
        loaded = threading.Event()
        declaring = self._declare(loaded)
        loading = [self._thread("load", self._load)] if Stage.LOAD in self.leases else []
        others = [
            self._thread("compact", lambda: ingest.keep_compact(self.stop)),
            self._thread("report", self._keep_reporting),
        ]
        if Stage.RETENTION in self.leases:
            others.append(self._thread("retention", self._retain))
        if self._tables_unseen:
            others.append(self._thread("tables", self._wait_for_tables))
        try:
            ingest.run(self.stop, once=once)
        except BaseException as error:  # noqa: BLE001 - raised again below, when all threads have ended
            self._fail(error)
        finally:
            self._drain.set()
            for thread in loading:
                thread.join()
            self.stop.set()
            loaded.set()
            for thread in others:
                thread.join()
            for thread in declaring:
                thread.join(_LAST_DECLARATION_SECONDS)  # a server that does not answer holds up no stop

    def _declare(self, loaded: threading.Event) -> list[threading.Thread]:
        """Declares how far tables have come to the etl scheduler, while loads go on. Ends after the last of them."""
        kafka = self.pipeline.source.kafka
        if Stage.LOAD not in self.leases or kafka is None or not declared_tables(self.pipeline):
            return []
        declaring = ProgressDeclarer(self.pipeline, self.catalog, KafkaTopics(kafka), say=self.say)
        return [self._thread("declare", lambda: declaring.run(loaded))]

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        lasting = isinstance(self._failure, OncehouseError) and not isinstance(self._failure, TransientError)
        if lasting or not self._lost_java:
            raise self._failure
        # A supervisor may end the whole group of processes: Spark then goes while we put things away.
        if not self._failed_while_ending:
            raise name_lost_java(self.pipeline) from self._failure

    def _wait_for_tables(self) -> None:
        """Until they are there: epochs and requests must know which fields decide about merges.

        The load stage checks for itself, and may be in another process.
        """
        while not self.stop.wait(_TABLES_SECONDS):
            if (known := with_merging_fields_if_up(self.pipeline)) is not None:
                self.pipeline = known
                return

    def _load(self) -> None:
        self.reporter.start_loading()
        loading = LoadStage(
            self.spark,
            self.pipeline,
            self.catalog,
            self.leases[Stage.LOAD],
            on_loaded=self.reporter.add_rows,
            say=self.say,
            tables_unseen=self._tables_unseen,
        )
        loading.run(self.stop, self._drain)

    def _acquire(self, *, wait: bool) -> tuple[Lease, ...]:
        """All leases asked for, or none when the wait was ended or one of them was refused."""
        held: list[Lease] = []
        try:
            self._acquire_all(held, wait=wait)
        except BaseException:
            self._release(held)
            raise
        if self.stop.is_set():
            self._release(held)
            return ()
        return tuple(held)

    def _acquire_all(self, held: list[Lease], *, wait: bool) -> None:
        reported = False
        holder = describe_holder()
        for stage in self._stages:
            while not self.stop.is_set():
                try:
                    held.append(take_lease(self.pipeline, self.catalog, stage, holder))
                    structured_logging.write(
                        _log, logging.INFO, "lease taken", stage=stage, token=held[-1].token
                    )
                    break
                except LeaseHeldError as error:
                    if not wait:
                        raise
                    if not reported:
                        self.say(f"{error} Waiting.")
                        reported = True
                    self.stop.wait(1.0)

    def _release(self, held: Sequence[Lease]) -> None:
        for lease in held:
            try:
                leases.release(self.catalog, lease)
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
            self._failed_while_ending = self.stop.is_set()
        self.stop.set()

    def _retain(self) -> None:
        rounds = 0
        reported, reported_error = False, ""
        # A run that has nothing to wait for still does one round.
        while not self.stop.is_set() or (rounds == 0 and self._failure is None):
            try:
                reported = reported or self._report_clock_jump()
                with self.filing, translated_errors(self.pipeline.pipeline):
                    retain(
                        self.pipeline,
                        self.catalog,
                        token=self.leases[Stage.RETENTION].token,
                        ingest_token=self._ingest_token(),
                        spark=self.spark,
                        sweeping=rounds % _ROUNDS_A_SWEEP == 0,
                    )
            except FencedError:
                raise
            except OncehouseError as error:
                # Damage among old files must not keep new events out; it is named here and by `verify`.
                if str(error) != reported_error:
                    self.say(str(error))
                reported_error = str(error)
            rounds += 1
            self.stop.wait(RETENTION_SECONDS)

    def _report_clock_jump(self) -> bool:
        jump = self.catalog.jump_seconds()
        if abs(jump) <= self.pipeline.max_clock_difference:
            return False
        self.say(
            f"The catalog's clock was set {'forth' if jump > 0 else 'back'} by {abs(jump):.0f} s while this process "
            "ran. The window goes on as if it had not been; set the clock right, or start again when it is."
        )
        return True

    def _ingest_token(self) -> int:
        """Ours, or that of the process that writes epochs: files of older tokens have no owner."""
        if Stage.INGEST in self.leases:
            return self.leases[Stage.INGEST].token
        known = leases.list_leases(self.catalog)
        return max((lease.token for lease in known if lease.stage is Stage.INGEST), default=0)

    def _keep_reporting(self) -> None:
        while not self.stop.wait(0.5):
            self.reporter.report()
