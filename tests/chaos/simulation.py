"""The road without servers: a real ledger, real files, and in place of Kafka, Spark and ClickHouse small models.

A schedule is a list of steps. Any step may die at any of the road's crash points; what follows is done by a new
holder of the leases. In the end the rest is drained, and the destination is held to what was produced.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from sqlalchemy import update

from oncehouse import crash
from oncehouse.clickhouse.deadlines import read_moment
from oncehouse.clickhouse.outcomes import Inserted, Outcome, Refused, TryAgain
from oncehouse.config import Pipeline
from oncehouse.errors import FencedError
from oncehouse.ledger import batches, epochs, keyindex, leases, requests, segments, snapshots
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.records import (
    BatchStatus,
    EpochKind,
    Lease,
    OffsetRange,
    RequestKind,
    Stage,
)
from oncehouse.ledger.tables import key_files
from oncehouse.pipeline import compact, loader, pack, rekey
from oncehouse.pipeline.adopting import identity_of
from oncehouse.pipeline.attempts import Opened
from oncehouse.pipeline.batcher import TableFeedback, plan_batches
from oncehouse.pipeline.compact import rebuild
from oncehouse.pipeline.ingest import EpochInput, settle
from oncehouse.pipeline.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.perform import Performer
from oncehouse.pipeline.reading import read_records
from oncehouse.pipeline.rekey import Rekeying
from oncehouse.pipeline.retention import retain
from oncehouse.pipeline.verify import verify

TOPIC = "events"
TABLE = "events"
PARTITIONS = 2
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


@dataclass
class Destination:
    """A table that drops a batch it has, and can fail in each way that matters."""

    rows: list[tuple[int, str]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    sent: dict[str, pa.Table] = field(default_factory=dict)
    fault: int = 0

    def take(self, plan: loader.LoadPlan) -> Outcome:
        request = plan.request
        rows = loader.live_rows(FileStore(plan.files_root), plan.parts)
        before = self.sent.setdefault(request.batch_id, rows)
        assert before.equals(rows), "a batch that is sent again is the same, row by row"
        assert rows.num_rows == request.rows
        if self.fault == 1:
            return TryAgain(message="away", code=1, seconds=0, outcome_unknown=False, too_many_parts=False)
        if self.fault == 2:
            return Refused(message="no", code=1, seconds=0, outcome_unknown=request.outcome_unknown)
        if request.batch_id not in self.tokens:
            self.tokens.add(request.batch_id)
            ids, notes = rows.column("id").to_pylist(), rows.column("note").to_pylist()
            self.rows += zip(ids, notes, strict=True)
        if self.fault == 3:
            return TryAgain(message="cut", code=None, seconds=0, outcome_unknown=True, too_many_parts=False)
        return Inserted(rows=request.rows, seconds=0)


def describe_pipeline(folder: Path) -> Pipeline:
    return Pipeline(
        pipeline="road",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": [TOPIC]},
            "fields": {"id": "UInt64", "note": "String"},
        },
        identity={"fields": ["id"], "buckets": 4},
        tables=[{"name": TABLE}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": f"sqlite:///{folder}/catalog.db", "files": str(folder / "files")},
        batch={"min_rows": 1, "max_rows": 15, "max_wait": 0, "min_interval": 0},
    )


class Simulation:
    def __init__(self, pipeline: Pipeline, catalog: Catalog, held: dict[Stage, Lease]) -> None:
        """On a ledger that was made ready for this pipeline, and that nobody has used but to take the leases."""
        self.pipeline = pipeline
        self.catalog = catalog
        self.store = FileStore(pipeline.ledger.files)
        self.spark: Any = InlineSpark()
        self.destination = Destination()
        self.kafka: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.held = dict(held)
        self.takes = 1
        self.said: list[str] = []
        self.attempts = 0
        self.wanted: tuple[Pipeline, int] | None = None
        """The pipeline under a rule that is prepared beside the epochs, and the request for it."""

    def take_over(self) -> None:
        """Another process: it has the leases, and whoever had them before is fenced."""
        before, self.takes = self.held, self.takes + 1
        for lease in before.values():
            leases.release(self.catalog, lease)
        self.held = take_leases(self.catalog, f"process {self.takes}")
        for stage, lease in before.items():
            try:
                self.catalog.write(stage, lease.token, lambda _: None)
            except FencedError:
                continue
            raise AssertionError("an old holder could still write")

    def do(self, step: Step) -> None:
        try:
            with dying(step.dies_at), patch.object(loader, "send_batch", self.destination.take):
                getattr(self, step.kind)(*step.numbers)
        except DiedError:
            self.take_over()

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
                batch_id=f"00000000-0000-0000-0000-{self._next():012d}", table=TABLE, parts=found.parts
            )
            for found in planned
        ]
        batches.create_batches(self.catalog, self.held[Stage.LOAD].token, made)

    def _next(self) -> int:
        return len(batches.list_batches(self.catalog)) + 1

    def load(self, fault: int) -> None:
        self.destination.fault = fault
        for batch in batches.waiting_batches(self.catalog)[:1]:
            with patch.object(loader, "open_attempt", lambda *_: Opened(began=read_moment())):
                loader.load(
                    self.spark,
                    self.pipeline,
                    self.catalog,
                    self.held[Stage.LOAD].token,
                    batch,
                    facts=None,
                )

    def retry(self) -> None:
        for batch in batches.list_batches(self.catalog, statuses=[BatchStatus.PARKED]):
            batches.retry_parked(self.catalog, batch.batch_id)

    def compact(self) -> None:
        self.follow()
        with patch.object(compact, "FAN_IN", 2):
            compact.compact(self.spark, self.pipeline, self.catalog, self.held[Stage.INGEST].token)

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

    def rekeying(self) -> Rekeying:
        assert self.wanted is not None
        pipeline, request = self.wanted
        return Rekeying(self.spark, pipeline, self.catalog, self.held[Stage.INGEST].token, request=request)

    def follow(self) -> None:
        """Whoever died after the change finds the rule that holds."""
        if self.wanted is not None and self.catalog.identity() == identity_of(self.wanted[0]):
            self.pipeline, self.wanted = self.wanted[0], None

    def perform(self) -> None:
        """What the holder of the ingest lease does before it reads."""
        self.follow()
        token = self.held[Stage.INGEST].token
        performer = Performer(self.spark, self.pipeline, self.catalog, token, say=self.said.append)
        performer.rekeys = self.wanted is None
        assert not list(performer.perform())

    def retain(self) -> None:
        # Snapshots serve a catalog that is lost, which no schedule does.
        with (
            patch.object(pack, "LEAST_EPOCHS", 2),
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

    # The end

    def drain(self) -> None:
        longest = max(len(log) for log in self.kafka)
        self.do(Step(kind="settle", numbers=(longest, 1)))
        self.retry()
        while batches.open_parts(self.catalog) or batches.waiting_batches(self.catalog):
            self.do(Step(kind="cut"))
            self.do(Step(kind="load", numbers=(0,)))

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
        doubled = [
            number for number, times in Counter(n for n, _ in self.destination.rows).items() if times > 1
        ]
        assert not doubled, f"{doubled} came more than once"
        assert dict(self.destination.rows) == expected, "what arrived is not what was produced"
        counts = epochs.total_counts(self.catalog)
        assert (counts.read, counts.new) == (produced, len(expected))
        assert sum(segment.keys for segment in segments.list_segments(self.catalog)) == len(expected)
        for segment in segments.list_segments(self.catalog):
            assert len(keyindex.open_keys(self.store.local(segment.file))) == segment.keys
        assert not verify(self.pipeline, self.catalog, self.store, None, files=True).findings


def take_leases(catalog: Catalog, holder: str) -> dict[Stage, Lease]:
    return {
        stage: leases.acquire(catalog, stage, holder=holder, lease_seconds=3600 * 24 * 365) for stage in Stage
    }


@contextmanager
def dying(point: str | None) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == point:
            raise DiedError(name)

    with patch.object(crash, "reach", reach):
        yield


class Ground:
    """A ledger that was made ready once, and is laid out again for each simulation.

    One engine for all of them: it keeps its statements compiled, which is most of what a short schedule costs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipeline = describe_pipeline(folder)
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db", "road")
        self.catalog.prepare()
        self.catalog.adopt(identity_of(self.pipeline))
        self.held = take_leases(self.catalog, "process 1")
        self.catalog.close()
        self._ready = {path.name: path.read_bytes() for path in folder.glob("catalog.db*")}
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
        self.folder.mkdir(mode=0o700)
        for name, content in self._ready.items():
            (self.folder / name).write_bytes(content)


@cache
def ground() -> Ground:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=memory))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Ground(folder)


@contextmanager
def simulate() -> Iterator[Simulation]:
    with ground().laid_out() as simulation:
        yield simulation
