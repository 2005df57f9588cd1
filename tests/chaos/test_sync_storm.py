"""Model sync while everything happens at once: writers of every kind, kill -9, Redis restarted, ClickHouse failing.

At rest `FINAL` equals the database. The same storm with a defect of the old tool put in has to be noticed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncehouse.devstack.faults import AnswerError, DropAnswer
from oncehouse.devstack.proxy import FaultProxy
from oncehouse.sync.redis_storage import RedisStorage
from sync_jobs import lose_while_away, see_inserts, start_job
from sync_world import Shop, assert_equal, change, open_synced_shop

from django.db import IntegrityError, OperationalError, connections, transaction  # isort: skip - after the settings of sync_world
from django.db.models import F

from sync_shop.clickhouse_models import CustomerSync, GiftOrderSync, OrderSync, SeatSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Seat, Tag

CHANGED = {
    "CustomerSync": {"sync_delay": 0, "sync_lease": 1, "sync_batch_size": 50},
    "OrderSync": {"sync_delay": 0, "sync_lease": 1, "sync_storage": "redis"},
    "GiftOrderSync": {"sync_delay": 0, "sync_lease": 1},
    "SeatSync": {"sync_delay": 0, "sync_lease": 1, "engine": "collapsing"},
}


CHANGEABLE = ("sync_delay", "sync_lease", "sync_batch_size", "sync_storage", "engine")


class Writer:
    """One thread's worth of changes of every kind, drawn from a seed."""

    def __init__(self, alias: str, seed: int) -> None:
        self.alias = alias
        self.dice = random.Random(seed)
        self.kinds: list[Callable[[], Any]] = [
            self.create, self.create, self.bulk_create, self.save, self.update, self.bulk_update, self.tag, self.tag,
            self.move_line, self.delete, self.delete_many, self.delete_customer, self.raw, self.take_seats,
            self.take_seats, self.move_seats, self.give, self.give_up, self.give_up_partly,
        ]  # fmt: skip

    def some(self, model: Any, count: int = 1) -> list[Any]:
        found = list(model._base_manager.using(self.alias).order_by("pk")[:200])
        return self.dice.sample(found, min(count, len(found)))

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    self.dice.choice(self.kinds)()
                except (IntegrityError, OperationalError):
                    continue  # two writers in each other's way; the database has taken one back
        finally:
            connections.close_all()

    def create(self) -> None:
        with transaction.atomic(using=self.alias):
            customer = Customer.objects.using(self.alias).create(name=f"c{self.dice.random()}")
            order = Order.objects.using(self.alias).create(customer=customer, total=self.dice.randrange(100))
            Line.objects.using(self.alias).create(order=order, amount=1)

    def bulk_create(self) -> None:
        for customer in self.some(Customer):
            with transaction.atomic(using=self.alias):
                if Customer.objects.using(self.alias).select_for_update().filter(pk=customer.pk).exists():
                    Order.objects.using(self.alias).bulk_create([Order(customer=customer) for _ in range(3)])

    def save(self) -> None:
        for order in self.some(Order):
            Order._base_manager.using(self.alias).filter(pk=order.pk).update(total=F("total") + 1)
            with transaction.atomic(using=self.alias):
                found = Order._base_manager.using(self.alias).select_for_update().filter(pk=order.pk).first()
                if found is not None:
                    found.note = str(self.dice.random())
                    found.save()

    def update(self) -> None:
        Customer.objects.using(self.alias).filter(name__contains=str(self.dice.randrange(10))).update(
            vip=self.dice.random() < 0.5
        )

    def bulk_update(self) -> None:
        people = self.some(Customer, 5)
        for one in people:
            one.name = f"b{self.dice.random()}"
        Customer.objects.using(self.alias).bulk_update(people, ["name"])

    def tag(self) -> None:
        tags = self.some(Tag, 3)
        for order in self.some(Order):
            with transaction.atomic(using=self.alias):
                if Order._base_manager.using(self.alias).filter(pk=order.pk).select_for_update().exists():
                    self.dice.choice([order.tags.add, order.tags.remove])(*tags)
                    if self.dice.random() < 0.2:
                        order.tags.set(tags[:1])

    def move_line(self) -> None:
        for line, order in zip(self.some(Line), self.some(Order), strict=False):
            with transaction.atomic(using=self.alias):
                if Order._base_manager.using(self.alias).filter(pk=order.pk).select_for_update().exists():
                    Line.objects.using(self.alias).filter(pk=line.pk).update(order=order)

    def delete(self) -> None:
        for order in self.some(Order):
            order.delete()

    def delete_many(self) -> None:
        Seat.objects.using(self.alias).filter(number=self.dice.randrange(8)).delete()

    def delete_customer(self) -> None:
        for customer in self.some(Customer):
            with transaction.atomic(using=self.alias):
                Customer.objects.using(self.alias).select_for_update().filter(pk=customer.pk).first()
                customer.delete()

    def raw(self) -> None:
        keys = [one.pk for one in self.some(Customer, 3)]
        with transaction.atomic(using=self.alias), connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE sync_shop_customer SET vip = NOT vip WHERE id = ANY(%s)", [keys])
            CustomerSync.register(keys)

    def take_seats(self) -> None:
        seats = [
            Seat(hall=hall, number=self.dice.randrange(8), taken=self.dice.random() < 0.5) for hall in "ab"
        ]
        Seat.objects.using(self.alias).bulk_create(
            seats, update_conflicts=True, unique_fields=["hall", "number"], update_fields=["taken"]
        )

    def move_seats(self) -> None:
        """Keys that change."""
        seats = Seat.objects.using(self.alias).filter(hall="a", number=self.dice.randrange(8))
        seats.update(number=self.dice.randrange(8, 16))

    def give(self) -> None:
        """Rows that are spread over the tables of a child and its parent."""
        gifts = GiftOrder._base_manager.using(self.alias)
        for customer in self.some(Customer):
            gifts.create(customer=customer, greeting="hi")
        gifts.filter(pk__in=[gift.pk for gift in self.some(GiftOrder, 2)]).update(
            greeting="ho", note=str(self.dice.random())
        )

    def give_up(self) -> None:
        with transaction.atomic(using=self.alias):
            self.update()
            self.create()
            transaction.set_rollback(True, using=self.alias)

    def give_up_partly(self) -> None:
        with transaction.atomic(using=self.alias):
            self.create()
            with transaction.atomic(using=self.alias):
                self.update()
                transaction.set_rollback(True, using=self.alias)


@pytest.fixture
def shop(postgres_url, clickhouse, database, redis) -> Iterator[Shop]:
    settings = {"CLICKHOUSE_REDIS_CONFIG": {"port": redis.place.ports["redis"], "prefix": f"{database}:"}}
    originals = {
        sync: {name: getattr(sync, name) for name in CHANGEABLE}
        for sync in (CustomerSync, OrderSync, GiftOrderSync, SeatSync)
    }
    with open_synced_shop(postgres_url, clickhouse, database, **settings) as shop:
        shop.settings = settings
        for sync in originals:
            sync.open_clickhouse().command(f"DROP TABLE {sync.declaration().table} SYNC")
            change(sync, CHANGED[sync.__name__])
            shop.make_tables(sync)
        Tag.objects.using(shop.alias).bulk_create([Tag(name=str(n)) for n in range(5)])
        yield shop
        for sync, attributes in originals.items():
            for name, value in attributes.items():
                setattr(sync, name, value)
            sync.forget()


@contextmanager
def writing(alias: str, seed: int) -> Iterator[None]:
    stop = threading.Event()
    writers = [threading.Thread(target=Writer(alias, seed * 10 + n).run, args=(stop,)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def weather(
    shop: Shop, stack: Any, clickhouse: Any, database: str, url: str, seed: int, *defects: str
) -> None:
    """Writers at work, and meanwhile: kills, a Redis that goes and comes back, inserts that fail or seem to."""
    dice = random.Random(seed)
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        address = {"default": {"db_url": proxy.url, "db_name": database}}
        settings = {**shop.settings, "CLICKHOUSE_DATABASES": address}
        with start_job(url=url, settings=settings, syncs=CHANGED, defects=defects) as job:
            job("work")
            with writing(shop.alias, seed):
                for turn in range(6):
                    fault = dice.choice([AnswerError(), AnswerError(code=241), DropAnswer()])
                    proxy.inject(fault, times=dice.randrange(1, 3))
                    see_inserts(proxy, dice.randrange(3, 9))
                    if turn == 2:
                        stack.kill("redis")
                        time.sleep(0.5)
                        stack.start("redis")
                    job("kill")
                    job("work")
                job("kill")
            proxy.take_back()
            job("drain")
        assert sum(proxy.happened.values()) >= 6
    assert_equal(shop)


@pytest.mark.parametrize("seed", [1, 2])
def test_at_rest_final_equals_the_database(
    shop, stack, clickhouse, database, postgres_url, seed, record_property
):
    record_property("seed", seed)
    weather(shop, stack, clickhouse, database, postgres_url, seed)
    assert Customer.objects.using(shop.alias).count() > 20


@pytest.mark.parametrize("defect", ["ignore_deletes", "remove_by_key"])
def test_the_storm_notices_the_defects_of_the_old_tool(
    shop, stack, clickhouse, database, postgres_url, defect
):
    with pytest.raises(AssertionError, match="not what the database has"):
        weather(shop, stack, clickhouse, database, postgres_url, 3, defect)


def test_the_storm_notices_a_capture_that_tells_redis_alone_after_the_commit(
    shop, stack, clickhouse, database, postgres_url, monkeypatch
):
    def tell_later(storage: RedisStorage, writer: Any, *told: Any) -> None:
        transaction.on_commit(lambda: lose_while_away(storage, writer, *told), using=shop.alias)

    monkeypatch.setattr(RedisStorage, "register", tell_later)
    with pytest.raises(AssertionError, match="orders: not what the database has"):
        weather(shop, stack, clickhouse, database, postgres_url, 4)


def test_the_storm_notices_a_lock_that_a_killed_process_never_frees(
    shop, stack, clickhouse, database, postgres_url
):
    with pytest.raises(AssertionError, match=r"drain failed|the syncs stand still"):
        weather(shop, stack, clickhouse, database, postgres_url, 5, "never_free")


POINTS = ("sync.listed", "sync.read", "sync.confirmed", "sync.inserted", "sync.removed")


@pytest.mark.parametrize("engine", ["replacing", "append", "collapsing"])
def test_a_process_killed_at_any_step_leaves_what_the_next_one_needs(
    shop, clickhouse, database, postgres_url, engine
):
    attributes: dict[str, Any] = {"sync_lease": 1}
    if engine != "replacing":
        attributes["engine"] = engine
        CustomerSync.open_clickhouse().command("DROP TABLE customers SYNC")
        change(CustomerSync, attributes)
        shop.make_tables(CustomerSync)
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    settings = {**shop.settings, "CLICKHOUSE_DATABASES": {"default": address}}
    people = Customer.objects.using(shop.alias)
    with start_job(url=postgres_url, settings=settings, syncs={"CustomerSync": attributes}) as job:
        for point in POINTS:
            doomed = people.create(name=f"{point} deleted")
            people.create(name=point)
            job(f"crash {point}")
            doomed.delete()
            people.filter(name__in=POINTS).update(vip=True)
            job("drain")
            assert shown(shop, engine) == sorted(people.values_list("name", "vip")), point
            assert shop.waiting(CustomerSync) == []


def shown(shop: Shop, engine: str) -> list[tuple[Any, ...]]:
    if engine != "append":
        return shop.rows(CustomerSync, "name, vip")
    rows = shop.rows(CustomerSync, "id, _version, name, vip, _deleted", final=False)
    assert len(rows) == len({row[:2] for row in rows}), "a batch was taken twice"
    return sorted({row[0]: row[2:4] for row in rows if not row[4]}[key] for key in _alive(rows))


def _alive(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Keys whose newest row is no deletion; the rows are in order of key and version."""
    newest = {row[0]: row[4] for row in rows}
    return [key for key, deleted in newest.items() if not deleted]
