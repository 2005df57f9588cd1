"""A pipeline on real servers for tests: topics, tables, a ledger of its own, and the oracle that checks what arrived.

A live pipeline remembers what was produced. `assert_exact` then compares ClickHouse with it: the same set, each event
once, the payload of its first arrival, consistent counts, and no finding of `verify`. With a materialized view or the
fault proxy it also checks the sums of the view and the bytes of repeated INSERTs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from clickhouse_connect.driver.client import Client
from pyspark.sql import SparkSession
from sqlalchemy import update

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.create_table import create_table_ddl
from oncehouse.clickhouse.preflight.check import needs_of
from oncehouse.config.pipeline import Pipeline
from oncehouse.devstack.chaos.scenario_run import ViewSums
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.ledger.catalog import batches, epochs, leases, requests, retention, schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Counts, EpochKind, LedgerBatch, RequestKind, Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.dedup.index_compaction import compact
from oncehouse.pipeline.maintenance.retention import RetentionResult, retain
from oncehouse.pipeline.maintenance.verify import VerifyFinding, verify
from oncehouse.pipeline.progress import Progress
from oncehouse.pipeline.run import RunResult, run_pipeline

FIELDS = {
    "project": "LowCardinality(String)",
    "event_type": "LowCardinality(String)",
    "product_id": "UInt64",
    "note": "String",
}
PATIENCE_SECONDS = 240.0

Event = tuple[str, str, int]


def make_event(number: int, *, kind: str | None = None) -> Event:
    return ("shop", kind or ("view", "click", "buy")[number % 3], number)


def encode(event: Event, note: str | None = None, **more: object) -> bytes:
    project, event_type, product_id = event
    values = {
        "project": project,
        "event_type": event_type,
        "product_id": product_id,
        "note": note_of(event) if note is None else note,
    }
    return json.dumps(values | more).encode()


def note_of(event: Event) -> str:
    return f"note of {event[2]} " + "x" * (event[2] % 17)


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.1)


both_readers = pytest.mark.parametrize("reader", ["connector", "direct"], indirect=True)


class LivePipeline:
    """One pipeline over topics of the test's own into tables of the test's own."""

    def __init__(
        self,
        *,
        folder: Path,
        servers: str,
        topics: Sequence[str],
        database: str,
        url: str,
        client: Client,
        spark: SparkSession,
        produce: Callable[..., None],
    ) -> None:
        self.folder = folder
        self.topics = tuple(topics)
        self.url = url
        self.database = database
        self.client = client
        self.spark = spark
        self._produce = produce
        self.produced = 0
        self.expected: dict[Event, str] = {}
        self.said: list[str] = []
        self.has_view = False
        self.proxy: FaultProxy | None = None
        self.document: dict[str, Any] = {
            "pipeline": "live",
            "source": {
                "kafka": {"bootstrap_servers": servers, "topics": list(topics)},
                "format": "json",
                "fields": dict(FIELDS),
            },
            "identity": {"fields": ["project", "event_type", "product_id"], "window": "60d"},
            "tables": [{"name": f"{database}.events"}],
            "clickhouse": {"url": url},
            "ledger": {"catalog": f"sqlite:///{folder}/catalog.db", "files": str(folder / "files")},
            "epoch": {"max_rows": 200, "max_wait": 0.1},
            "batch": {"min_rows": 1, "max_rows": 1000, "max_wait": 0.1, "min_interval": 0.1},
            "retry": {"base": 0.1, "longest": 0.5},
            "lease": 5.0,
            "spark": {"master": "local[2]"},
        }

    # What it is

    @property
    def topic(self) -> str:
        return self.topics[0]

    @property
    def table(self) -> str:
        return f"{self.database}.events"

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(**deepcopy(self.document))

    @cached_property
    def catalog(self) -> Catalog:
        """The ledger's catalog as somebody sees it who looks on; the fixture closes it."""
        return open_catalog(self.pipeline)

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.document["ledger"]["files"]))

    def create_tables(self, *names: str, then: Callable[[str], str] = str) -> None:
        """Make all tables, or the named ones; `then` may change a statement before it runs."""
        pipeline = self.pipeline
        for table in pipeline.tables:
            if names and table.name not in names:
                continue
            needs = needs_of(pipeline, table)
            ddl = create_table_ddl(
                table=needs.table,
                columns=needs.columns,
                identity_columns=pipeline.identity.fields,
                batch_column=needs.batch_column,
                id_column=needs.id_column,
                window=needs.window,
            )
            self.client.command(then(ddl))

    def create_view(self, **options: int) -> None:
        """A materialized view behind the first table, which sums up each batch, and is asked at the end."""
        self.client.command(self._view_sums.create(**options))
        self.has_view = True

    @property
    def _view_sums(self) -> ViewSums:
        table = self.pipeline.tables[0]
        return ViewSums(
            view=f"{self.database}.sums_of_events",
            table=table.name,
            batch_column=table.batch_column,
            id_column=table.id_column,
        )

    def go_through(self, proxy: FaultProxy) -> None:
        """Let the pipeline speak to ClickHouse through the proxy."""
        self.proxy = proxy
        self.document["clickhouse"]["url"] = proxy.url

    # What goes in

    def send(
        self,
        events: Iterable[Event],
        *,
        partition: int = 0,
        topic: str | None = None,
        note: str | None = None,
    ) -> None:
        """Produce events; the first of each id is the one that ClickHouse must have in the end."""
        sent = list(events)
        for event in sent:
            self.expected.setdefault(event, note_of(event) if note is None else note)
        self.send_raw([encode(event, note) for event in sent], partition=partition, topic=topic)

    def send_raw(
        self, values: Sequence[bytes | None], *, partition: int = 0, topic: str | None = None
    ) -> None:
        self._produce(topic or self.topic, values, partition=partition)
        self.produced += len(values)

    # What is done

    def run(self, **options: Any) -> RunResult:
        """Drain what is there, in this process, on the shared Spark session."""
        return run_pipeline(self.pipeline, once=True, spark=self.spark, say=self.said.append, **options)

    def start(self) -> Running:
        return Running(self)

    def command(self, *arguments: str) -> list[str]:
        """How a process of its own is started on this pipeline."""
        return [*self.command_line("run"), *arguments]

    def command_line(self, name: str, *before: str) -> list[str]:
        """A command of oncehouse over this pipeline's pipeline file; `before` stands before the file."""
        document = deepcopy(self.document)
        jars = ",".join(str(jar) for jar in connector_jars())
        document["spark"]["settings"] = {"spark.jars": jars} | document["spark"].get("settings", {})
        file = self.folder / "pipeline.yaml"
        # In the order of the document: columns of a part stand in that of the fields.
        file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        starter = "from oncehouse.cli.app import main; main()"
        return [sys.executable, "-c", starter, name, *before, str(file)]

    def spawn(self, *arguments: str, crash_at: str = "", defect: str = "") -> subprocess.Popen[str]:
        """`defect`: names of `chaos/defective_driver.py`, with commas between them."""
        command = self.command(*arguments)
        if defect:
            starter = Path(__file__).parents[1] / "chaos" / "defective_driver.py"
            command = [sys.executable, str(starter), *command[3:]]
        log = (self.folder / "process.log").open("a", encoding="utf-8")
        with log:
            return subprocess.Popen(
                command,
                env=os.environ
                | {
                    "ONCEHOUSE_CRASH_AT": crash_at,
                    "DRIVER_DEFECT": defect,
                    "DRIVER_FOLDER": str(self.folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    def crash(self, point: str, *arguments: str, defect: str = "") -> None:
        """Run in a process of its own until it dies at the named point."""
        process = self.spawn(*arguments, crash_at=point, defect=defect)
        try:
            code = process.wait(timeout=2 * PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
        assert code == -9, f"the process did not die at {point!r} but ended with {code}: {self.log()[-3000:]}"

    def log(self) -> str:
        """What processes of this pipeline have said."""
        return (self.folder / "process.log").read_text(encoding="utf-8")

    def crash_job(self, point: str, checkpoint: Path, batches: int) -> None:
        """Run somebody's own job (`dataframe_job.py`) until it dies at the named point."""
        job = [sys.executable, str(Path(__file__).with_name("dataframe_job.py"))]
        self._die([*job, self.command_line("run")[-1], str(checkpoint), str(batches)], point)

    def crash_import(self, point: str, folder: str, *arguments: str) -> None:
        self._die([*self.command_line("import", folder), *arguments], point)

    def _die(self, command: list[str], point: str) -> None:
        with (self.folder / "process.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                env=os.environ | {"ONCEHOUSE_CRASH_AT": point},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            code = process.wait(timeout=2 * PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
        said = (self.folder / "process.log").read_text(encoding="utf-8")
        assert code == -9, f"the process did not die at {point!r} but ended with {code}: {said[-3000:]}"

    @contextmanager
    def leases(self) -> Iterator[tuple[Catalog, dict[Stage, int]]]:
        """A catalog with tokens of all stages, as a running pipeline has them."""
        held = [
            leases.acquire(self.catalog, stage, holder=f"this test {stage}", lease_seconds=60)
            for stage in Stage
        ]
        try:
            yield self.catalog, {lease.stage: lease.token for lease in held}
        finally:
            for lease in held:
                leases.release(self.catalog, lease)

    def retain(self) -> RetentionResult:
        """One round of retention, as a running pipeline does it."""
        with self.leases() as (catalog, tokens):
            return retain(
                self.pipeline,
                catalog,
                token=tokens[Stage.RETENTION],
                ingest_token=tokens[Stage.INGEST],
                garbage_seconds=0.0,
            )

    def compact(self) -> int:
        with self.leases() as (catalog, tokens):
            return compact(self.spark, self.pipeline, catalog, tokens[Stage.INGEST])

    def grow_older(self, seconds: float) -> None:
        """Let everything in the catalog have happened that much earlier."""
        names = {"registered_at", "first_seen_from", "first_seen_to", "started_at", "created_at", "loaded_at"}
        with self.catalog.engine.begin() as connection:
            for table in schema.metadata.sorted_tables:
                aged = {column.name: column - seconds for column in table.columns if column.name in names}
                if aged:
                    connection.execute(update(table).values(aged))

    def age_marks(self) -> None:
        """As if the time were over in which an INSERT that was sent may still arrive."""
        for mark in Path(self.store.root).glob(f"{self.pipeline.pipeline}/marks/*.json"):
            told = json.loads(mark.read_text())
            mark.write_text(json.dumps(told | {"at": None}))

    def request(self, kind: RequestKind, **arguments: object) -> str:
        """Ask, let a run perform it, and give back its result."""
        number = requests.add_request(self.catalog, kind, arguments)
        self.run()
        done = next(found for found in requests.list_requests(self.catalog) if found.request == number)
        assert done.done_at is not None, "the request was not performed"
        return done.result or ""

    # What came out

    def rows(self, table: str | None = None) -> list[tuple[Event, str]]:
        found = self.client.query(
            f"SELECT project, event_type, product_id, note FROM {table or self.table}"
        ).result_rows
        return [((project, kind, number), note) for project, kind, number, note in found]

    def counts(self, kind: EpochKind = EpochKind.KAFKA) -> Counts:
        return epochs.total_counts(self.catalog, kind=kind)

    def batches(self, **which: Any) -> tuple[LedgerBatch, ...]:
        return batches.list_batches(self.catalog, **which)

    def ledger_files(self) -> set[str]:
        """The files of the ledger itself: neither Spark's scratch nor its log."""
        return {path for path in self.store.walk("live/") if path.endswith((".arrow", ".parquet"))}

    def findings(self) -> tuple[VerifyFinding, ...]:
        pipeline = self.pipeline
        return verify(pipeline, self.catalog, self.store, connect(pipeline.clickhouse), files=True).findings

    def assert_table(self, table: str, expected: Mapping[Event, str]) -> None:
        rows = self.rows(table)
        found = dict(rows)
        lost, strange = set(expected) - set(found), set(found) - set(expected)
        assert not lost, f"{len(lost)} events are lost, among them {sorted(lost)[:3]}"
        assert not strange, f"{len(strange)} events were never sent, among them {sorted(strange)[:3]}"
        assert len(rows) == len(found), f"{len(rows) - len(found)} rows are doubled"
        assert found == dict(expected), "a later payload took the place of the first"

    def assert_dataframe_rows(self, rows: int) -> None:
        """ClickHouse has the numbers from 0 on that `dataframe_job.py` makes, each once."""
        found = self.client.query(
            f"SELECT count(), uniqExact(product_id), min(product_id), max(product_id) FROM {self.table}"
        ).result_rows
        assert found == [(rows, rows, 0, rows - 1)]
        assert not self.findings()

    def assert_exact(self) -> None:
        self.assert_table(self.table, self.expected)
        count, unique = self.client.query(
            f"SELECT count(), uniqExact(_unique_id) FROM {self.table}"
        ).result_rows[0]
        assert count == unique, f"{count} rows of {unique} ids"
        self.assert_settled()

    def assert_view(self) -> None:
        odd = self.client.query(self._view_sums.mismatch_query).result_rows
        assert not odd, f"the view sums up {len(odd)} batches otherwise than the table has them: {odd[:3]}"

    def assert_swept(self) -> None:
        """Whatever died on the way, in the end there are the files that the catalog names and no others."""
        files, named = self.ledger_files(), retention.registered_paths(self.catalog)
        assert not named - files, f"swept too early: {sorted(named - files)[:3]}"
        assert not files - named, f"left lying about: {sorted(files - named)[:3]}"

    def assert_settled(self) -> None:
        counts = self.counts()
        assert counts.balanced, counts
        assert counts.read == self.produced, f"{self.produced} records were sent, {counts}"
        assert not self.findings()
        if self.has_view:
            self.assert_view()
        if self.proxy is not None:
            changed = self.proxy.bodies.changed
            assert not changed, f"sent again with other bytes: {sorted(changed)}"


class Running:
    """A pipeline that goes on in a thread until the block ends; what it raised is raised at the end."""

    def __init__(self, live_pipeline: LivePipeline) -> None:
        self._live_pipeline = live_pipeline
        self._stop = threading.Event()
        self.error: Exception | None = None
        self.progress = Progress()
        self._thread = threading.Thread(target=self._work, name="live")

    def _work(self) -> None:
        live_pipeline = self._live_pipeline
        try:
            run_pipeline(
                live_pipeline.pipeline,
                stop=self._stop,
                spark=live_pipeline.spark,
                say=live_pipeline.said.append,
                progress=self._see,
            )
        except Exception as error:  # noqa: BLE001 - handed to the test, which judges it
            self.error = error

    def _see(self, progress: Progress) -> None:
        self.progress = progress

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the pipeline does not stop"
        if self.error is not None and kind is None:
            raise self.error

    def wait_for_rows(self, rows: int, table: str | None = None) -> None:
        name = table or self._live_pipeline.table
        wait_until(
            lambda: (
                self.error is not None
                or self._live_pipeline.client.query(f"SELECT count() FROM {name}").result_rows[0][0] >= rows
            ),
            f"{rows} rows in {name}",
        )

    def wait_for_error(self) -> Exception:
        wait_until(lambda: self.error is not None, "an error that ends the pipeline")
        assert self.error is not None
        found, self.error = self.error, None
        return found
