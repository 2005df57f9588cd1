"""Changes of every kind to the stall of SQLAlchemy classes, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, InvalidRequestError, SAWarning
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from sync_stall import Boss, Buyer, BuyerSync, Chair, GiftSale, Line, Sale, Stall, Tag


class Writer:
    """One thread's worth of changes of every kind, drawn from a seed."""

    def __init__(self, stall: Stall, seed: int) -> None:
        self.stall = stall
        self.dice = random.Random(seed)
        self.kinds: list[Callable[[Session], Any]] = [
            self.create, self.create, self.change, self.update, self.move, self.tag, self.take_chairs, self.delete,
            self.delete_many, self.bulk, self.raw, self.move_chairs, self.give, self.give_up, self.give_up_partly,
        ]  # fmt: skip

    def write(self) -> None:
        # Two writers in each other's way: the database, or the session, has taken one back.
        with (
            suppress(DBAPIError, StaleDataError, InvalidRequestError, SAWarning),
            self.stall.session() as session,
        ):
            self.dice.choice(self.kinds)(session)
            session.commit()

    def close(self) -> None:
        """Sessions close their own."""

    def some(self, session: Session, model: Any) -> list[Any]:
        found = session.scalars(select(model).limit(50)).all()
        return self.dice.sample(list(found), min(1, len(found)))

    def create(self, session: Session) -> None:
        session.add(Buyer(name=f"c{self.dice.random()}", sales=[Sale(lines=[Line(amount=1)]), Sale()]))

    def change(self, session: Session) -> None:
        for sale in self.some(session, Sale):
            sale.remark = str(self.dice.random())

    def update(self, session: Session) -> None:
        session.execute(
            update(Buyer).where(Buyer.name.contains(str(self.dice.randrange(10)))).values(vip=~Buyer.vip)
        )

    def move(self, session: Session) -> None:
        for line, sale in zip(self.some(session, Line), self.some(session, Sale), strict=False):
            line.sale = sale

    def tag(self, session: Session) -> None:
        for sale, tag in zip(self.some(session, Sale), self.some(session, Tag), strict=False):
            sale.tags = [] if tag in sale.tags else [*sale.tags, tag]

    def take_chairs(self, session: Session) -> None:
        made = postgresql.insert(Chair)
        session.execute(
            made.on_conflict_do_update(
                index_elements=["hall", "number"], set_={"taken": made.excluded.taken}
            ),
            [{"hall": "a", "number": self.dice.randrange(8), "taken": self.dice.random() < 0.5}],
        )

    def delete(self, session: Session) -> None:
        for buyer in self.some(session, Buyer):
            session.delete(buyer)

    def delete_many(self, session: Session) -> None:
        session.execute(delete(Chair).where(Chair.number == self.dice.randrange(8)))

    def bulk(self, session: Session) -> None:
        session.execute(insert(Buyer), [{"name": f"b{self.dice.random()}"} for _ in range(3)])
        people = self.some(session, Buyer)
        session.execute(update(Buyer), [{"id": one.id, "vip": True} for one in people])

    def raw(self, session: Session) -> None:
        keys = [one.id for one in self.some(session, Buyer)]
        session.execute(text("UPDATE buyers SET vip = NOT vip WHERE id = ANY(:keys)"), {"keys": keys})
        BuyerSync.register(session, keys)

    def move_chairs(self, session: Session) -> None:
        """Keys that change."""
        chairs = update(Chair).where(Chair.number == self.dice.randrange(8))
        session.execute(chairs.values(number=self.dice.randrange(8, 16)))

    def give(self, session: Session) -> None:
        """Rows that are spread over the tables of a child and its parent."""
        for gift in self.some(session, GiftSale):
            gift.remark, gift.greeting = str(self.dice.random()), "ho"
        for buyer in self.some(session, Buyer):
            session.add(GiftSale(buyer_id=buyer.id, greeting="hi"))

    def give_up(self, session: Session) -> None:
        self.update(session)
        self.create(session)
        session.flush()
        session.rollback()

    def give_up_partly(self, session: Session) -> None:
        self.create(session)
        savepoint = session.begin_nested()
        self.update(session)
        session.flush()
        savepoint.rollback()


def add_rows(stall: Stall, count: int) -> None:
    """And five tags, and a few bosses."""
    with stall.session() as session:
        session.add_all([Tag(name=str(n)) for n in range(5)])
        session.add_all(
            Buyer(name=f"c0.{n:04}", sales=[Sale(lines=[Line(amount=n)]), GiftSale(greeting="g")])
            for n in range(count)
        )
        session.add_all(Boss(str(n)) for n in range(count // 12))
        session.add_all(Chair("old ä", n) for n in range(count))
        session.commit()
