"""Verify on a real ClickHouse: every planted difference is found and named, and nothing else is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete, insert, update

from ledger_examples import TOPIC, TOPIC_ID, take_lease
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import InsertRequest
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog import retention, rollup, schema
from oncehouse.ledger.catalog.batches import (
    NewBatch,
    create_batches,
    finish_attempt,
    load_parts,
    open_parts,
    start_attempt,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    DuplicateFile,
    EpochKind,
    KeyFile,
    LedgerIdentity,
    OffsetRange,
    Part,
    Registration,
    Segment,
    Stage,
)
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import DUPLICATE_SCHEMA
from oncehouse.pipeline.load.insert_task import live_rows
from oncehouse.pipeline.maintenance.verify import Subject, verify

READ, DUPLICATES = 10, 2
COLUMNS = ("id", "amount", "sign", "at", "_unique_id")


class Shop:
    """A ledger of two epochs: ten records each, of which two are duplicates and one is a dead letter."""

    def __init__(self, folder: Path, url: str, table_names: tuple[str, ...] = ("orders",)) -> None:
        self.pipeline = Pipeline(
            pipeline="shop",
            source={
                "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": [TOPIC]},
                "fields": {"id": "UInt64", "amount": "UInt64", "sign": "Int8", "at": "DateTime"},
            },
            identity={"fields": ["id"]},
            tables=[{"name": name} for name in table_names],
            clickhouse={"url": url},
            ledger={"catalog": f"sqlite:///{folder}/catalog.db", "files": str(folder / "files")},
        )
        self.folder = folder
        self.store = FileStore(str(folder / "files"))
        self.client = connect(self.pipeline.clickhouse)
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db", "shop")
        self.catalog.prepare()
        self.catalog.adopt(LedgerIdentity(fingerprint="id", buckets=16))
        self.ingest = take_lease(self.catalog)
        self.load = take_lease(self.catalog, Stage.LOAD)
        for epoch in (1, 2):
            self.register(epoch, table_names)

    def register(self, epoch: int, table_names: tuple[str, ...]) -> None:
        events = READ - 1
        put = self.store.put
        duplicate = put(f"{epoch}/duplicates", lambda path: write_duplicates(path, [1, 4]))
        letters = put(f"{epoch}/letters", lambda path: Path(path).write_bytes(b"letters"))
        register(
            self.catalog,
            self.ingest,
            Registration(
                epoch=epoch,
                kind=EpochKind.KAFKA,
                started_at=1.0,
                counts=Counts(read=READ, new=events - DUPLICATES, duplicate=DUPLICATES, dead_letter=1),
                ranges=(
                    OffsetRange(topic=TOPIC, partition=0, start=(epoch - 1) * READ, end=epoch * READ),
                    OffsetRange(topic=TOPIC, partition=1, start=epoch - 1, end=epoch),
                ),
                topic_ids={TOPIC: TOPIC_ID},
                key_files=(
                    KeyFile(
                        key_file=f"keys-{epoch}",
                        ordinal=0,
                        events=events,
                        keys=put(f"{epoch}/keys", write_keys),
                        raw=put(f"{epoch}/raw", lambda path: Path(path).write_bytes(b"raw")),
                    ),
                ),
                parts=tuple(
                    Part(
                        part=f"part-{epoch}-{name}",
                        epoch=epoch,
                        table=name,
                        key_file=f"keys-{epoch}",
                        ordinal=0,
                        rows=len(chosen),
                        live_rows=len(set(chosen) - {1, 4}),
                        size_bytes=100,
                        file=put(
                            f"{epoch}/{name}.parquet", lambda path, c=chosen: write_part(path, epoch, c)
                        ),
                    )
                    for name, chosen in share(table_names, events)
                ),
                duplicate_files=(DuplicateFile(rows=DUPLICATES, file=duplicate),),
                dead_letter_files=(
                    DeadLetterFile(
                        dead_letter_file=f"letters-{epoch}",
                        epoch=epoch,
                        rows=1,
                        reasons={"not_json": 1},
                        file=letters,
                    ),
                ),
                segments=(
                    Segment(
                        segment=f"segment-{epoch}",
                        bucket_from=0,
                        bucket_to=15,
                        keys=events - DUPLICATES,
                        first_seen_from=1.0,
                        first_seen_to=1.0,
                        file=put(f"{epoch}/segment", write_keys),
                    ),
                ),
            ),
        )

    def make_batches(self) -> list[str]:
        planned = [
            NewBatch(batch_id=str(uuid.uuid4()), table=part.table, parts=(part,))
            for part in open_parts(self.catalog)
        ]
        create_batches(self.catalog, self.load, planned)
        return [batch.batch_id for batch in planned]

    def send(self, batch_id: str, *, finish: bool = True) -> None:
        attempt = start_attempt(self.catalog, self.load, batch_id)
        parts = load_parts(self.catalog, batch_id)
        rows = live_rows(self.store, parts)
        request = InsertRequest(
            table=parts[0].part.table,
            columns=COLUMNS,
            batch_column="_batch_id",
            batch_id=batch_id,
            attempt=attempt.attempt,
            rows=rows.num_rows,
            earlier_query_ids=(),
            outcome_unknown=False,
            may_be_forgotten=False,
            merges_rows=False,
        )
        insert_batch(self.client, request, rows)
        if finish:
            self.finish(attempt, BatchStatus.IN_CLICKHOUSE)

    def finish(self, attempt, status: BatchStatus, detail: str | None = None) -> None:
        finish_attempt(self.catalog, self.load, attempt, status=status, outcome="failed", detail=detail)

    def load_all(self) -> list[str]:
        made = self.make_batches()
        for batch_id in made:
            self.send(batch_id)
        return made

    def edit(self, statement) -> None:
        with self.catalog.engine.begin() as connection:
            connection.execute(statement)

    def verify(self, *, files: bool = False, ask_clickhouse: bool = True):
        client = self.client if ask_clickhouse else None
        return verify(self.pipeline, self.catalog, self.store, client, files=files)

    def found(self, *, files: bool = False) -> list[tuple[Subject, str]]:
        return [(finding.kind, finding.where) for finding in self.verify(files=files).findings]


def share(table_names: tuple[str, ...], events: int) -> list[tuple[str, list[int]]]:
    """One table takes all events; of several, the first takes all and each other every second."""
    every_second = list(range(0, events, 2))
    return [(name, list(range(events)) if at == 0 else every_second) for at, name in enumerate(table_names)]


def write_duplicates(path: str, events: list[int]) -> None:
    columns = [[0] * len(events), events, [False] * len(events)]
    batch = pa.record_batch(columns, schema=DUPLICATE_SCHEMA)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def write_keys(path: str) -> None:
    numbers = np.arange(READ, dtype=np.uint64)
    key_index.write_keys(path, key_index.Keys(hi=numbers, lo=numbers, payload=numbers))


def write_part(path: str, epoch: int, events: list[int]) -> None:
    """Ids repeat over epochs and within them, so that engines that merge have something to do."""
    rows = pa.table(
        {
            "id": pa.array([event % 3 for event in events], pa.uint64()),
            "amount": pa.array([epoch] * len(events), pa.uint64()),
            "sign": pa.array([1 if event % 2 else -1 for event in events], pa.int8()),
            "at": pa.array([1_000_000 for _ in events], pa.timestamp("s", tz="UTC")),
            "_event": pa.array(events, pa.uint32()),
            "_unique_id": pa.array([bytes([epoch, event]) * 8 for event in events], pa.binary(16)),
        }
    )
    pq.write_table(rows, path)


CREATE = (
    "CREATE TABLE {name} (id UInt64, amount UInt64, sign Int8, at DateTime('UTC'), _unique_id FixedString(16), "
    "_batch_id UUID) ENGINE = {engine} "
)


@pytest.fixture
def make_shop(tmp_path, clickhouse, clickhouse_client, database) -> Callable[..., Shop]:
    opened = []

    def make(engine: str = "MergeTree ORDER BY id", names: tuple[str, ...] = ("orders",)) -> Shop:
        for name in names:
            clickhouse_client.command(CREATE.format(name=f"{database}.{name}", engine=engine))
        opened.append(Shop(tmp_path, f"{clickhouse.url}/{database}", names))
        return opened[-1]

    yield make
    for shop in opened:
        shop.catalog.close()


@pytest.fixture
def run_sql(clickhouse_client, database):
    settings = {"mutations_sync": 2, "alter_sync": 2}
    return lambda sql: clickhouse_client.command(
        sql.replace("orders", f"{database}.orders"), settings=settings
    )


@pytest.mark.parametrize("files", [False, True])
def test_a_sound_ledger_has_no_findings(make_shop, files):
    shop = make_shop()
    shop.load_all()
    report = shop.verify(files=files)
    assert report.findings == ()
    assert report.notes == ()
    assert report.is_clean
    assert (report.epochs, report.parts, report.batches, report.rows_in_clickhouse) == (2, 2, 2, 14)
    assert report.files == 12


@pytest.mark.parametrize("files", [False, True])
def test_several_tables_that_share_events_have_no_findings(make_shop, files):
    shop = make_shop(names=("orders", "some_orders"))
    shop.load_all()
    report = shop.verify(files=files)
    assert (report.findings, report.notes) == ((), ())


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE orders DELETE WHERE _unique_id = '{row}'",
        "DELETE FROM orders WHERE _unique_id = '{row}'",
    ],
)
def test_a_row_deleted_in_clickhouse_is_found(make_shop, run_sql, sql):
    shop = make_shop()
    first, _ = shop.load_all()
    run_sql(sql.replace("{row}", "\\x01\\x02" * 8))
    (finding,) = shop.verify().findings
    assert (finding.kind, finding.where) == (Subject.ROWS, f"batch {first} in orders")
    assert finding.message == "has 7 rows, but ClickHouse holds 6: 1 are missing"


def test_a_doubled_row_is_found(make_shop, run_sql):
    shop = make_shop()
    _, second = shop.load_all()
    run_sql("INSERT INTO orders SELECT * FROM orders WHERE amount = 2 LIMIT 1")
    (finding,) = shop.verify().findings
    assert (finding.kind, finding.where) == (Subject.ROWS, f"batch {second} in orders")
    assert finding.message == "has 7 rows, but ClickHouse holds 8: 1 are doubled"


def test_a_deleted_and_a_doubled_row_of_one_table_do_not_make_up_for_each_other(make_shop, run_sql):
    shop = make_shop()
    first, second = shop.load_all()
    run_sql("ALTER TABLE orders DELETE WHERE _unique_id = '" + "\\x01\\x02" * 8 + "'")
    run_sql("INSERT INTO orders SELECT * FROM orders WHERE amount = 2 LIMIT 1")
    assert shop.found() == [
        (Subject.ROWS, f"batch {first} in orders"),
        (Subject.ROWS, f"batch {second} in orders"),
    ]


def test_a_deleted_and_a_doubled_row_of_one_batch_do_not_make_up_for_each_other(make_shop, run_sql):
    shop = make_shop()
    first, _ = shop.load_all()
    ids = run_sql(
        f"SELECT arrayStringConcat(groupArray(2)(hex(_unique_id)), ' ') FROM orders WHERE _batch_id = '{first}'"
    )
    lost, doubled = ids.split()
    run_sql(f"ALTER TABLE orders DELETE WHERE hex(_unique_id) = '{lost}'")
    run_sql(f"INSERT INTO orders SELECT * FROM orders WHERE hex(_unique_id) = '{doubled}'")
    (finding,) = shop.verify().findings
    assert finding.where == f"batch {first} in orders"
    assert "unique ids: some stand twice" in finding.message


def test_rows_of_a_batch_that_no_ledger_knows_are_found(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    run_sql("INSERT INTO orders (id, _batch_id) VALUES (1, '0193a0f0-0000-7000-8000-000000000001')")
    assert shop.found() == [(Subject.ROWS, "batch 0193a0f0-0000-7000-8000-000000000001 in orders")]


def test_rows_that_others_wrote_without_a_batch_are_only_noted(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    run_sql("INSERT INTO orders (id) VALUES (1)")
    report = shop.verify()
    assert report.findings == ()
    assert [note.message for note in report.notes] == [
        "1 rows have no batch id: others wrote them, and they were not compared."
    ]


def test_batches_of_another_pipeline_in_the_same_table_are_no_strangers(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    other = str(uuid.uuid4())
    run_sql(f"INSERT INTO orders (id, _batch_id) VALUES (1, '{other}')")
    values = {"table_name": "orders", "status": "IN_CLICKHOUSE", "rows_total": 1, "live_bytes": 1}
    times = {"created_at": 1.0, "sequence": 1, "attempts": 1, "next_attempt_at": 0.0}
    shop.edit(insert(schema.batches).values(pipeline="other", batch_id=other, **values, **times))
    assert shop.found() == []


def test_a_table_that_is_gone_is_found(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    run_sql("DROP TABLE orders SYNC")
    assert shop.found() == [(Subject.ROWS, "table orders")]


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("1/orders.parquet", "part part-1-orders"),
        ("2/keys", "keys keys-2"),
        ("1/raw", "raw bytes keys-1"),
        ("2/duplicates", "duplicates of epoch 2"),
        ("1/letters", "dead letters letters-1"),
        ("2/segment", "segment segment-2"),
    ],
)
def test_a_missing_file_is_found(make_shop, path, where):
    shop = make_shop()
    shop.load_all()
    (shop.folder / "files" / path).unlink()
    (finding,) = shop.verify().findings
    assert (finding.kind, finding.where) == (Subject.FILES, where)
    assert f"{path} is missing" in finding.message


def test_a_file_that_the_ledger_has_stopped_to_name_meanwhile_is_not_missed(make_shop):
    """Packed, merged or dropped between reading the catalog and looking at the file."""
    shop = make_shop()
    shop.load_all()

    class Moving(FileStore):
        def inspect(self, ref) -> None:
            if ref.path == "1/raw":
                shop.edit(
                    update(schema.key_files).where(schema.key_files.c.epoch == 1).values(raw_path="2/raw")
                )
                self.delete("1/raw")
            super().inspect(ref)

    shop.store = Moving(shop.store.root)
    assert shop.found() == []


def test_a_part_missing_in_the_catalog_is_found(make_shop):
    shop = make_shop()
    first, _ = shop.load_all()
    shop.edit(delete(schema.parts).where(schema.parts.c.part == "part-1-orders"))
    assert shop.found() == [
        (Subject.COUNTS, "epoch 1"),
        (Subject.COUNTS, "epoch 1"),
        (Subject.COUNTS, f"batch {first}"),
    ]


@pytest.mark.parametrize(
    "path", ["1/orders.parquet", "2/keys", "1/raw", "2/duplicates", "1/letters", "2/segment"]
)
def test_a_flipped_byte_is_found_when_every_byte_is_read(make_shop, path):
    shop = make_shop()
    shop.load_all()
    file = shop.folder / "files" / path
    content = bytearray(file.read_bytes())
    # The last byte is a magic number in Arrow and Parquet files, and reading for counts must survive it too.
    content[-1] ^= 1
    file.write_bytes(content)
    (finding,) = shop.verify(files=True).findings
    assert finding.kind is Subject.FILES
    assert f"{path} does not match its checksum" in finding.message


def test_unreadable_duplicates_are_found_without_reading_every_byte(make_shop):
    shop = make_shop()
    shop.load_all()
    file = shop.folder / "files/2/duplicates"
    file.write_bytes(b"x" * file.stat().st_size)
    assert shop.found() == [(Subject.FILES, "duplicates of epoch 2")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start_offset": 12}, "offsets 10 to 11 were never settled, between the epochs 1 and 2"),
        ({"start_offset": 8}, "offsets 8 to 9 were settled twice, between the epochs 1 and 2"),
        ({"end_offset": 21}, "the ranges end at offset 21, but the next epoch starts at 20"),
    ],
)
def test_offsets_that_do_not_join_are_found(make_shop, change, message):
    shop = make_shop()
    shop.load_all()
    ranges = schema.ranges
    shop.edit(update(ranges).where(ranges.c.epoch == 2, ranges.c.partition_id == 0).values(**change))
    finding = shop.verify().findings[0]
    assert (finding.kind, finding.where) == (Subject.OFFSETS, f"topic {TOPIC} partition 0")
    assert finding.message == message


def test_a_range_that_is_gone_is_found(make_shop):
    shop = make_shop()
    shop.load_all()
    ranges = schema.ranges
    shop.edit(delete(ranges).where(ranges.c.epoch == 2, ranges.c.partition_id == 0))
    assert (Subject.OFFSETS, f"topic {TOPIC} partition 0") in shop.found()


@pytest.mark.parametrize(
    "column", ["rows_read", "rows_new", "rows_duplicate", "rows_dead_letter", "rows_skipped"]
)
def test_a_count_of_an_epoch_that_is_off_is_found(make_shop, column):
    shop = make_shop()
    shop.load_all()
    epochs = schema.epochs
    shop.edit(update(epochs).where(epochs.c.epoch == 2).values({column: epochs.c[column] + 1}))
    found = shop.found()
    assert found
    assert set(found) == {(Subject.COUNTS, "epoch 2")}


@pytest.mark.parametrize("by", [1, -1])
def test_new_events_counted_as_duplicates_are_found_although_the_sum_is_right(make_shop, by):
    shop = make_shop()
    shop.load_all()
    epochs = schema.epochs
    changed = {"rows_new": epochs.c.rows_new + by, "rows_duplicate": epochs.c.rows_duplicate - by}
    shop.edit(update(epochs).where(epochs.c.epoch == 1).values(changed))
    assert set(shop.found()) == {(Subject.COUNTS, "epoch 1")}


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("column", ["rows_total", "rows_live"])
def test_a_count_of_a_part_that_is_off_is_found(make_shop, column, files):
    shop = make_shop(names=("orders", "some_orders"))
    shop.load_all()
    parts = schema.parts
    shop.edit(update(parts).where(parts.c.part == "part-2-orders").values({column: parts.c[column] - 1}))
    found = shop.found(files=files)
    assert (Subject.COUNTS, "part part-2-orders") in found


@pytest.mark.parametrize("files", [False, True])
def test_a_count_of_a_part_that_holds_some_events_is_compared_row_by_row(make_shop, files):
    shop = make_shop(names=("orders", "some_orders"))
    shop.load_all()
    parts = schema.parts
    shop.edit(update(parts).where(parts.c.part == "part-2-some_orders").values(rows_live=3))
    assert (Subject.COUNTS, "part part-2-some_orders") in shop.found(files=files)


def test_a_count_of_a_batch_that_is_off_is_found(make_shop):
    shop = make_shop()
    first, _ = shop.load_all()
    batches = schema.batches
    shop.edit(update(batches).where(batches.c.batch_id == first).values(rows_total=8))
    assert shop.found() == [
        (Subject.COUNTS, f"batch {first}"),
        (Subject.ROWS, f"batch {first} in orders"),
    ]


def test_what_is_on_its_way_is_noted_and_no_finding(make_shop):
    shop = make_shop()
    report = shop.verify()
    assert report.findings == ()
    assert [note.message for note in report.notes] == ["14 rows in 2 parts wait for a batch."]
    first, second = shop.make_batches()
    shop.send(first, finish=False)
    report = shop.verify()
    assert report.findings == ()
    assert [note.where for note in report.notes] == ["batches IN_PROCESS", "batches NEW"]
    # Arrived, but the driver does not know yet; and one that failed and waits for its next attempt.
    shop.finish(start_attempt(shop.catalog, shop.load, second), BatchStatus.RETRY, "too many parts")
    report = shop.verify()
    assert report.findings == ()
    assert [note.where for note in report.notes] == ["batches IN_PROCESS", "batches RETRY"]


def test_a_batch_that_waits_for_hours_is_named(make_shop):
    shop = make_shop()
    first, _ = shop.make_batches()
    batches = schema.batches
    shop.edit(
        update(batches).where(batches.c.batch_id == first).values(created_at=batches.c.created_at - 7200)
    )
    messages = {note.where: note.message for note in shop.verify().notes}
    assert messages[f"batch {first}"] == "has waited for 2.0 hours, after 0 attempts"


def test_a_batch_that_was_never_sent_but_is_there_is_found(make_shop):
    shop = make_shop()
    first, _ = shop.load_all()
    batches = schema.batches
    shop.edit(update(batches).where(batches.c.batch_id == first).values(status="NEW", attempts=0))
    assert shop.found() == [(Subject.ROWS, f"batch {first} in orders")]


def test_a_batch_in_flight_that_is_there_twice_is_found(make_shop, run_sql):
    shop = make_shop()
    first, _ = shop.make_batches()
    shop.send(first, finish=False)
    run_sql("INSERT INTO orders SELECT * FROM orders")
    assert shop.found() == [(Subject.ROWS, f"batch {first} in orders")]


def test_a_parked_batch_is_found_with_its_reason(make_shop):
    shop = make_shop()
    first, second = shop.make_batches()
    shop.send(second)
    shop.finish(start_attempt(shop.catalog, shop.load, first), BatchStatus.PARKED, "no such column")
    (finding,) = shop.verify().findings
    assert (finding.kind, finding.where) == (Subject.BATCHES, f"batch {first}")
    assert "no such column" in finding.message


def test_without_clickhouse_the_ledger_alone_is_compared(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    run_sql("TRUNCATE TABLE orders")
    report = shop.verify(ask_clickhouse=False)
    assert (report.findings, report.rows_in_clickhouse) == ((), None)
    assert [note.where for note in report.notes] == ["ClickHouse"]


@pytest.mark.parametrize("registered_at", [1.0, None])
def test_what_retention_dropped_is_not_missed(make_shop, registered_at):
    shop = make_shop()
    shop.load_all()
    if registered_at is not None:
        shop.edit(update(schema.epochs).where(schema.epochs.c.epoch == 1).values(registered_at=registered_at))
    for table in (schema.parts, schema.key_files, schema.duplicate_files):
        shop.edit(delete(table).where(table.c.epoch == 1))
    report = shop.verify()
    assert report.findings == ()
    # Inside the window it is at least said: the window may have been a shorter one.
    assert [note.where for note in report.notes] == ([] if registered_at else ["epochs 1 to 1"])


def test_of_what_is_past_the_window_sums_are_compared(make_shop, run_sql):
    shop = make_shop()
    shop.load_all()
    token, later = take_lease(shop.catalog, Stage.RETENTION), shop.catalog.now() + 1
    retention.drop_key_files(shop.catalog, token, before=later)
    rollup.roll_up_epochs(shop.catalog, token, before=later)
    assert rollup.roll_up_batches(shop.catalog, token, before=later) == 2
    report = shop.verify()
    assert report.findings == ()
    assert "14 rows are of batches past the window" in report.notes[-1].message
    run_sql("ALTER TABLE orders DELETE WHERE _unique_id = '" + "\\x01\\x02" * 8 + "'")
    assert shop.found() == [(Subject.ROWS, "table orders")]


def test_a_batch_that_waits_must_have_all_its_parts_however_old_it_is(make_shop):
    shop = make_shop()
    first, _ = shop.make_batches()
    shop.edit(update(schema.epochs).where(schema.epochs.c.epoch == 1).values(registered_at=1.0))
    shop.edit(delete(schema.parts).where(schema.parts.c.batch_id == first))
    assert shop.found() == [(Subject.COUNTS, f"batch {first}")]


MERGING = [
    "ReplacingMergeTree ORDER BY id",
    "CollapsingMergeTree(sign) ORDER BY id",
    "SummingMergeTree ORDER BY id",
    "AggregatingMergeTree ORDER BY id",
    "MergeTree ORDER BY id TTL at + INTERVAL 1 DAY",
]


@pytest.mark.parametrize("engine", MERGING)
def test_rows_that_an_engine_or_a_ttl_took_away_are_no_findings(make_shop, run_sql, engine):
    shop = make_shop(engine)
    shop.load_all()
    run_sql("OPTIMIZE TABLE orders FINAL")
    report = shop.verify()
    assert report.findings == ()
    assert report.rows_in_clickhouse < 14
    (note,) = report.notes
    assert note.where == "table orders"
    assert f"holds {report.rows_in_clickhouse} of the 14 rows" in note.message


@pytest.mark.parametrize("engine", MERGING)
def test_rows_too_many_are_found_even_where_rows_may_go(make_shop, run_sql, engine):
    shop = make_shop(engine)
    first, _ = shop.load_all()
    copies = f"SELECT number + 100, 1, 1, now() + 86400, '', toUUID('{first}') FROM numbers(20)"
    run_sql(f"INSERT INTO orders {copies}")
    assert shop.found() == [(Subject.ROWS, f"batch {first} in orders")]
