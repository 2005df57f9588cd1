"""The shop of the example: what its three systems write, and what the Facts must hold, in plain Python.

Nothing here asks ClickHouse. The expected Facts are joined by dictionaries and a binary search, another way than
the transforms of `tables.sql` go.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

HOUR_MS = 3_600_000
START_MS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
COUNTRIES = ("at", "br", "ca", "de", "fr", "in", "jp", "ke")

LARGE = 8

Row = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Order:
    id: int
    time_ms: int
    customer: int
    quantity: int


@dataclass(frozen=True, kw_only=True)
class Payment:
    id: int
    time_ms: int
    order: int
    amount: int


@dataclass(frozen=True, kw_only=True)
class Customer:
    """A customer as it is from this time on."""

    id: int
    time_ms: int
    customer: int
    country: str


@dataclass(frozen=True, kw_only=True)
class Shop:
    orders: list[Order]
    payments: list[Payment]
    customers: list[Customer]
    hours: int


def make_shop(order_count: int, *, hours: int, seed: int) -> Shop:
    """Orders over some hours, many of one millisecond; payments up to five hours later; customers who move."""
    rng = random.Random(seed)
    people = max(10, order_count // 20)
    # In steps of 10 ms, so that several rows share a time.
    times = sorted(START_MS + rng.randrange(hours * HOUR_MS // 10) * 10 for _ in range(order_count))
    orders = [
        Order(id=at + 1, time_ms=time, customer=rng.randrange(people), quantity=rng.randint(1, 9))
        for at, time in enumerate(times)
    ]
    paid = sorted(
        (order.time_ms + rng.randint(1, 5 * HOUR_MS), order.id) for order in orders if rng.random() < 0.8
    )
    payments = [
        Payment(id=at + 1, time_ms=time, order=order, amount=rng.randint(1, 5000))
        for at, (time, order) in enumerate(paid)
    ]
    # One in ten customers is only known after a while: orders before that have no country.
    moves = sorted(
        (START_MS + (rng.randrange(hours * HOUR_MS) if person % 10 == 0 or again else 0), person)
        for person in range(people)
        for again in range(rng.randint(1, 3))
    )
    customers = [
        Customer(id=at + 1, time_ms=time, customer=person, country=rng.choice(COUNTRIES))
        for at, (time, person) in enumerate(moves)
    ]
    # Payments and what each system sends together come hours after the last order.
    return Shop(orders=orders, payments=payments, customers=customers, hours=hours + 8)


def expect_facts(shop: Shop) -> dict[str, list[Row]]:
    """The rows of every Fact table, sorted."""
    history: dict[int, list[Customer]] = defaultdict(list)
    for customer in shop.customers:
        history[customer.customer].append(customer)
    by_order = {
        order.id: (order, _country_at(history[order.customer], order.time_ms)) for order in shop.orders
    }
    daily: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    payments: list[Row] = []
    for payment in shop.payments:
        order, country = by_order[payment.order]
        payments.append((payment.id, payment.time_ms, order.id, country, order.quantity, payment.amount))
        daily[_day(payment.time_ms), country].append(payment.amount)
    return {
        "dwh.customers": sorted((person, rows[-1].country) for person, rows in history.items() if rows),
        "dwh.orders": [
            (order.id, order.time_ms, order.customer, country, order.quantity)
            for order, country in by_order.values()
        ],
        "dwh.payments": payments,
        "dwh.large": [
            (order.id, order.time_ms, country, order.quantity)
            for order, country in by_order.values()
            if order.quantity >= LARGE
        ],
        "dwh.daily": sorted(
            ((day, country, len(amounts), sum(amounts)) for (day, country), amounts in daily.items()),
            key=str,
        ),
    }


def _country_at(history: list[Customer], time_ms: int) -> str | None:
    """By the latest change that is not after the time."""
    at = bisect_right(history, time_ms, key=lambda change: change.time_ms)
    return history[at - 1].country if at else None


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")
