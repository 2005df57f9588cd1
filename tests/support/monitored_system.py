"""A small company to look at: two pipelines, a scheduler, an outbox, inboxes, consumers and syncs, without a server.

Ledgers, outbox, inbox and the scheduler's offsets are real (SQLite) and filled by their own functions; what would need
Kafka or ClickHouse is told by `StandIn`, a Lookout whose questions are answered here.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select, update

from inbox_examples import message
from ledger_examples import IDENTITY, make_batch, make_file, put_dead_letters
from oncehouse.etl.open import open_etl, read_offsets
from oncehouse.etl.state import transitions as etl_offsets
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import TopicWorker, new_offset
from oncehouse.etl.status import GapStatus, TopicStatus
from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.batches import create_batches, finish_attempt, open_parts, start_attempt
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import acquire, note_pause
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request, finish_request
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    EpochKind,
    KeyFile,
    OffsetRange,
    Part,
    Registration,
    RequestKind,
    Segment,
    Stage,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.messaging.consumer.group_lag import GroupPartition, GroupStatus
from oncehouse.messaging.inbox.stored import StoredInbox
from oncehouse.messaging.inbox.tables import handled_ids, inbox
from oncehouse.monitoring.background_probe import BackgroundProbe
from oncehouse.monitoring.etl import EtlView
from oncehouse.monitoring.monitor import Monitor, MonitorTargets
from oncehouse.sync.status import SyncStatus
from outbox_examples import TABLES, open_outbox, write

HOSTILE = b"<script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m \xff"
PARKED_REASON = "Code: 60. Table shop.payments does not exist <b>here</b>"
ORDERS, PAYMENTS = "shop.orders", "shop.payments"
HISTORY = 700
"""Epochs before those that are registered one by one."""
EPOCHS = 16
_PIPELINE = """\
pipeline: {name}
source:
  kafka:
    bootstrap_servers: nowhere.invalid:9092
    topics: [{topics}]
  format: json
  fields: {{order_id: UInt64, price: 'Decimal(18, 2)', created_at: "DateTime64(3, 'UTC')"}}
identity: {{fields: [order_id], window: 60d}}
tables: [{tables}]
clickhouse: {{url: 'http://nowhere.invalid:8123'}}
ledger:
  catalog: sqlite:///{name}/catalog.db
  files: {name}/files
  max_backlog: 2GB
"""
_LINEAGE = """\
topics:
  - {topic: StageOrders, dst: stage.orders}
  - {topic: StagePayments, dst: stage.payments}
  - {topic: StageCustomers, dst: stage.customers}
  - {topic: Orders, dst: dwh.orders, depends_on: [stage.orders, stage.customers]}
  - {topic: Payments, dst: dwh.payments, depends_on: [stage.payments, dwh.orders]}
  - {topic: Refunds, dst: dwh.refunds, depends_on: [dwh.payments]}
  - {topic: Daily, dst: dwh.daily, depends_on: [dwh.payments], template: range, range_column: day}
"""


class StandIn(Monitor):
    """Answers for Kafka, ClickHouse and the syncs' databases; the rest is as in the product."""

    def __init__(self, targets: MonitorTargets) -> None:
        super().__init__(targets, wait_seconds=5.0)
        self.ends = {
            "orders": {("orders", 0): 130_500, ("orders", 1): 119_900, ("payments", 0): 48_400},
            "clicks": {("clicks", 0): 90_000},
        }
        self._ends = {
            name: BackgroundProbe(lambda name=name: self.ends[name], refresh_seconds=0.2)
            for name in self.pipelines
        }
        self._etl = BackgroundProbe(self._read_etl, refresh_seconds=0.2)
        self._groups = BackgroundProbe(lambda: GROUPS, refresh_seconds=1)
        self._syncs = BackgroundProbe(lambda: SYNCS, refresh_seconds=1)

    def _read_etl(self) -> EtlView:
        assert self.targets.etl is not None
        with open_etl(self.targets.etl) as etl:
            known = read_offsets(etl).offsets
            return EtlView(
                lineage=etl.lineage, topics=tuple(_topic_status(known, topic) for topic in etl.built_topics)
            )


def _topic_status(known, topic) -> TopicStatus:
    row = known.get(topic.topic) or new_offset(topic.topic)
    paused = row.state == "paused"
    failed = row.state.startswith("failed")
    decision = "paused" if paused else "resume" if row.hostid else "waiting"
    reason = "tried again in 8 s" if failed else "" if paused or row.hostid else "nothing new"
    return TopicStatus(
        topic=topic.topic,
        dst=topic.dst,
        decision=decision,
        reason=reason,
        last=row.last,
        next=row.next,
        rows=row.rows,
        state=row.state,
        hostid=row.hostid,
        lag_seconds=dict.fromkeys(topic.depends_on, 4200.0 if failed else 12.5),
        late_rows=17 if topic.topic == "Payments" else 0,
        rows_ahead={"stage.orders": 3} if topic.topic == "Orders" else {},
        gaps=(GapStatus(after=Position(time_ms=1_000, id=1), upto=Position(time_ms=9_000, id=7), rows=42),)
        if topic.topic == "Daily"
        else (),
    )


GROUPS = (
    GroupStatus(
        group="billing",
        state="stable",
        members=3,
        partitions=tuple(
            GroupPartition(topic="orders", partition=at, committed=48_000 + 1000 * at, lag=lag)
            for at, lag in enumerate([12, 0, 2310])
        ),
    ),
    GroupStatus(group="mail", state="empty", members=0, partitions=()),
)
SYNCS = (
    SyncStatus(
        sync="OrderSync",
        model="shop.Order",
        table="orders",
        enabled=True,
        waiting=18,
        lag_seconds=1.4,
        running=True,
        backfilled=None,
        rows_synced=1_204_311,
        synced_seconds_ago=0.8,
        failures=0,
        failed_seconds_ago=None,
        last_error=None,
    ),
    SyncStatus(
        sync="CustomerSync",
        model="shop.Customer",
        table="customers",
        enabled=True,
        waiting=940,
        lag_seconds=312.0,
        running=False,
        backfilled=0.37,
        rows_synced=88_120,
        synced_seconds_ago=318.0,
        failures=4,
        failed_seconds_ago=9.0,
        last_error="ClickHouse does not answer (connection refused)",
    ),
    SyncStatus(
        sync="EventSync",
        model="shop.Event",
        table="events",
        enabled=True,
        waiting=None,
        lag_seconds=None,
        running=False,
        backfilled=None,
        rows_synced=None,
        synced_seconds_ago=None,
        failures=0,
        failed_seconds_ago=None,
        last_error=None,
        pipeline_file="events.yaml",
    ),
)


@dataclass(frozen=True, kw_only=True)
class MonitoredSystem:
    folder: Path
    targets: MonitorTargets
    parked: str
    """A batch that ClickHouse has refused."""
    loaded: str

    def repark(self) -> None:
        """As if ClickHouse had refused the batch once more."""
        with self.catalog() as catalog, catalog.engine.begin() as connection:
            _set(
                connection,
                schema.batches,
                schema.batches.c.batch_id == self.parked,
                status=BatchStatus.PARKED,
                reason=PARKED_REASON,
            )

    def park_message(self, message_id: str) -> None:
        with open_outbox(f"sqlite:///{self.folder}/shop.db") as engine, engine.begin() as connection:
            outbox = TABLES.outbox
            mine = outbox.c.id == UUID(message_id)
            _set(connection, outbox, mine, parked_at=time.time(), last_error="MSG_SIZE_TOO_LARGE <big>")

    @contextmanager
    def catalog(self, name: str = "orders") -> Iterator[Catalog]:
        opened = Catalog(f"sqlite:///{self.folder}/{name}/catalog.db", name)
        try:
            yield opened
        finally:
            opened.close()


def make_system(folder: Path) -> MonitoredSystem:
    _write(folder, "orders.yaml", _PIPELINE, topics="orders, payments", tables=_tables(ORDERS, PAYMENTS))
    _write(folder, "clicks.yaml", _PIPELINE, topics="clicks", tables=_tables("web.clicks"))
    (folder / "messaging.yaml").write_text(
        "database: sqlite:///shop.db\nkafka: {bootstrap_servers: 'nowhere.invalid:9092'}\ninbox: {names: [orders]}\n"
    )
    (folder / "lineage").mkdir()
    (folder / "lineage" / "shop.yaml").write_text(_LINEAGE)
    (folder / "etl.yaml").write_text(
        "clickhouse: {url: 'http://nowhere.invalid:1'}\noffsets: {store: catalog, catalog: 'sqlite:///etl.db'}\n"
    )
    parked, loaded = fill_orders(folder)
    fill_clicks(folder)
    fill_etl(folder)
    fill_messaging(folder)
    write_health(folder / "billing.json")
    return MonitoredSystem(
        folder=folder,
        parked=parked,
        loaded=loaded,
        targets=MonitorTargets(
            pipelines=(folder / "orders.yaml", folder / "clicks.yaml"),
            etl=folder / "etl.yaml",
            messaging=folder / "messaging.yaml",
            groups=("billing", "mail"),
            health_files=(folder / "billing.json", folder / "mail.json"),
            modules=("shop.syncs",),
        ),
    )


def _tables(*names: str) -> str:
    return ", ".join(f"{{name: {name}}}" for name in names)


def _write(folder: Path, name: str, text: str, **words: str) -> None:
    (folder / name).write_text(text.format(name=name.partition(".")[0], **words))


def _open(folder: Path, name: str) -> Catalog:
    catalog = Catalog(f"sqlite:///{folder}/{name}/catalog.db", name)
    catalog.prepare()
    catalog.adopt(IDENTITY)
    return catalog


def fill_orders(folder: Path, *, epochs: int = EPOCHS) -> tuple[str, str]:
    """An hour of epochs, most of their batches loaded; one batch parked, one to be tried again, rows that wait."""
    catalog, store, rng = (
        _open(folder, "orders"),
        FileStore(str(folder / "orders" / "files")),
        random.Random(7),
    )
    try:
        token = acquire(catalog, Stage.INGEST, holder="warehouse-1 pid 4711 (x)", lease_seconds=600).token
        load = acquire(catalog, Stage.LOAD, holder="warehouse-2 pid 12 (y)", lease_seconds=600).token
        acquire(catalog, Stage.RETENTION, holder="warehouse-2 pid 12 (y)", lease_seconds=0)
        add_history(catalog, rng)
        for epoch in range(HISTORY + 1, HISTORY + epochs + 1):
            register(
                catalog, token, _registration(epoch, rng, _make_dead_letter_files(store, epoch - HISTORY))
            )
        _fill_requests(catalog, token)
        ids = _fill_batches(catalog, load)
        _spread_times(catalog, epochs)
        return ids
    finally:
        catalog.close()


def add_history(catalog: Catalog, rng: random.Random) -> None:
    """Most of an hour, of which only sums are looked at: epochs every five seconds, batches every ten."""
    now = time.time()
    first, rows, loads = now - HISTORY * 5 - EPOCHS * 5, [], []
    for epoch in range(1, HISTORY + 1):
        at = first + epoch * 5
        read = 4_000 + round(2_600 * math.sin(epoch / 70) + rng.gauss(0, 350))
        rows.append(
            {
                "pipeline": catalog.pipeline,
                "epoch": epoch,
                "kind": EpochKind.KAFKA,
                "token": 1,
                "started_at": at - 1.4,
                "registered_at": at,
                "rows_read": read,
                "rows_new": read - read // 11,
                "rows_duplicate": read // 11,
                "rows_dead_letter": 0,
                "rows_skipped": 0,
                "rows_waiting": 0,
                "conflicts": 0,
            }
        )
        if epoch % 2 == 0:
            new = sum(row["rows_new"] for row in rows[-2:])
            loads.append(
                _loaded_batch(catalog, f"{epoch:08}-0000-4000-8000-000000000000", at + 3, new, epoch)
            )
    with catalog.engine.begin() as connection:
        connection.execute(insert(schema.epochs), rows)
        connection.execute(insert(schema.batches), loads)


def _loaded_batch(catalog: Catalog, batch_id: str, at: float, rows: int, sequence: int) -> dict[str, object]:
    return {
        "pipeline": catalog.pipeline,
        "batch_id": batch_id,
        "table_name": ORDERS,
        "status": BatchStatus.IN_CLICKHOUSE,
        "rows_total": rows,
        "live_bytes": rows * 90,
        "created_at": at - 0.7,
        "sequence": sequence,
        "attempts": 1,
        "next_attempt_at": 0.0,
        "loaded_at": at,
    }


def _registration(epoch: int, rng: random.Random, dead_letters: tuple[DeadLetterFile, ...]) -> Registration:
    read = 5_600 + rng.randrange(900)
    duplicate, dead = read // 11, sum(file.rows for file in dead_letters if file.kind is DeadLetterKind.DEAD)
    waiting = sum(file.rows for file in dead_letters if file.kind is DeadLetterKind.WAITING)
    counts = Counts(
        read=read,
        new=read - duplicate - dead - waiting - 5,
        duplicate=duplicate,
        dead_letter=dead,
        skipped=5,
        waiting=waiting,
        conflicts=1 if epoch == HISTORY + 3 else 0,
    )
    mine = epoch - HISTORY
    start = (mine - 1) * 7_500
    table = ORDERS if mine % 3 else PAYMENTS
    return Registration(
        epoch=epoch,
        kind=EpochKind.KAFKA,
        started_at=time.time() - 1.5,
        counts=counts,
        ranges=tuple(
            OffsetRange(topic=topic, partition=at, start=begin, end=begin + length)
            for topic, at, begin, length in (
                ("orders", 0, start, 7_500),
                ("orders", 1, start, 7_400 if mine == EPOCHS else 7_500),
                ("payments", 0, (mine - 1) * 3_000, 3_000),
            )
        ),
        topic_ids={"orders": "t1", "payments": "t2"},
        key_files=(
            KeyFile(
                key_file=f"keys-{epoch}",
                ordinal=0,
                events=read,
                keys=make_file(f"keys/{epoch}"),
                raw=make_file(f"raw/{epoch}"),
            ),
        ),
        parts=(
            Part(
                part=f"part-{epoch:04}",
                epoch=epoch,
                table=table,
                key_file=f"keys-{epoch}",
                ordinal=0,
                rows=read,
                live_rows=counts.new,
                size_bytes=counts.new * 90,
                file=replace(make_file(f"parts/{epoch}"), size_bytes=counts.new * 60),
            ),
        ),
        dead_letter_files=dead_letters,
        segments=(
            Segment(
                segment=f"segment-{epoch}",
                bucket_from=0,
                bucket_to=15,
                keys=counts.new,
                first_seen_from=1.0,
                first_seen_to=2.0,
                file=replace(make_file(f"segments/{epoch}"), size_bytes=counts.new * 24),
            ),
        ),
    )


def _make_dead_letter_files(store: FileStore, epoch: int) -> tuple[DeadLetterFile, ...]:
    told: dict[str, Any] = {
        "epoch": epoch + HISTORY,
        "at": datetime(2026, 5, 1, 10, tzinfo=UTC),
        "why": "column 7: <i>unexpected</i> character",
    }
    if epoch == 3:
        waiting = put_dead_letters(store, "waiting", [(40_000, "v9", b"{}")], **told)
        return (replace(waiting, kind=DeadLetterKind.WAITING),)
    if epoch % 5:
        return ()
    offset = (epoch - 1) * 7_500
    rows = [
        (offset, "not_json", HOSTILE),
        (offset + 1, "not_json", b'{"order_id": 12, "price": '),
        (
            offset + 2,
            "bad_value",
            b'{"order_id": "twelve", "price": "3.50", "created_at": "2026-05-01T10:00:00Z"}',
        ),
    ]
    return (put_dead_letters(store, f"letters-{epoch}", rows, **told),)


def _fill_requests(catalog: Catalog, token: int) -> None:
    first = add_request(catalog, RequestKind.REFILL_TABLE, {"table": "shop.gone"})
    finish_request(catalog, token, first, "refused: the pipeline file has no table shop.gone")
    add_request(catalog, RequestKind.REPLAY_DEAD_LETTERS, {"reason": "not_json"})


def _fill_batches(catalog: Catalog, token: int) -> tuple[str, str]:
    parts = open_parts(catalog)
    *taken, _left = parts
    batches = [make_batch(part, table=part.table) for part in taken]
    create_batches(catalog, token, batches)
    parked = next(batch for batch in reversed(batches) if batch.table == PAYMENTS)
    retried = batches[-1]
    for batch in batches:
        attempt = start_attempt(catalog, token, batch.batch_id)
        if batch is parked:
            finish_attempt(
                catalog, token, attempt, status=BatchStatus.PARKED, outcome="failed", detail=PARKED_REASON
            )
        elif batch is retried:
            finish_attempt(
                catalog,
                token,
                attempt,
                status=BatchStatus.RETRY,
                outcome="unknown",
                detail="the answer was lost (timeout)",
                wait_seconds=45,
            )
        else:
            finish_attempt(catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome="inserted")
    return parked.batch_id, batches[3].batch_id


def _spread_times(catalog: Catalog, epochs: int) -> None:
    """As if the epochs and batches had come over the last hour, and the keys over two months."""

    def run(connection) -> None:
        now = catalog.now_in(connection)
        for number in range(1, epochs + 1):
            epoch, at = HISTORY + number, now - (epochs - number) * 5.0 - 2
            _set(
                connection,
                schema.epochs,
                schema.epochs.c.epoch == epoch,
                registered_at=at,
                started_at=at - 1.5,
            )
            _set(connection, schema.parts, schema.parts.c.epoch == epoch, registered_at=at)
            seen_at = now - (epochs - number) ** 2 * 20_000.0
            _set(
                connection,
                schema.segments,
                schema.segments.c.segment == f"segment-{epoch}",
                first_seen_from=seen_at,
                first_seen_to=seen_at,
            )
        made_here = schema.batches.c.sequence > HISTORY
        rows = connection.execute(
            select(schema.batches).where(made_here).order_by(schema.batches.c.sequence)
        ).all()
        for at, row in enumerate(rows, start=1):
            made = now - (epochs - at) * 5.0
            loaded = made + 3 if row.loaded_at is not None else None
            mine = schema.batches.c.batch_id == row.batch_id
            _set(connection, schema.batches, mine, created_at=made, loaded_at=loaded)
            tried = schema.attempts.c.batch_id == row.batch_id
            _set(connection, schema.attempts, tried, started_at=made + 2.3, finished_at=made + 3)

    catalog.change(run)


def _set(connection, table, where, **values) -> None:
    connection.execute(update(table).where(where).values(**values))


def fill_clicks(folder: Path) -> None:
    """A pipeline that pauses for room."""
    catalog = _open(folder, "clicks")
    try:
        lease = acquire(catalog, Stage.INGEST, holder="edge-1 pid 9 (z)", lease_seconds=600)
        registration = Registration(
            epoch=1,
            kind=EpochKind.KAFKA,
            started_at=time.time() - 2,
            counts=Counts(read=100, new=100),
            ranges=(OffsetRange(topic="clicks", partition=0, start=0, end=100),),
            topic_ids={"clicks": "t3"},
        )
        register(catalog, lease.token, registration)
        note_pause(catalog, lease, "1.9GB wait for ClickHouse, ledger.max_backlog is 2GB")
    finally:
        catalog.close()


def fill_etl(folder: Path) -> None:
    base_ms = round(time.time() * 1000) - 60_000
    with open_etl(folder / "etl.yaml") as etl:
        etl.store.prepare()
        worker = TopicWorker(hostid="etl-1:77", lease_seconds=600)
        for at, topic in enumerate(["Orders", "Payments", "Refunds", "Daily"]):
            position = Position(time_ms=base_ms - at * 40_000, id=1000 + at)
            seen_row = etl_offsets.begin(etl.store, worker, new_offset(topic), next_=position, rows=500 + at)
            if topic == "Refunds":
                etl_offsets.fail(etl.store, worker, seen_row, "expected rows at least 3, found <2>")
            elif topic != "Daily":  # which is still worked on
                etl_offsets.commit(etl.store, worker, topic, rows=500 + at)


def fill_messaging(folder: Path) -> None:
    url = f"sqlite:///{folder}/shop.db"
    with open_outbox(url) as engine:
        ids = write(engine, [(f"key-{at % 5}".encode(), b"{}") for at in range(12)])
        outbox = TABLES.outbox
        with engine.begin() as connection:
            connection.execute(
                update(outbox)
                .where(outbox.c.id == ids[0])
                .values(parked_at=time.time(), attempts=3, last_error="MSG_SIZE_TOO_LARGE <big>")
            )
            connection.execute(
                update(outbox).where(outbox.c.id == ids[5]).values(parked_at=time.time(), behind=ids[0])
            )
            connection.execute(
                update(outbox).where(outbox.c.id == ids[1]).values(attempts=2, last_error="broker away")
            )
    stored = StoredInbox("orders", url)
    stored.create_tables()
    stored.store([message(f"m-{at}", offset=at) for at in range(6)])
    stored.close()
    with open_outbox(url) as engine, engine.begin() as connection:
        connection.execute(
            update(inbox).where(inbox.c.offset == 2).values(state="parked", error="no <such> customer")
        )
        now = time.time()
        connection.execute(
            insert(handled_ids),
            [{"consumer": "billing", "message_id": "a", "seen_at": now, "keep_until": now + 900}],
        )


def write_health(file: Path, *, healthy: bool = True) -> None:
    partition = {
        "topic": "orders",
        "partition": 0,
        "done": 48_000,
        "lag": 12,
        "running_seconds": 0.4,
        "stuck": False,
        "stopped": "",
    }
    told = {
        "healthy": healthy,
        "state": "running",
        "group": "billing",
        "process": 4711,
        "written_at": time.time(),
        "partitions": [partition],
    }
    file.write_text(json.dumps(told))


def add_batches(catalog: Catalog, number: int) -> None:
    """That many further batches with an attempt each, put in at once."""
    now = time.time()
    rows = [
        {
            "pipeline": catalog.pipeline,
            "batch_id": f"00000000-0000-4000-8000-{at:012}",
            "table_name": ORDERS,
            "status": BatchStatus.IN_CLICKHOUSE,
            "rows_total": 50_000 + at,
            "live_bytes": 4_500_000,
            "created_at": now - at,
            "sequence": 100_000 + at,
            "attempts": 1,
            "next_attempt_at": 0.0,
            "loaded_at": now - at + 0.7,
        }
        for at in range(number)
    ]
    tried = [
        {
            "pipeline": catalog.pipeline,
            "batch_id": row["batch_id"],
            "attempt": 1,
            "query_id": f"{row['batch_id']}-1",
            "started_at": row["created_at"],
            "finished_at": row["loaded_at"],
            "outcome": "inserted",
        }
        for row in rows
    ]
    with catalog.engine.begin() as connection:
        connection.execute(insert(schema.batches), rows)
        connection.execute(insert(schema.attempts), tried)
