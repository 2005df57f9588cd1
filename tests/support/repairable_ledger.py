"""A ledger with real files, made by the read task itself, over tables that are only remembered: no server, no Spark."""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ledger_examples import take_lease
from oncehouse.config.pipeline import ClickHouse, Pipeline
from oncehouse.ledger.catalog import batches, leases, packs, snapshots
from oncehouse.ledger.catalog.batches import NewBatch
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import next_epoch, read_positions
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    EpochKind,
    KeyFile,
    OffsetRange,
    Part,
    QueryBatch,
    Registration,
    Segment,
    Stage,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import open_keys
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.ingest.read_plan import plan_epoch_read
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.maintenance.file_packs import PackPlan, pack_task
from oncehouse.pipeline.repair import catalog_restore
from oncehouse.pipeline.repair.catalog_restore import CatalogRepair
from oncehouse.pipeline.repair.kafka_availability import KafkaFacts
from oncehouse.pipeline.schema.identity_guard import identity_of

TOPIC = "orders"


@dataclass
class Tables:
    """What ClickHouse would hold: (batch id, unique id) of each row, by table."""

    rows: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    ids_at_once: int = 0
    """The most ids that one answer had."""
    database: str = "default"
    config = ClickHouse(url="http://remembered:8123")

    def query(self, sql: str, parameters: dict[str, Any] | None = None, settings: object = None) -> list[Any]:
        if "system.processes" in sql:
            return [(query,) for query in self.running]
        if "system.tables" in sql and "databases" in (parameters or {}):
            return []  # none of them has replicas
        if "system.tables" in sql:
            name = (parameters or {})["table"]
            return [("u", "MergeTree", "", "", "", [])] if name in self.rows else []
        if "system." in sql:
            return []
        counted: dict[str, int] = {}
        for batch_id, _ in self._named(sql):
            counted[batch_id] = counted.get(batch_id, 0) + 1
        return list(counted.items())

    def query_arrow(self, sql: str, parameters: dict[str, Any], settings: object = None) -> pa.Table:
        asked = set(parameters["ids"])
        ids = [found for batch_id, found in self._named(sql) if batch_id in asked]
        halves = np.frombuffer(b"".join(ids), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        inside = (halves[:, 0] >= parameters["first"]) & (halves[:, 0] <= parameters["last"])
        self.ids_at_once = max(self.ids_at_once, int(inside.sum()))
        return pa.table({"id_hi": halves[inside, 0], "id_lo": halves[inside, 1]})

    def _named(self, sql: str) -> list[tuple[str, bytes]]:
        found = re.search(r"FROM `(\w+)`", sql)
        assert found is not None, sql
        return self.rows[found[1]]


@cache
def empty_catalog() -> bytes:
    """Made once: to make the tables costs as much as all that a test does with them."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{folder}/empty.db", "shop")
        catalog.prepare()
        catalog.close()
        return (Path(folder) / "empty.db").read_bytes()


class RepairableLedger:
    """A pipeline whose events are numbers; `orders` is its table unless others are named."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        values: dict[str, Any] = {
            "pipeline": "shop",
            "source": {
                "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": [TOPIC]},
                "fields": {"id": "UInt64", "note": "Nullable(String)"},
            },
            "identity": {"fields": ["id"], "buckets": 4},
            "tables": [{"name": "orders"}],
            "clickhouse": {"url": "http://127.0.0.1:9"},
            "ledger": {"catalog": f"sqlite:///{folder}/catalog.db", "files": f"{folder}/files"},
        }
        self.folder = folder
        self.pipeline = Pipeline(**(values | changes))
        self.store = FileStore(self.pipeline.ledger.files)
        self.tables = Tables(rows={table.name: [] for table in self.pipeline.tables})
        self.records: list[bytes] = []
        self.earliest = 0
        (folder / "catalog.db").write_bytes(empty_catalog())
        self.catalog = self.open()
        self.catalog.adopt(identity_of(self.pipeline))

    def open(self) -> Catalog:
        return Catalog(self.pipeline.ledger.catalog.get_secret_value(), "shop", retry_seconds=())

    # What a pipeline does

    def ingest(self, numbers: Sequence[int], *, more: Sequence[bytes] = (), query: str | None = None) -> int:
        """An epoch of these events and of `more` records as they are; no event of it was seen before."""
        start = len(self.records)
        self.records += [json.dumps({"id": number, "note": f"note {number}"}).encode() for number in numbers]
        self.records += more
        token, epoch = take_lease(self.catalog), next_epoch(self.catalog)
        plan = plan_epoch_read(self.pipeline, self.catalog, epoch=epoch, token=token, whole=True)
        attempt = f"{'w' if query else 'r'}{uuid.uuid4().hex[:8]}"
        made = read_records(plan, attempt, [self.block(start, len(self.records))])
        named = f"{epoch}-{token}"
        files = tuple(
            KeyFile(
                key_file=f"keys-{named}-{at}", ordinal=at, events=chunk.events, keys=chunk.keys, raw=chunk.raw
            )
            for at, chunk in enumerate(made.chunks)
        )
        parts = tuple(
            Part(
                part=f"part-{named}-{at}-{part.table}",
                epoch=epoch,
                table=plan.tables[part.table].name,
                key_file=files[at].key_file,
                ordinal=at,
                rows=part.rows,
                live_rows=part.rows,
                size_bytes=part.size_bytes,
                file=part.file,
                shape=part.shape,
            )
            for at, chunk in enumerate(made.chunks)
            for part in chunk.parts
        )
        letters = tuple(
            DeadLetterFile(
                dead_letter_file=f"{found.kind}-{named}-{at}",
                epoch=epoch,
                rows=found.rows,
                reasons=found.reasons,
                file=found.file,
                kind=found.kind,
            )
            for at, found in enumerate(made.letters)
        )
        by_kind = {
            kind: sum(found.rows for found in letters if found.kind == kind) for kind in ("dead", "waiting")
        }
        register(
            self.catalog,
            token,
            Registration(
                epoch=epoch,
                kind=EpochKind.FRAME if query else EpochKind.KAFKA,
                started_at=1.0,
                counts=Counts(
                    read=len(numbers) + len(more),
                    new=sum(chunk.events for chunk in made.chunks),
                    dead_letter=by_kind["dead"],
                    waiting=by_kind["waiting"],
                ),
                ranges=()
                if query
                else (OffsetRange(topic=TOPIC, partition=0, start=start, end=len(self.records)),),
                topic_ids={} if query else {TOPIC: "id"},
                key_files=files,
                parts=parts,
                dead_letter_files=letters,
                segments=tuple(self._segments(files)),
                query=QueryBatch(query=query, batch=epoch) if query else None,
            ),
        )
        return epoch

    def _segments(self, files: Sequence[KeyFile]) -> Iterator[Segment]:
        for found in files:
            yield Segment(
                segment=f"segment-{found.key_file}",
                bucket_from=0,
                bucket_to=3,
                keys=found.events,
                first_seen_from=1.0,
                first_seen_to=2.0,
                file=found.keys,
            )

    def block(self, start: int, end: int) -> pa.RecordBatch:
        count = end - start
        return pa.record_batch(
            {
                "source": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(start, end), pa.int64()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array(self.records[start:end], pa.binary()),
            }
        )

    def make_batch(self, epoch: int, *, table: str = "orders") -> str:
        """One of all parts of an epoch."""
        held = tuple(part for part in batches.list_parts(self.catalog, table=table) if part.epoch == epoch)
        batch = NewBatch(batch_id=str(uuid.uuid4()), table=table, parts=held)
        batches.create_batches(self.catalog, take_lease(self.catalog, Stage.LOAD), [batch])
        return batch.batch_id

    def end_attempt(
        self, batch_id: str, status: BatchStatus, outcome: str, detail: str | None = None
    ) -> None:
        token = take_lease(self.catalog, Stage.LOAD)
        attempt = batches.start_attempt(self.catalog, token, batch_id)
        batches.finish_attempt(self.catalog, token, attempt, status=status, outcome=outcome, detail=detail)

    def ids(self, epoch: int) -> list[bytes]:
        """The unique ids of an epoch's events, in their order."""
        parts = [part for part in batches.list_parts(self.catalog) if part.epoch == epoch]
        return [
            unique_id
            for part in parts
            if part.table == parts[0].table
            for unique_id in read_rows(self.store, part.file, ["_unique_id"]).column(0).to_pylist()
        ]

    def deliver(self, ids: Sequence[bytes], *, table: str = "orders", batch_id: str | None = None) -> str:
        named = batch_id or str(uuid.uuid4())
        self.tables.rows[table] += [(named, unique_id) for unique_id in ids]
        return named

    def load(self, epoch: int, *, table: str = "orders") -> str:
        batch_id = self.deliver(self.ids(epoch), table=table, batch_id=self.make_batch(epoch, table=table))
        self.end_attempt(batch_id, BatchStatus.IN_CLICKHOUSE, "inserted")
        return batch_id

    def pack(self) -> None:
        """All epochs into one pack, as retention does with many small ones."""
        plan = PackPlan(
            files_root=self.store.root,
            out="shop/packs/1-pack",
            bundles=packs.list_bundles(self.catalog),
        )
        packs.move_files(self.catalog, take_lease(self.catalog, Stage.RETENTION), pack_task(plan))

    def stop(self) -> None:
        """The leases of the process are given back."""
        for lease in leases.list_leases(self.catalog):
            leases.release(self.catalog, lease)

    # What is done about a catalog

    def snapshot(self) -> None:
        snapshots.write_snapshot(self.catalog, self.store)

    def lose_catalog(self) -> None:
        self.catalog.close()
        for file in self.folder.glob("catalog.db*"):
            file.unlink()

    def ask_kafka(self, _known: dict[str, str]) -> KafkaFacts:
        if self.pipeline.source.kafka is None:
            return KafkaFacts()
        place = (TOPIC, 0)
        return KafkaFacts(earliest={place: self.earliest}, latest={place: len(self.records)})

    def plan(self, *, user_rewrites: bool = False) -> CatalogRepair:
        return catalog_restore.plan_lost(
            self.pipeline, self.tables, "there is no file", self.ask_kafka, user_rewrites=user_rewrites
        )

    def restore(self, planned: CatalogRepair | None = None) -> Path | None:
        aside = catalog_restore.restore_lost(self.pipeline, self.tables, planned or self.plan())
        self.catalog = self.open()
        return aside

    def index(self) -> set[tuple[int, int]]:
        """The ids that would be found as duplicates."""
        from oncehouse.ledger.catalog.segments import list_segments

        return {
            (int(hi), int(lo))
            for segment in list_segments(self.catalog)
            for keys in [open_keys(self.store.checked(segment.file))]
            for hi, lo in zip(keys.hi, keys.lo, strict=True)
        }

    def position(self) -> int:
        return read_positions(self.catalog).get((TOPIC, 0), 0)


def as_halves(ids: Sequence[bytes]) -> set[tuple[int, int]]:
    return {(int.from_bytes(found[:8], "big"), int.from_bytes(found[8:], "big")) for found in ids}
