"""A shop's day at random: every way in which Django changes rows, in small transactions.

The same seed on an empty database makes the same changes. What is here knows nothing of ClickHouse, but for raw SQL:
that goes past Django, so its keys are registered by hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection, transaction

from shop.clickhouse_models import OrderSync
from shop.models import Customer, Line, Order, Tag

COUNTRIES = ("at", "br", "fr", "jp", "ke")
TAGS = ("express", "gift", "repeat", "sale")
PRODUCTS = ("bowl", "chair", "lamp", "rug", "shelf")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


class PaymentRefusedError(Exception):
    """Raised inside of a transaction, which is rolled back for it."""


def open_shop(rng: random.Random) -> None:
    Tag.objects.bulk_create(Tag(name=name) for name in TAGS)
    join_customers(rng, 40)
    for _ in range(20):
        place_order(rng)


def make_change(rng: random.Random) -> str:
    """One change of some kind; its name."""
    kinds = list(WEIGHTS)
    (change,) = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    change(rng)
    return change.__name__


def place_order(rng: random.Random) -> None:
    """Saves, `bulk_create` and a many-to-many table, in one transaction."""
    with transaction.atomic():
        order = Order.objects.create(
            customer_id=choose(rng, Customer.objects),
            placed_at=MONDAY + timedelta(minutes=rng.randrange(7 * 24 * 60)),
        )
        Line.objects.bulk_create(make_line(rng, order) for _ in range(rng.randint(1, 4)))
        order.tags.set(choose_tags(rng))


def make_line(rng: random.Random, order: Order) -> Line:
    price = Decimal(rng.randint(100, 20_000)) / 100
    return Line(order=order, product=rng.choice(PRODUCTS), quantity=rng.randint(1, 5), price=price)


def add_line(rng: random.Random) -> None:
    """A save of another model, which the sync of orders watches."""
    make_line(rng, Order.objects.get(pk=choose(rng, Order.objects))).save()


def drop_line(rng: random.Random) -> None:
    Line.objects.get(pk=choose(rng, Line.objects)).delete()


def change_prices(rng: random.Random) -> None:
    """`bulk_update`."""
    lines = list(Line.objects.filter(order_id=choose(rng, Order.objects)))
    for line in lines:
        line.price += 1
    Line.objects.bulk_update(lines, ["price"])


def ship_orders(rng: random.Random) -> None:
    """`QuerySet.update` of many rows."""
    day = MONDAY + timedelta(days=rng.randrange(7))
    placed = Order.objects.filter(placed_at__range=(day, day + timedelta(hours=2)))
    placed.update(status="shipped")


def set_tags(rng: random.Random) -> None:
    Order.objects.get(pk=choose(rng, Order.objects)).tags.set(choose_tags(rng))


def tag_orders(rng: random.Random) -> None:
    """The same table from its other side."""
    tag = Tag.objects.get(pk=choose(rng, Tag.objects))
    change = rng.choice([tag.orders.add, tag.orders.remove])
    change(*(choose(rng, Order.objects) for _ in range(3)))


def remove_order(rng: random.Random) -> None:
    """A soft delete."""
    Order.objects.filter(pk=choose(rng, Order.objects)).update(removed=True)


def restore_order(rng: random.Random) -> None:
    removed = Order.objects.filter(removed=True)
    if removed.exists():
        order = removed.get(pk=choose(rng, removed))
        order.removed = False
        order.save(update_fields=["removed"])


def delete_order(rng: random.Random) -> None:
    """With its lines and tags, by cascade."""
    Order.objects.get(pk=choose(rng, Order.objects)).delete()


def join_customers(rng: random.Random, count: int = 3) -> None:
    """`bulk_create`; who is known already moves to another country."""
    numbers = rng.sample(range(500), count)
    Customer.objects.bulk_create(
        (
            Customer(name=f"Customer {number}", email=f"{number}@example.org", country=rng.choice(COUNTRIES))
            for number in numbers
        ),
        update_conflicts=True,
        unique_fields=["email"],
        update_fields=["country"],
    )


def move_customer(rng: random.Random) -> None:
    customer = Customer.objects.get(pk=choose(rng, Customer.objects))
    customer.country = rng.choice(COUNTRIES)
    customer.save()


def delete_customer(rng: random.Random) -> None:
    """With all orders, and their lines and tags, by cascade; a `QuerySet.delete`."""
    if Customer.objects.count() > 20:
        Customer.objects.filter(pk=choose(rng, Customer.objects)).delete()


def rename_tag(rng: random.Random) -> None:
    tag = Tag.objects.get(pk=choose(rng, Tag.objects))
    tag.name = tag.name.swapcase()
    tag.save()


def discount_by_raw_sql(rng: random.Random) -> None:
    """Django does not see what raw SQL changes, so the keys are named, in the same transaction."""
    keys = [choose(rng, Order.objects) for _ in range(3)]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE shop_line SET price = price * 0.9 WHERE order_id = ANY(%s)", [keys])
        OrderSync.register(keys)


def roll_back(rng: random.Random) -> None:
    """Changes of every model that never happened."""
    try:
        with transaction.atomic():
            place_order(rng)
            join_customers(rng)
            rename_tag(rng)
            Order.objects.filter(pk=choose(rng, Order.objects)).delete()
            raise PaymentRefusedError  # noqa: TRY301 - it has to go through `atomic`
    except PaymentRefusedError:
        pass


def choose(rng: random.Random, rows: Any) -> int:
    return rng.choice(list(rows.order_by("pk").values_list("pk", flat=True)))


def choose_tags(rng: random.Random) -> list[int]:
    keys = list(Tag.objects.order_by("pk").values_list("pk", flat=True))
    return rng.sample(keys, rng.randint(0, 2))


WEIGHTS: dict[Callable[[random.Random], None], int] = {
    place_order: 30,
    add_line: 8,
    drop_line: 6,
    change_prices: 8,
    ship_orders: 3,
    set_tags: 8,
    tag_orders: 4,
    remove_order: 8,
    restore_order: 4,
    delete_order: 4,
    join_customers: 4,
    move_customer: 6,
    delete_customer: 1,
    rename_tag: 1,
    discount_by_raw_sql: 4,
    roll_back: 5,
}
