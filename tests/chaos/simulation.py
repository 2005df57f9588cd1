"""The pipeline without servers: a real ledger, real files, and in place of Kafka, Spark and ClickHouse small models.

A schedule is a list of steps. Any step may die at any of the pipeline's crash points; what follows is done by a new
holder of the leases. ClickHouse is played below the product's own client, so that what it asks, decides and sends is
the product's. A person does what messages advise. In the end the rest is drained, and the destination is held to what
was produced.
"""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from simulated_clickhouse import FINE, FROZEN, HELD, TABLE, WINDOW_BLOCKS, FrozenError, SimulatedClickHouse
from sqlalchemy import update

from oncehouse.clickhouse import client as clickhouse_client
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert import deadline
from oncehouse.clickhouse.table_engines import forget_engines
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.common import failpoints
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import CatalogBehindError, FencedError, OncehouseError
from oncehouse.ledger.catalog import batches, epochs, leases, requests, segments, snapshots
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import key_files
from oncehouse.ledger.catalog.schema import leases as lease_table
from oncehouse.ledger.lease_terms import Term, Terms
from oncehouse.ledger.models import (
    BatchStatus,
    EpochKind,
    Lease,
    OffsetRange,
    RequestKind,
    Stage,
)
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.stale_catalog import require_newest
from oncehouse.pipeline.dedup import index_compaction
from oncehouse.pipeline.dedup.index_compaction import rebuild
from oncehouse.pipeline.ingest.epoch import EpochInput, settle
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.load.batch_planner import TableFeedback, plan_batches
from oncehouse.pipeline.maintenance import file_packs
from oncehouse.pipeline.maintenance.retention import retain
from oncehouse.pipeline.maintenance.verify import verify
from oncehouse.pipeline.requests import rekey
from oncehouse.pipeline.requests.handler import RequestHandler
from oncehouse.pipeline.requests.rekey import RekeyJob
from oncehouse.pipeline.schema.identity_guard import identity_of
from oncehouse.pipeline.stages.supervisor import take_lease

TOPIC = "events"
PARTITIONS = 2
WAIT_SECONDS = 4000
"""Longer than an INSERT may be on its way."""
MOST_LOADS = 500
STAGES = {
    "settle": Stage.INGEST,
    "compact": Stage.INGEST,
    "cut": Stage.LOAD,
    "load": Stage.LOAD,
    "retain": Stage.RETENTION,
}
ASKED_FOR = {"rebuild", "rekey", "prepare", "finish"}
POINTS = (
    "before writing parts",
    "parts written",
    "before registering",
    "after registering",
    "before inserting",
    "after inserting",
    "before replacing segments",
    "after replacing segments",
    "keys written anew",
    "before changing the rule",
    "after changing the rule",
    "before moving files",
    "after moving files",
    "before deleting files",
    "after deleting a file",
    "after sweeping a file",
)


class DiedError(Exception):
    """What the process would not have lived to see."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What the promoted standby lacks."""

    catalog: sqlite3.Connection
    files: frozenset[str]
    """Those that were there at that moment."""


@dataclass(frozen=True, kw_only=True)
class Step:
    kind: str
    numbers: tuple[int, ...] = ()
    dies_at: str | None = None


class InlineSpark:
    """Runs tasks where they are planned."""

    defaultParallelism = 2  # noqa: N815 - Spark's own name

    @property
    def sparkContext(self) -> InlineSpark:  # noqa: N802 - Spark's own name
        return self

    def parallelize(self, plans: list[Any], _slices: int) -> InlineTasks:
        return InlineTasks(plans)


@dataclass
class InlineTasks:
    plans: list[Any]

    def map(self, work: Callable[[Any], Any]) -> InlineTasks:
        return InlineTasks([work(plan) for plan in self.plans])

    def collect(self) -> list[Any]:
        return self.plans


def describe_pipeline(folder: Path) -> Pipeline:
    return Pipeline(
        pipeline="live",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": [TOPIC]},
            "fields": {"id": "UInt64", "note": "String"},
        },
        identity={"fields": ["id"], "buckets": 4},
        tables=[{"name": TABLE}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": f"sqlite:///{folder}/catalog.db", "files": str(folder / "files")},
        lease=86_400,
        batch={"min_rows": 1, "max_rows": 15, "max_wait": 0, "min_interval": 0},
    )


class Simulation:
    def __init__(self, pipeline: Pipeline, catalog: Catalog, held: dict[Stage, Lease]) -> None:
        """On a ledger that was made ready for this pipeline, and that nobody has used but to take the leases."""
        self.pipeline = pipeline
        self.catalog = catalog
        self.store = FileStore(pipeline.ledger.files)
        self.spark: Any = InlineSpark()
        self.clickhouse = SimulatedClickHouse()
        self.standby: sqlite3.Connection | None = None
        """A copy of the catalog that has got nothing since it was made."""
        self.lost: Lost | None = None
        self.made = 0
        """Batches, those included that the catalog has forgotten."""
        self.kafka: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.held = dict(held)
        self.takes = 1
        self.said: list[str] = []
        self.attempts = 0
        self.wanted: tuple[Pipeline, int] | None = None
        """The pipeline under a rule that is prepared beside the epochs, and the request for it."""

    def take_over(self) -> None:
        """Another process: it has the leases, and whoever had them before is fenced."""
        before, known = self.held, self.catalog.terms
        for lease in before.values():
            leases.release(self.catalog, lease)
        if self.lost is not None:
            # Leases that the promoted catalog knows run out by themselves.
            expired = update(lease_table).values(expires_at=0.0)
            self.catalog.change(lambda connection: connection.execute(expired))
        self._start()
        after, self.catalog.terms = self.catalog.terms, known
        for stage, lease in before.items():
            try:
                self.catalog.write(stage, lease.token, lambda _: None)
            except FencedError:
                continue
            raise AssertionError("an old holder could still write")
        self.catalog.terms = after

    def _start(self) -> None:
        """A process that knows nothing but catalog and files."""
        self.takes += 1
        self.catalog.terms = Terms()
        require_newest(self.catalog, self.store)
        self.held = take_leases(self.pipeline, self.catalog, f"process {self.takes}")

    def do(self, step: Step) -> None:
        if step.kind in ASKED_FOR:
            # A person who changes the rule just then would have to edit the pipeline file back as well.
            self.standby = None
            if self.lost is not None:
                return
        try:
            with dying(step.dies_at), self.played():
                try:
                    self._renew(beside=STAGES.get(step.kind))
                    getattr(self, step.kind)(*step.numbers)
                except (DiedError, FrozenError):
                    self.take_over()
        except CatalogBehindError:
            self._bring_back()

    def _renew(self, *, beside: Stage | None) -> None:
        """What a running process does all the time, and what lets its other stages learn that the catalog is behind.

        The stage that is at it has to notice by itself.
        """
        if self.lost is not None and beside is not None:
            for stage, lease in self.held.items():
                if stage is not beside:
                    leases.renew(self.catalog, lease, lease_seconds=self.pipeline.lease)

    @contextmanager
    def played(self) -> Iterator[None]:
        """ClickHouse and the clocks as this simulation has them."""
        told = Catalog.now_in

        def now_in(catalog: Catalog, connection: Any) -> float:
            return told(catalog, connection) + self.clickhouse.now

        with (
            patch.object(clickhouse_client, "_open", self.clickhouse.connect),
            patch.object(Catalog, "now_in", now_in),
            patch.object(deadline, "time", SimulatedTime(self.clickhouse)),
        ):
            yield

    # Steps

    def produce(self, partition: int, *ids: int) -> None:
        log = self.kafka[partition % PARTITIONS]
        log += [f'{{"id": {number}, "note": "{partition}/{len(log)}"}}'.encode() for number in ids]

    def settle(self, size: int, small: int) -> None:
        self.perform()
        positions = epochs.read_positions(self.catalog)
        ranges = []
        for partition, log in enumerate(self.kafka):
            start = positions.get((TOPIC, partition), 0)
            end = min(start + size, len(log))
            ranges.append(OffsetRange(topic=TOPIC, partition=partition, start=start, end=end))
        if all(span.start == span.end for span in ranges):
            return
        given = EpochInput(kind=EpochKind.KAFKA, ranges=tuple(ranges), topic_ids={TOPIC: "id"})
        settle(
            self.spark,
            self.pipeline,
            self.catalog,
            self.held[Stage.INGEST].token,
            lambda plan: self._read(plan, ranges),
            given,
            small=bool(small),
        )

    def _read(self, plan: ReadPlan, ranges: list[OffsetRange]) -> list[TaskManifest]:
        blocks = [self._block(span) for span in ranges if span.end > span.start]
        tasks = [blocks[::-1]] if plan.whole else [[block] for block in blocks[::-1]]
        self.attempts += 1
        return [read_records(plan, f"r{self.attempts}-{at}", task) for at, task in enumerate(tasks)]

    def _block(self, span: OffsetRange) -> pa.RecordBatch:
        number = span.end - span.start
        return pa.record_batch(
            [
                pa.array([span.partition] * number, pa.int32()),
                pa.array(range(span.start, span.end), pa.int64()),
                pa.array([0] * number, pa.timestamp("us", tz="UTC")),
                pa.nulls(number, pa.binary()),
                pa.array(self.kafka[span.partition][span.start : span.end], pa.binary()),
            ],
            names=["source", "offset", "timestamp", "key", "value"],
        )

    def cut(self) -> None:
        planned = plan_batches(
            batches.open_parts(self.catalog),
            limits={TABLE: self.pipeline.batch},
            feedback={TABLE: TableFeedback()},
            now=self.catalog.now(),
        )
        made = [
            batches.NewBatch(
                batch_id=f"00000000-0000-0000-0000-{number:012d}", table=TABLE, parts=found.parts
            )
            for number, found in enumerate(planned, start=self.made + 1)
        ]
        self.made += len(made)
        batches.create_batches(self.catalog, self.held[Stage.LOAD].token, made)

    def load(self, fault: int) -> None:
        if fault == HELD and not self.pipeline.clickhouse.insert_sessions:
            fault = FROZEN  # only a session keeps out what has left the process
        self.clickhouse.fault = fault
        try:
            for batch in batches.waiting_batches(self.catalog)[:1]:
                insert_task.load(
                    self.spark,
                    self.pipeline,
                    self.catalog,
                    self.held[Stage.LOAD].token,
                    batch,
                    facts=self._describe(),
                )
        finally:
            self.clickhouse.fault = FINE

    def _describe(self) -> TableFacts | None:
        with suppress(OncehouseError):
            return describe_table(connect(self.pipeline.clickhouse), TABLE)
        return None

    # What happens around the pipeline

    def replicate(self) -> None:
        """The table has two replicas; a schedule begins with this or does without."""
        self.clickhouse.replicated = True

    def switch_sessions_off(self) -> None:
        """As behind a balancer that sends each request elsewhere: then the process's own deadline is all there is."""
        clickhouse = self.pipeline.clickhouse.model_copy(update={"insert_sessions": False})
        self.pipeline = self.pipeline.model_copy(update={"clickhouse": clickhouse})

    def write_by_others(self, blocks: int) -> None:
        self.clickhouse.write_by_others(blocks)

    def pass_time(self, seconds: int) -> None:
        self.clickhouse.now += seconds

    def fail_over(self) -> None:
        self.clickhouse.fail_over()

    def fetch(self) -> None:
        """Replicas get what they lack."""
        self.clickhouse.fetch()

    def deliver(self) -> None:
        """INSERTs that were held on their way, or stood still with their process, arrive."""
        if not self.pipeline.clickhouse.insert_sessions:
            # Within the deadline a process that wakes up still sends, which its token alone has to bear.
            self.clickhouse.now += deadline.SEND_WITHIN_SECONDS + 1
        self.clickhouse.deliver()

    def retry(self) -> None:
        for batch in batches.list_batches(self.catalog, statuses=[BatchStatus.PARKED]):
            batches.retry_parked(self.catalog, batch.batch_id)

    def compact(self) -> None:
        self.follow()
        with patch.object(index_compaction, "FAN_IN", 2):
            index_compaction.compact(self.spark, self.pipeline, self.catalog, self.held[Stage.INGEST].token)

    def rebuild(self) -> None:
        self.perform()
        request = requests.add_request(self.catalog, RequestKind.REBUILD_INDEX, {})
        token = self.held[Stage.INGEST].token
        rebuild(self.spark, self.pipeline, self.catalog, token, request=request)

    def rekey(self) -> None:
        """Another rule, by which the same events are the same, and another number of buckets."""
        if requests.open_requests(self.catalog):
            return
        self.change(**self._other_rule())
        self.perform()

    def _other_rule(self) -> dict[str, Any]:
        wide = self.pipeline.source.fields["id"] == "UInt64"
        return {"types": {"id": "Decimal(20, 0)" if wide else "UInt64"}, "buckets": 8 if wide else 4}

    def change(self, **changes: Any) -> None:
        """Edit the pipeline file, and ask that the ledger follows."""
        self.pipeline, _ = self.ask(**changes)

    def ask(self, *, types: dict[str, str] | None = None, **identity: Any) -> tuple[Pipeline, int]:
        """What the edited pipeline file says, and the request for it."""
        source = self.pipeline.source
        edited = self.pipeline.model_copy(
            update={
                "source": source.model_copy(update={"fields": source.fields | (types or {})}),
                "identity": self.pipeline.identity.model_copy(update=identity),
            }
        )
        asked = identity_of(edited)
        arguments: dict[str, object] = {"fingerprint": asked.fingerprint, "buckets": asked.buckets}
        return edited, requests.add_request(self.catalog, RequestKind.REKEY, arguments)

    def prepare(self) -> None:
        """A round of another rule, while epochs go on under the one that holds; it is asked for if nobody has."""
        if self.wanted is None:
            if requests.open_requests(self.catalog):
                return
            self.wanted = self.ask(**self._other_rule())
        with patch.object(rekey, "NEAR_EVENTS", 0), patch.object(rekey, "ROUND_EVENTS", 5):
            self.rekeying().prepare_round()

    def finish(self) -> None:
        """Let the rule that was prepared take effect."""
        self.follow()
        if self.wanted is not None:
            changing = self.rekeying()
            changing.forget_lost()
            changing.finish()
            self.follow()

    def rekeying(self) -> RekeyJob:
        assert self.wanted is not None
        pipeline, request = self.wanted
        return RekeyJob(self.spark, pipeline, self.catalog, self.held[Stage.INGEST].token, request=request)

    def follow(self) -> None:
        """Whoever died after the change finds the rule that holds."""
        if self.wanted is not None and self.catalog.identity() == identity_of(self.wanted[0]):
            self.pipeline, self.wanted = self.wanted[0], None

    def perform(self) -> None:
        """What the holder of the ingest lease does before it reads."""
        self.follow()
        token = self.held[Stage.INGEST].token
        handler = RequestHandler(self.spark, self.pipeline, self.catalog, token, say=self.said.append)
        handler.rekeys = self.wanted is None
        assert not list(handler.perform())

    def retain(self) -> None:
        # Snapshots serve a catalog that is lost, which no schedule does.
        with (
            patch.object(file_packs, "LEAST_EPOCHS", 2),
            patch.object(snapshots, "write_snapshot", lambda *_: None),
        ):
            retain(
                self.pipeline,
                self.catalog,
                token=self.held[Stage.RETENTION].token,
                ingest_token=self.held[Stage.INGEST].token,
                spark=self.spark,
                garbage_seconds=0.0,
            )

    def age_first_epoch(self) -> None:
        """Time passes, until the first epoch that the ledger keeps is out of the window."""
        first = min(epoch for epoch, _, _ in epochs.list_key_files(self.catalog))
        aged = update(key_files).where(key_files.c.epoch == first).values(registered_at=0.0)
        self.catalog.change(lambda connection: connection.execute(aged))

    def leave_standby_behind(self) -> None:
        """From here on the standby of the catalog gets nothing."""
        self.standby = sqlite3.connect(":memory:")
        with self._database() as database:
            database.backup(self.standby)

    def promote(self) -> None:
        """The catalog is lost; its standby, which lacks the last transactions, takes its place."""
        if self.standby is None:
            return
        truth = sqlite3.connect(":memory:")
        with self._database() as database:
            database.backup(truth)
            self.standby.backup(database)
        # Were it lost twice, the first is the one that had all.
        self.lost = self.lost or Lost(catalog=truth, files=frozenset(self.store.walk("")))
        self.standby = None

    def _bring_back(self) -> None:
        """A person does what the message says; here the lost transactions are found again, none is missing."""
        assert self.lost is not None, "the catalog has lost nothing"
        with self._database() as database:
            self.lost.catalog.backup(database)
        for path in self.store.walk(""):
            if path not in self.lost.files:
                self.store.delete(path)
        self.lost = self.standby = None
        self.catalog.change(lambda connection: connection.execute(update(lease_table).values(expires_at=0.0)))
        self._start()

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        self.catalog.engine.dispose()
        database = sqlite3.connect(Path(self.pipeline.ledger.files).parent / "catalog.db")
        try:
            yield database
        finally:
            database.close()

    # The end

    def drain(self) -> None:
        longest = max(len(log) for log in self.kafka)
        for _ in range(2):  # once more where the first finds that the catalog is behind
            self.do(Step(kind="settle", numbers=(longest, 1)))
        self.do(Step(kind="retry"))
        self._load_all()
        if batches.list_batches(self.catalog, statuses=[BatchStatus.PARKED]):
            self.do(Step(kind="send_again"))
            self._load_all()
        # What arrives only now finds a table that has forgotten its token.
        self.do(Step(kind="write_by_others", numbers=(WINDOW_BLOCKS,)))
        self.do(Step(kind="deliver"))

    def _load_all(self) -> None:
        for _ in range(MOST_LOADS):
            if not (batches.open_parts(self.catalog) or batches.waiting_batches(self.catalog)):
                return
            self.do(Step(kind="cut"))
            self.do(Step(kind="load", numbers=(0,)))
        raise AssertionError("what waits is never loaded")

    def send_again(self) -> None:
        """What a person does about batches that are parked with some of their rows in the table."""
        for batch in batches.list_batches(self.catalog, statuses=[BatchStatus.PARKED]):
            found = self.clickhouse.rows_of(batch.batch_id)
            assert len(found) <= batch.rows, f"batch {batch.batch_id} is in the table more than once"
            self.clickhouse.delete_batch(batch.batch_id)
        requests.add_request(self.catalog, RequestKind.REFILL_TABLE, {"table": TABLE})
        self.perform()
        if requests.open_requests(self.catalog):
            # Without sessions the request waits until nothing that was sent can still arrive.
            self.deliver()
            self.pass_time(WAIT_SECONDS)
            self.perform()

    def first_seen(self) -> dict[int, str]:
        """Of each id the first arrival, by the ledger's own ranges: epochs in order, positions within."""
        found: dict[int, str] = {}
        for _, span in sorted(epochs.list_ranges(self.catalog), key=lambda entry: (entry[0], entry[1])):
            for offset in range(span.start, span.end):
                row = self.kafka[span.partition][offset]
                number, note = row.decode().removeprefix('{"id": ').removesuffix('"}').split(', "note": "')
                found.setdefault(int(number), note)
        return found

    def assert_exact(self) -> None:
        expected = self.first_seen()
        produced = sum(len(log) for log in self.kafka)
        assert len({value.split(b",")[0] for log in self.kafka for value in log}) == len(expected)
        self.assert_nothing_is_doubled()
        assert dict(self.clickhouse.rows) == expected, "what arrived is not what was produced"
        self._assert_the_view_has_what_is_proven()
        counts = epochs.total_counts(self.catalog)
        assert (counts.read, counts.new) == (produced, len(expected))
        assert sum(segment.keys for segment in segments.list_segments(self.catalog)) == len(expected)
        for segment in segments.list_segments(self.catalog):
            assert len(key_index.open_keys(self.store.local(segment.file))) == segment.keys
        assert not verify(self.pipeline, self.catalog, self.store, None, files=True).findings

    def assert_nothing_is_doubled(self) -> None:
        for what, rows in (("table", self.clickhouse.rows), ("view", self.clickhouse.view_rows)):
            doubled = [number for number, times in Counter(n for n, _ in rows).items() if times > 1]
            assert not doubled, f"{doubled} are in the {what} more than once"

    def _assert_the_view_has_what_is_proven(self) -> None:
        for batch_id in self.clickhouse.batches_the_view_lacks():
            attempts = batches.list_attempts(self.catalog, batch_id)
            said = any("materialized views" in (one.detail or "") for one in attempts)
            assert said, f"the view lacks rows of batch {batch_id}, and nobody is told"


def take_leases(pipeline: Pipeline, catalog: Catalog, holder: str) -> dict[Stage, Lease]:
    return {stage: take_lease(pipeline, catalog, stage, holder) for stage in Stage}


@dataclass(frozen=True)
class SimulatedTime:
    """The clocks of the machine, as far as deadlines are counted by them."""

    server: SimulatedClickHouse
    CLOCK_BOOTTIME = time.CLOCK_MONOTONIC
    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def clock_gettime(self, _clock: int) -> float:
        return self.server.now

    def time(self) -> float:
        return self.server.now


@contextmanager
def dying(point: str | None) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == point:
            raise DiedError(name)

    with patch.object(failpoints, "reach", reach):
        yield


class Ground:
    """A ledger that was made ready once, and is laid out again for each simulation.

    One engine for all of them: it keeps its statements compiled, which is most of what a short schedule costs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipeline = describe_pipeline(folder)
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db", "live")
        self.catalog.prepare()
        self.catalog.adopt(identity_of(self.pipeline))
        self.held = take_leases(self.pipeline, self.catalog, "process 1")
        self.catalog.close()
        self._ready = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._taken = threading.Lock()

    @contextmanager
    def laid_out(self) -> Iterator[Simulation]:
        assert self._taken.acquire(blocking=False), "one simulation at a time"
        try:
            self._clear()
            yield Simulation(self.pipeline, self.catalog, self.held)
        finally:
            self.catalog.close()
            self._taken.release()

    def _clear(self) -> None:
        shutil.rmtree(self.folder)
        for path, content in self._ready.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(content)
        # What process 1 knows.
        self.catalog.terms = Terms()
        for stage, lease in self.held.items():
            self.catalog.terms.begin(stage, Term(token=lease.token, holder=lease.holder, writes=0))


@cache
def ground() -> Ground:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=memory))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Ground(folder)


@contextmanager
def simulate() -> Iterator[Simulation]:
    forget_engines()  # another simulation's table may have had another one
    with ground().laid_out() as simulation:
        yield simulation
