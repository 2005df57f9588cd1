"""One run of the user's pipeline with its own topics, tables and ledger, and the processes that work on them.

Processes are started through the command line, as users start them. A `ScenarioRun` knows what it has sent and waits
until that has arrived; `oracle.py` compares the result.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.create_table import ddl_of
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.chaos.injected_defects import starter
from oncehouse.devstack.chaos.load_plan import Traffic, make_topics, produce
from oncehouse.devstack.chaos.pipeline_rewrite import RunPlace, write_there
from oncehouse.devstack.subprocesses import ONCEHOUSE, last_words, signal_tree, spark_settings, start_command
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.models import BatchStatus, Counts
from oncehouse.pipeline.checks.preflight import open_catalog

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline, Table
    from oncehouse.devstack.proxies.fault_proxy import FaultProxy
    from oncehouse.devstack.stack import Stack
    from oncehouse.ledger.catalog.database import Catalog

_PATIENCE_SECONDS = 300.0
_PATIENCE_SECONDS_A_RECORD = 0.01
_POLL_SECONDS = 0.1
_VIEW = "_sums_of_batches"
_REMEMBERED_BLOCKS = 100_000


class NotHeldError(PermanentError):
    """What must hold did not."""


class NoFaultError(PermanentError):
    """The fault did not happen, so that nothing is shown either way."""


@dataclass(frozen=True, kw_only=True)
class ChaosEnvironment:
    """What all runs share."""

    file: Path
    """The user's pipeline file."""
    folder: Path
    stack: Stack
    proxy: FaultProxy
    traffic: Traffic
    jars: Sequence[Path]
    keep_registry: bool
    seed: int

    @property
    def scratch(self) -> Path:
        return self.folder / "tmp"


class ScenarioRun:
    def __init__(
        self,
        environment: ChaosEnvironment,
        number: int,
        *,
        defect: str = "",
        clickhouse: dict[str, object] | None = None,
    ) -> None:
        """`defect` names what processes of this run start with; `clickhouse` are settings it needs otherwise."""
        self.environment = environment
        self.folder = environment.folder / f"run-{number}"
        self.folder.mkdir(parents=True)
        self._defect = defect
        self._waves = 0
        place = RunPlace(
            folder=self.folder,
            bootstrap_servers=environment.stack.kafka.bootstrap_servers,
            clickhouse_url=environment.proxy.url,
            number=number,
            spark_settings=spark_settings(environment.jars, environment.scratch),
            clickhouse=clickhouse or {},
        )
        self.database = place.database
        self.file = write_there(
            environment.file,
            place,
            events=environment.traffic.records,
            keep_registry=environment.keep_registry,
        )
        self.pipeline: Pipeline = load_pipeline(self.file)
        make_topics(
            place.bootstrap_servers, self.pipeline.source.topics, partitions=environment.traffic.partitions
        )
        self._create_tables()

    def _create_tables(self) -> None:
        client = self.client
        client.command(f"CREATE DATABASE {quote(self.database)}")
        for table in self.pipeline.tables:
            client.command(ddl_of(self.pipeline, table))
            client.command(make_view(table).create())

    @property
    def client(self) -> Client:
        """Straight to the server: faults of the proxy are for the pipeline alone."""
        return connect(ClickHouse(url=self.environment.stack.clickhouse.url))

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(self.pipeline)

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.catalog.close()

    # What goes in

    def send(self, waves: int = 1) -> None:
        """Send the next waves of the traffic."""
        for wave in self.environment.traffic.waves[self._waves : self._waves + waves]:
            produce(self.environment.stack.kafka.bootstrap_servers, self.pipeline.source.topics, wave)
        self._waves += waves

    # Who works

    @property
    def _patience_seconds(self) -> float:
        return _PATIENCE_SECONDS + self.environment.traffic.records * _PATIENCE_SECONDS_A_RECORD

    @property
    def log(self) -> Path:
        return self.folder / "oncehouse.log"

    @contextmanager
    def start(self, *command: str, crash_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
        words = starter(self._defect) if self._defect else ONCEHOUSE
        with start_command(
            (*words, "--debug", *command, str(self.file)),
            log=self.log,
            scratch=self.environment.scratch,
            environment={"ONCEHOUSE_CRASH_AT": crash_at},
        ) as process:
            yield process

    def drain(self) -> None:
        """Take all that was sent to ClickHouse, in a process that ends by itself."""
        with self.start("run", "--once") as process:
            code = self.end_of(process)
        if code != 0:
            raise NotHeldError(f"`oncehouse run --once` ended with exit {code}: {self.last_line()}")

    def end_of(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(self._patience_seconds)
        except subprocess.TimeoutExpired:
            raise NotHeldError(
                f"the pipeline did not come to an end within {self._patience_seconds:.0f} s: {self.last_line()}"
            ) from None

    def die_at(self, point: str) -> None:
        """Run until the process dies at a named crash point."""
        with self.start("run", "--once", crash_at=point) as process:
            code = self.end_of(process)
        if code != -signal.SIGKILL:
            raise NoFaultError(f"the driver did not die at {point!r} but ended with exit {code}")

    def await_work(self, process: subprocess.Popen[bytes], epochs_settled: int = 1) -> None:
        """Until the process has settled an epoch or more."""
        self.wait_until(
            lambda: self._ended(process) or self._settled_epochs() >= epochs_settled,
            "an epoch that is settled",
        )

    def await_rest(self, process: subprocess.Popen[bytes]) -> None:
        """Until all that was sent is in ClickHouse, or nothing moves any more; then end the process in order."""
        moved, seen = time.monotonic(), self._progress()
        while not self._ended(process) and not self._is_done():
            now = self._progress()
            if now != seen:
                moved, seen = time.monotonic(), now
            if time.monotonic() - moved > self._patience_seconds / 5:
                break
            time.sleep(_POLL_SECONDS * 5)
        self.end_in_order(process)

    def end_in_order(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        code = self.end_of(process)
        if code != 0:
            raise NotHeldError(f"after SIGTERM the pipeline ended with exit {code}: {self.last_line()}")

    def _ended(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise NotHeldError(
                f"the pipeline ended by itself with exit {process.returncode}: {self.last_line()}"
            )
        return False

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self._patience_seconds
        while not condition():
            if time.monotonic() > end:
                raise NotHeldError(
                    f"waited {self._patience_seconds:.0f} s in vain for {what}: {self.last_line()}"
                )
            time.sleep(_POLL_SECONDS)

    def said(self) -> str:
        """All that its processes have said."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def last_line(self) -> str:
        lines = [line for line in last_words(self.log).splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"

    # What is known

    def counts(self) -> Counts:
        return epochs.total_counts(self.catalog)

    @property
    def has_ledger(self) -> bool:
        return (self.folder / "ledger" / "catalog.db").exists() and self.catalog.exists()

    def _settled_epochs(self) -> int:
        return len(epochs.list_epochs(self.catalog)) if self.has_ledger else 0

    def _is_done(self) -> bool:
        if not self.has_ledger:
            return False
        expected = sum(len(wave) for wave in self.environment.traffic.waves[: self._waves])
        settled = sum(epochs.read_positions(self.catalog).values())
        return settled >= expected and not self.unloaded()

    def unloaded(self) -> list[str]:
        """What has not reached ClickHouse."""
        waiting = [
            f"batch {batch.batch_id} of {batch.table} is {batch.status} with {batch.rows} rows"
            for batch in batches.list_batches(self.catalog)
            if batch.status is not BatchStatus.IN_CLICKHOUSE
        ]
        return waiting + [
            f"part {part.part} of {part.table} is in no batch" for part in batches.open_parts(self.catalog)
        ]

    def _progress(self) -> tuple[int, int]:
        try:
            rows = sum(self.rows(table.name) for table in self.pipeline.tables)
        except OncehouseError:
            rows = 0  # ClickHouse may be what was killed
        return self.counts().read if self.has_ledger else 0, rows

    def rows(self, table: str) -> int:
        ((rows,),) = self.client.query(f"SELECT count() FROM {quote_table(table)}")  # noqa: S608 - quoted
        return int(rows)


@dataclass(frozen=True, kw_only=True)
class ViewSums:
    """A materialized view that sums up each batch of a table.

    A batch that was inserted twice or in part shows in the view even where the table itself dropped the repeat.
    """

    view: str
    table: str
    batch_column: str
    id_column: str | None

    def create(self, *, remembered_blocks: int = _REMEMBERED_BLOCKS) -> str:
        return (
            f"CREATE MATERIALIZED VIEW {quote_table(self.view)} ENGINE = SummingMergeTree ORDER BY batch "
            f"SETTINGS non_replicated_deduplication_window = {remembered_blocks} AS {self._sums}"
        )

    @property
    def mismatch_query(self) -> str:
        """Batches of the table that the view has summed up otherwise: batch, rows in the table, rows in the view.

        A batch of which the table has nothing left is not among them: the view does not follow what is deleted.
        """
        return (
            "SELECT toString(there.batch), there.n, summed.n "  # noqa: S608 - identifiers are quoted
            f"FROM ({self._sums}) AS there LEFT JOIN ("
            f"SELECT batch, sum(n) AS n, sum(ids) AS ids FROM {quote_table(self.view)} GROUP BY batch"
            ") AS summed ON there.batch = summed.batch "
            "WHERE there.n != summed.n OR there.ids != summed.ids ORDER BY there.batch"
        )

    @property
    def _sums(self) -> str:
        ids = f"sum(cityHash64({quote(self.id_column)}))" if self.id_column else "toUInt64(0)"
        return (
            f"SELECT {quote(self.batch_column)} AS batch, count() AS n, {ids} AS ids "  # noqa: S608 - quoted
            f"FROM {quote_table(self.table)} GROUP BY batch"
        )


def make_view(table: Table) -> ViewSums:
    """A view behind each table, which has to be right as well."""
    return ViewSums(
        view=f"{table.name}{_VIEW}",
        table=table.name,
        batch_column=table.batch_column,
        id_column=table.id_column,
    )


def freeze(process: subprocess.Popen[Any]) -> None:
    """Stop a driver with its JVM and its workers, as a machine that hangs."""
    signal_tree(process.pid, signal.SIGSTOP)


def thaw(process: subprocess.Popen[Any]) -> None:
    signal_tree(process.pid, signal.SIGCONT)
