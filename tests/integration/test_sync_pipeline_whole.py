"""A sync that moves from rounds to the pipeline under its writers: at rest `FINAL` equals the database all the same.

The oracle is a twin of each sync: a table of its own, filled at rest by one round that reads the database.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import REAL, Engine, Numeric, create_engine, delete, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import JSON, Text

from captured_database import CapturedDatabase
from changed_syncs import make_tables
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline
from oncehouse.pipeline.run import run_pipeline
from oncehouse.sync import sqlalchemy as mapped
from oncehouse.sync.model import model_sync as core
from oncehouse.sync.model.model_sync import ModelSync as AnySync
from oncehouse.sync.settings import read_settings
from oncehouse.sync.sqlalchemy import sources
from oncehouse.sync.verify.verify import verify
from synced_shop import Shop, open_shop

from django.contrib.postgres.fields import ArrayField  # isort: skip - after the settings of synced_shop
from django.db import IntegrityError, OperationalError, connections, models, transaction
from django.db.models import F

from oncehouse.sync.django import ModelSync
from sync_shop.models import Customer, Order, Seat

QUICK = {
    "epoch": {"max_wait": 0.1},
    "batch": {"min_rows": 1, "max_wait": 0.1},
    "spark": {"master": "local[2]"},
}


class Sample(models.Model):
    """A field of every kind that the log has as rounds send it."""

    small = models.SmallIntegerField()
    large = models.PositiveBigIntegerField()
    ratio = models.FloatField(null=True)
    price = models.DecimalField(max_digits=30, decimal_places=10)
    text = models.TextField()
    short = models.CharField(max_length=40, db_column="Short 'one'")
    raw = models.BinaryField()
    day = models.DateField()
    at = models.DateTimeField(null=True)
    ident = models.UUIDField()
    document = models.JSONField(null=True)
    address = models.GenericIPAddressField(null=True)
    flag = models.BooleanField()
    numbers = ArrayField(models.IntegerField())
    words = ArrayField(models.TextField())

    class Meta:
        app_label = "sync_shop"

    def __str__(self) -> str:
        return self.short


class Light(Enum):
    RED = "r"
    GREEN = "g"


class Base(DeclarativeBase):
    pass


class Gauge(Base):
    """Of SQLAlchemy, under other names than its table has, with what Django does not make."""

    __tablename__ = "gauges"
    __table_args__ = {"schema": "sales"}  # noqa: RUF012 - as SQLAlchemy has it
    number: Mapped[int] = mapped_column("Nr", primary_key=True)
    light: Mapped[Light]
    seen: Mapped[datetime | None]
    level: Mapped[float] = mapped_column(REAL)
    price: Mapped[Decimal] = mapped_column("class", Numeric(12, 3))
    document: Mapped[Any] = mapped_column(JSON, nullable=False)
    raw: Mapped[bytes | None]
    tags: Mapped[list[str]] = mapped_column(ARRAY(Text))


def make_gauge(number: int) -> Gauge:
    return Gauge(
        number=number,
        light=Light.RED if number % 2 else Light.GREEN,
        seen=datetime(2026, 3, 29, 1, 30, 0, number) if number % 3 else None,  # noqa: DTZ001 - naive on purpose
        level=number / 7,
        price=Decimal(number) / 8,
        document={"n": number, "of": [None, True, "x"]} if number % 5 else None,
        raw=bytes([0, 255, number % 256]) if number % 4 else None,
        tags=["", f"t{number}"],
    )


def change_gauges(engine: Engine, first: int) -> None:
    """Flushes, statements of the ORM, a rolled-back transaction and raw SQL."""
    with Session(engine) as session, session.begin():
        session.add_all([make_gauge(number) for number in range(first, first + 40)])
        session.flush()
        session.execute(update(Gauge).where(Gauge.number % 5 == 0).values(level=Gauge.level + 1))
        session.execute(delete(Gauge).where(Gauge.number % 9 == 0))
    with Session(engine) as session:
        session.add(make_gauge(first + 100))
        session.flush()
        session.rollback()
    with engine.begin() as connection:
        connection.execute(text("UPDATE sales.gauges SET light = 'RED', seen = now() WHERE \"Nr\" % 4 = 0"))
        connection.execute(
            text('UPDATE sales.gauges SET "Nr" = "Nr" + 1000 WHERE "Nr" = :n'), {"n": first + 1}
        )


class Writer:
    """Changes of every kind, many of them past Django."""

    def __init__(self, alias: str, seed: int) -> None:
        self.alias = alias
        self.dice = random.Random(seed)
        self.kinds: list[Callable[[], Any]] = [
            self.create, self.create, self.bulk_create, self.save, self.bulk_update, self.update, self.delete,
            self.delete_many, self.cascade, self.seats, self.raw, self.raw_delete, self.raw_key, self.give_up,
        ]  # fmt: skip

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.change()
        finally:
            connections.close_all()

    def change(self) -> None:
        try:
            with transaction.atomic(using=self.alias):
                self.dice.choice(self.kinds)()
        except (IntegrityError, OperationalError):
            pass  # two writers in each other's way; the database has taken one back

    def some(self, model: Any, count: int = 1) -> list[Any]:
        found = list(model._base_manager.using(self.alias).order_by("pk")[:200])
        return self.dice.sample(found, min(count, len(found)))

    def orders(self) -> Any:
        return Order._base_manager.using(self.alias)

    def create(self) -> None:
        customer = Customer.objects.using(self.alias).create(name=f"c{self.dice.random()}")
        self.orders().create(
            customer=customer, total=self.dice.randrange(100), note="n" * self.dice.randrange(4000)
        )

    def bulk_create(self) -> None:
        for customer in self.some(Customer):
            self.orders().bulk_create([Order(customer=customer, details={"n": n}) for n in range(3)])

    def save(self) -> None:
        for order in self.some(Order):
            order.note = None if self.dice.random() < 0.3 else str(self.dice.random())
            order.save()

    def bulk_update(self) -> None:
        found = self.some(Order, 4)
        for order in found:
            order.removed = not order.removed
        self.orders().bulk_update(found, ["removed"])

    def update(self) -> None:
        self.orders().filter(pk__gt=self.dice.randrange(100)).update(total=F("total") + 1)

    def delete(self) -> None:
        for order in self.some(Order):
            order.delete(using=self.alias)

    def delete_many(self) -> None:
        self.orders().filter(total=self.dice.randrange(30)).delete()

    def cascade(self) -> None:
        for customer in self.some(Customer):
            customer.delete(using=self.alias)

    def seats(self) -> None:
        taken = [
            Seat(hall=hall, number=self.dice.randrange(8), taken=self.dice.random() < 0.5) for hall in "ab"
        ]
        Seat.objects.using(self.alias).bulk_create(
            taken, update_conflicts=True, unique_fields=["hall", "number"], update_fields=["taken"]
        )

    def execute(self, statement: str, *values: Any) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement, values or None)

    def raw(self) -> None:
        touch = "UPDATE sync_shop_order SET total = total + 1, note = 'raw' WHERE id %% 3 = %s"
        self.execute(touch, self.dice.randrange(3))

    def raw_delete(self) -> None:
        self.execute("DELETE FROM sync_shop_seat WHERE number = %s", self.dice.randrange(8))
        for order in self.some(Order):
            self.execute("DELETE FROM sync_shop_order WHERE id = %s", order.pk)

    def raw_key(self) -> None:
        for seat in self.some(Seat):
            self.execute(
                "UPDATE sync_shop_seat SET number = %s WHERE hall = %s AND number = %s",
                self.dice.randrange(8), seat.hall, seat.number,
            )  # fmt: skip

    def give_up(self) -> None:
        self.update()
        self.create()
        transaction.set_rollback(True, using=self.alias)


@contextmanager
def writing(alias: str, seed: int, seconds: float) -> Iterator[None]:
    stop = threading.Event()
    writers = [threading.Thread(target=Writer(alias, seed + n).run, args=(stop,)) for n in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield
        stop.wait(seconds)
    finally:
        stop.set()
        for writer in writers:
            writer.join()


class SyncSetup:
    """The shop's syncs, each with its twin, and the pipelines that feed them."""

    def __init__(self, shop: Shop, cdc: CapturedDatabase, engine: Engine) -> None:
        self.shop, self.cdc, self.engine = shop, cdc, engine
        self.orders = self.declare("Orders", Order, columns={"tags": None, "took": None})
        self.seats = self.declare("Seats", Seat)
        self.samples = self.declare("Samples", Sample)
        self.gauges = self.declare_mapped("Gauges", Gauge, columns={"level": "Float32"})
        self.syncs = (self.orders, self.seats, self.samples, self.gauges)

    def declare(self, name: str, model: Any, **attributes: Any) -> Any:
        return self.make(ModelSync, name, django_model=model, source_database=self.shop.alias, **attributes)

    def declare_mapped(self, name: str, model: Any, **attributes: Any) -> Any:
        return self.make(mapped.ModelSync, name, model=model, **attributes)

    def make(self, base: type[AnySync], name: str, **attributes: Any) -> Any:
        """A sync and its twin."""
        own = {"sync_enabled": True, **attributes}
        made = type(name, (base,), own | {"table": name.lower(), "__module__": __name__})
        twin = type(f"{name}Twin", (base,), own | {"table": f"{name.lower()}_twin", "__module__": __name__})
        twin.sync_enabled = False
        make_tables(made, twin)
        made.twin = twin
        return made

    def register(self, sync: Any) -> int:
        """Have the sync look at every row that its model has; how many these are."""
        if issubclass(sync, ModelSync):
            rows = sync.django_model._base_manager.using(self.shop.alias)
            keys = list(rows.values_list("pk", flat=True))
            sync.register(keys)
            return len(keys)
        with Session(self.engine) as session, session.begin():
            keys = list(session.scalars(select(Gauge.number)))
            sync.register(session, keys)
        return len(keys)

    def store(self, storage: str) -> None:
        """As if this class had been deployed."""
        for sync in self.syncs:
            sync.sync_storage = storage
            sync.forget()

    def write_files(self) -> Path:
        """By the commands that users type; the connector then runs."""
        folder = self.cdc.folder
        assert self.cdc.command("sync", "pipeline", "--prefix", self.cdc.prefix, "--folder", str(folder)) == 0
        connector = folder / f"{self.cdc.prefix}.connector.json"
        document = json.loads(connector.read_text(encoding="utf-8"))
        document["config"]["heartbeat.interval.ms"] = "1000"
        connector.write_text(json.dumps(document), encoding="utf-8")
        for sync in self.syncs:
            self.edit(self.file_of(sync), lambda _: None)
        return connector

    def file_of(self, sync: type[AnySync]) -> Path:
        return self.cdc.folder / f"{sync.__name__.lower()}.yaml"

    def edit(self, file: Path, change: Callable[[dict[str, Any]], None], to: Path | None = None) -> None:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) | QUICK
        change(document)
        (to or file).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def feed(self, file: Path) -> None:
        run_pipeline(load_pipeline(file), once=True, spark=self.cdc.spark, say=lambda _: None)

    def compare(self, sync: Any, table: str) -> None:
        """With the twin: one round over an empty table has what the database has now, as rounds send it."""
        client, twin = sync.open_clickhouse(), sync.twin
        client.command(f"TRUNCATE TABLE {twin.table}")
        rows = self.register(twin)
        twin.sync_batch_from_storage()
        columns = ", ".join(f"`{name}`" for name in sync.declaration().columns)
        found = f"SELECT {columns} FROM {table} FINAL"
        wanted = f"SELECT {columns} FROM {twin.table} FINAL"
        lost, strange = client.query(f"{wanted} EXCEPT {found}"), client.query(f"{found} EXCEPT {wanted}")
        told = f"{len(lost)} lost or old {lost[:2]}, {len(strange)} strange {strange[:2]}"
        assert (lost, strange) == ([], []), f"{table}: not what the database has: {told}"
        assert client.query(f"SELECT count() FROM {table} FINAL") == [(rows,)]
        if sync.is_by_cdc():
            found = verify(sync)
            assert (found.is_clean, found.rows) == (True, rows)


@pytest.fixture
def setup(postgres_url, clickhouse, database, make_cdc, monkeypatch) -> Iterator[SyncSetup]:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "the_tests_settings")
    registered = core._registered
    known = list(registered)
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    settings = read_settings({"CLICKHOUSE_DATABASES": {"default": address}})
    monkeypatch.setattr(sources, "_configured", {"source": postgres_url, "settings": settings})
    engine = create_engine(postgres_url)
    with open_shop(postgres_url, address) as shop:
        with connections[shop.alias].schema_editor() as editor:
            editor.create_model(Sample)
        with connections[shop.alias].cursor() as cursor:
            cursor.execute("CREATE SCHEMA sales")
            Base.metadata.create_all(engine)
            for table in ("sync_shop_order", "sync_shop_seat", "sync_shop_sample", "sales.gauges"):
                cursor.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        # The shop's own syncs would only be in the way of the writers.
        monkeypatch.setattr(core, "_registered", [])
        yield SyncSetup(shop, make_cdc(), engine)
    engine.dispose()
    registered[:] = known


SAMPLES = """
INSERT INTO sync_shop_sample (small, large, ratio, price, text, "Short 'one'", raw, day, at, ident, document, address,
                              flag, numbers, words)
SELECT i - 50, 9223372036854775807 - i, CASE WHEN i % 5 > 0 THEN i / 7.0 END, i * 123456789.0123456789,
    repeat('ü', i * 40), 'q"\\' || i, decode(repeat('00ff', i), 'hex'), date '1950-01-01' + i * 300,
    CASE WHEN i % 3 > 0 THEN timestamptz '1999-12-31 23:59:59.999999+02' + i * interval '1.000001 days' END,
    md5(i::text)::uuid, CASE WHEN i % 4 > 0 THEN jsonb_build_object('n', i, 'ä', ARRAY['"', null], 'x', 0.5) END,
    CASE WHEN i % 2 > 0 THEN ('10.0.0.' || i)::inet WHEN i % 4 > 0 THEN '2001:db8::1' END, i % 2 = 0,
    ARRAY[i, -i], ARRAY['', 'w' || i]
FROM generate_series(1, 100) i
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_sync_moves_from_rounds_to_the_pipeline_and_final_stays_what_the_database_has(
    setup, capsys, record_property
):
    seed = random.SystemRandom().randint(0, 1 << 32)
    record_property("seed", seed)
    print(f"seed {seed}")
    shop, cdc = setup.shop, setup.cdc
    # Rounds feed the tables, until some day.
    writer = Writer(shop.alias, seed)
    writer.execute(SAMPLES)
    for _ in range(60):
        writer.change()
    change_gauges(setup.engine, 1)
    for sync in setup.syncs:
        setup.register(sync)
        sync.sync_batch_from_storage()
    # The connector runs first, then the rounds drain what came before it, then the new class is deployed.
    setup.store("cdc")
    connector = setup.write_files()
    setup.store("outbox")
    assert cdc.command("cdc", "apply", str(connector)) == 0
    for order in writer.some(Order, 3):
        order.delete(using=shop.alias)
    for sync in setup.syncs:
        sync.sync_batch_from_storage()
    client = setup.orders.open_clickhouse()
    client.command("CREATE TABLE orders_defect AS orders")
    client.command("INSERT INTO orders_defect SELECT * FROM orders")
    setup.store("cdc")
    assert run_command(["sync", "apply"]) == 0
    with writing(shop.alias, seed, 4.0):
        setup.feed(setup.file_of(setup.orders))
    writer.execute("UPDATE sync_shop_sample SET text = text || 'x', at = NULL WHERE id % 7 = 0")
    writer.execute("DELETE FROM sync_shop_sample WHERE id % 11 = 0")
    change_gauges(setup.engine, 201)
    assert shop.waiting(setup.orders) == shop.waiting(setup.gauges) == [], "a change was captured"
    # A round that hung since before the switch comes at last: it has an older state and loses.
    last = writer.some(Order)[0]
    late = f"INSERT INTO orders (id, note, _version) VALUES ({last.pk}, 'late', toUInt64(now()) * 1000000)"
    client.command(late)
    cdc.wait_for_kafka("UPDATE sync_shop_seat SET taken = NOT taken")
    for sync in setup.syncs:
        setup.feed(setup.file_of(sync))
        setup.compare(sync, sync.table)
    assert client.query("SELECT min(_version) >= pow(2, 62) FROM orders FINAL") == [(1,)]
    # Rounds are not let back to this table.
    setup.store("outbox")
    with pytest.raises(Exception, match="a pipeline feeds it"):
        setup.orders.sync_batch_from_storage()
    # Without what is added to the versions, the rows of the rounds would cover those of the log.
    defective = cdc.folder / "defect.yaml"
    setup.edit(setup.file_of(setup.orders), lower_versions, defective)
    client.command("ALTER TABLE orders_defect ADD COLUMN _batch_id UUID")
    client.command("ALTER TABLE orders_defect MODIFY SETTING non_replicated_deduplication_window = 1200")
    setup.feed(defective)
    with pytest.raises(AssertionError, match="not what the database has"):
        setup.compare(setup.orders, "orders_defect")


def lower_versions(document: dict[str, Any]) -> None:
    """The defect: a change's version is its bare offset."""
    document["pipeline"] = "defect"
    document["shape"]["columns"]["oncehouse_version"]["sql"] = "_version"
    document["tables"][0]["name"] = "orders_defect"
    document["ledger"] = {"catalog": "sqlite:///defect/catalog.db", "files": "defect/files"}
