"""A shop's day at random: every way in which SQLAlchemy changes rows, in small transactions. `python traffic.py`.

The same seed on an empty database makes the same changes. What is here knows nothing of ClickHouse, but for texts of
SQL: those go past SQLAlchemy, so their keys are registered by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from textwrap import fill
from typing import Any

from sqlalchemy import create_engine, delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from models import DATABASE, Customer, Line, Order, Tag
from syncs import OrderSync

COUNTRIES = ("at", "br", "fr", "jp", "ke")
TAGS = ("express", "gift", "repeat", "sale")
PRODUCTS = ("bowl", "chair", "lamp", "rug", "shelf")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
# Each change has an event loop of its own, so connections are not kept.
ASYNC_ENGINE = create_async_engine(DATABASE, poolclass=NullPool)


class PaymentRefusedError(Exception):
    """Raised inside of a transaction, which is rolled back for it."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Change rows of the shop at random, in every way.")
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    engine = create_engine(DATABASE)
    with Session(engine) as session:
        if session.scalar(select(func.count()).select_from(Tag)) == 0:
            open_shop(rng, session)
        made: Counter[str] = Counter()
        for number in range(1, asked.changes + 1):
            made[make_change(rng, session)] += 1
            if number % max(1, asked.changes // 4) == 0:
                print(f"{number:,} of {asked.changes:,} changes", flush=True)
    print(fill(", ".join(f"{kind}={count}" for kind, count in sorted(made.items())), 80))


def open_shop(rng: random.Random, session: Session) -> None:
    session.add_all(Tag(name=name) for name in TAGS)
    join_customers(rng, session, 40)
    for _ in range(20):
        place_order(rng, session)
    session.commit()


def make_change(rng: random.Random, session: Session) -> str:
    """One change of some kind, in a transaction of its own; its name."""
    kinds = list(WEIGHTS)
    (change,) = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    change(rng, session)
    session.commit()
    return change.__name__


def place_order(rng: random.Random, session: Session) -> None:
    """A flush of a new order with its lines and rows of a `secondary` table."""
    order = Order(
        customer_id=choose(rng, session, Customer.id),
        placed_at=MONDAY + timedelta(minutes=rng.randrange(7 * 24 * 60)),
        lines=[make_line(rng) for _ in range(rng.randint(1, 4))],
        tags=choose_tags(rng, session),
    )
    session.add(order)
    session.flush()


def make_line(rng: random.Random) -> Line:
    price = Decimal(rng.randint(100, 20_000)) / 100
    return Line(product=rng.choice(PRODUCTS), quantity=rng.randint(1, 5), price=price)


def add_line(rng: random.Random, session: Session) -> None:
    """A change of another class, which the sync of orders watches."""
    order = choose_order(rng, session)
    order.lines.append(make_line(rng))


def drop_line(rng: random.Random, session: Session) -> None:
    """An orphan, which SQLAlchemy deletes."""
    order = choose_order(rng, session)
    if order.lines:
        order.lines.pop()


def repeat_lines(rng: random.Random, session: Session) -> None:
    """`INSERT … SELECT`."""
    of_one = select(Line.order_id, Line.product, 1, Line.price).where(
        Line.order_id == choose(rng, session, Order.id)
    )
    session.execute(insert(Line).from_select(["order_id", "product", "quantity", "price"], of_one))


def change_prices(rng: random.Random, session: Session) -> None:
    """An UPDATE by primary key of many rows."""
    lines = session.execute(
        select(Line.id, Line.price).where(Line.order_id == choose(rng, session, Order.id))
    )
    if changed := [{"id": key, "price": price + 1} for key, price in lines]:
        session.execute(update(Line), changed)


def ship_orders(rng: random.Random, session: Session) -> None:
    """An UPDATE with a condition."""
    day = MONDAY + timedelta(days=rng.randrange(7))
    placed = Order.placed_at.between(day, day + timedelta(hours=2))
    session.execute(update(Order).where(placed).values(status="shipped"))


def set_tags(rng: random.Random, session: Session) -> None:
    order = choose_order(rng, session)
    order.tags = choose_tags(rng, session)


def tag_order(rng: random.Random, session: Session) -> None:
    """The `secondary` table from its other side."""
    tag = session.get_one(Tag, choose(rng, session, Tag.id))
    order = choose_order(rng, session)
    change = tag.orders.remove if order in tag.orders else tag.orders.append
    change(order)


def remove_order(rng: random.Random, session: Session) -> None:
    """A soft delete."""
    key = choose(rng, session, Order.id)
    session.execute(update(Order).where(Order.id == key).values(removed=True))


def restore_order(rng: random.Random, session: Session) -> None:
    keys = session.scalars(select(Order.id).where(Order.removed).order_by(Order.id)).all()
    if keys:
        order = session.get_one(Order, rng.choice(keys))
        order.removed = False


def delete_order(rng: random.Random, session: Session) -> None:
    """With its lines and tags, by the session's cascade."""
    session.delete(choose_order(rng, session))


def delete_lines(rng: random.Random, session: Session) -> None:
    """A DELETE with a condition."""
    session.execute(
        delete(Line).where(Line.order_id == choose(rng, session, Order.id), Line.product == "rug")
    )


def join_customers(rng: random.Random, session: Session, count: int = 3) -> None:
    """`INSERT … ON CONFLICT`: who is known already moves to another country."""
    new = postgresql.insert(Customer).values(
        [
            {
                "name": f"Customer {number}",
                "email": f"{number}@example.org",
                "country": rng.choice(COUNTRIES),
            }
            for number in rng.sample(range(500), count)
        ]
    )
    session.execute(
        new.on_conflict_do_update(index_elements=["email"], set_={"country": new.excluded.country})
    )


def move_customer(rng: random.Random, session: Session) -> None:
    """In an async session."""
    key, country = choose(rng, session, Customer.id), rng.choice(COUNTRIES)

    async def move() -> None:
        async with AsyncSession(ASYNC_ENGINE) as other, other.begin():
            customer = await other.get_one(Customer, key)
            customer.country = country

    asyncio.run(move())


def delete_customer(rng: random.Random, session: Session) -> None:
    """With all orders, and their lines and tags, by the session's cascade."""
    session.delete(session.get_one(Customer, choose(rng, session, Customer.id)))


def rename_tag(rng: random.Random, session: Session) -> None:
    tag = session.get_one(Tag, choose(rng, session, Tag.id))
    tag.name = tag.name.swapcase()


def discount_by_text(rng: random.Random, session: Session) -> None:
    """SQLAlchemy does not see what a text of SQL changes, so the keys are named, in the same transaction."""
    keys = [choose(rng, session, Order.id) for _ in range(3)]
    session.execute(text("UPDATE lines SET price = price * 0.9 WHERE order_id = ANY(:keys)"), {"keys": keys})
    OrderSync.register(session, keys)


def roll_back(rng: random.Random, session: Session) -> None:
    """Changes of every class that never happened."""
    try:
        place_order(rng, session)
        join_customers(rng, session)
        rename_tag(rng, session)
        delete_order(rng, session)
        session.flush()
        raise PaymentRefusedError  # noqa: TRY301 - as it would come from anywhere below
    except PaymentRefusedError:
        session.rollback()


def choose(rng: random.Random, session: Session, key: Any) -> int:
    return rng.choice(session.scalars(select(key).order_by(key)).all())


def choose_order(rng: random.Random, session: Session) -> Order:
    return session.get_one(Order, choose(rng, session, Order.id))


def choose_tags(rng: random.Random, session: Session) -> list[Tag]:
    tags = session.scalars(select(Tag).order_by(Tag.id)).all()
    return rng.sample(tags, rng.randint(0, 2))


WEIGHTS: dict[Callable[[random.Random, Session], None], int] = {
    place_order: 30,
    add_line: 8,
    drop_line: 4,
    repeat_lines: 2,
    change_prices: 8,
    ship_orders: 3,
    set_tags: 8,
    tag_order: 4,
    remove_order: 8,
    restore_order: 4,
    delete_order: 4,
    delete_lines: 2,
    join_customers: 4,
    move_customer: 6,
    delete_customer: 1,
    rename_tag: 1,
    discount_by_text: 4,
    roll_back: 5,
}

if __name__ == "__main__":
    main()
