"""Changes of every kind to the shop of Django models, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from synced_shop import Shop

from django.core.exceptions import ObjectDoesNotExist  # isort: skip
from django.db import IntegrityError, OperationalError, connections, transaction  # isort: skip - after the settings of synced_shop
from django.db.models import F

from sync_shop.clickhouse_models import CustomerSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Seat, Tag


class Writer:
    """One thread's worth of changes of every kind, drawn from a seed."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self.alias = shop.alias
        self.dice = random.Random(seed)
        self.kinds: list[Callable[[], Any]] = [
            self.create, self.create, self.bulk_create, self.save, self.update, self.bulk_update, self.tag, self.tag,
            self.move_line, self.delete, self.delete_many, self.delete_customer, self.raw, self.take_seats,
            self.take_seats, self.move_seats, self.give, self.give_up, self.give_up_partly,
        ]  # fmt: skip

    def some(self, model: Any, count: int = 1) -> list[Any]:
        found = list(model._base_manager.using(self.alias).order_by("pk")[:200])
        return self.dice.sample(found, min(count, len(found)))

    def write(self) -> None:
        # Two writers in each other's way: the database has taken one back.
        # What another thread has deleted meanwhile is missed by Django too, when it follows a row to its parent.
        with suppress(IntegrityError, OperationalError, ObjectDoesNotExist):
            self.dice.choice(self.kinds)()

    def close(self) -> None:
        """In the thread that wrote."""
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


def add_rows(shop: Shop, count: int) -> None:
    """And five tags."""
    rows = Customer.objects.using(shop.alias)
    Tag.objects.using(shop.alias).bulk_create([Tag(name=str(n)) for n in range(5)])
    people = rows.bulk_create([Customer(name=f"c0.{n:04}") for n in range(count)])
    orders = Order.objects.using(shop.alias).bulk_create([Order(customer=one) for one in people])
    Line.objects.using(shop.alias).bulk_create([Line(order=one, amount=1) for one in orders])
    for one in people[: count // 4]:
        GiftOrder.objects.using(shop.alias).create(customer=one, greeting="g")
    Seat.objects.using(shop.alias).bulk_create([Seat(hall="old ä", number=n) for n in range(count)])
