"""The books in SQLAlchemy's classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, delete, event, insert, text, update
from sqlalchemy.orm import Session

from sync_stall import (
    Buyer,
    BuyerSync,
    GiftSale,
    GiftSaleSync,
    Line,
    Sale,
    SaleSync,
    Stall,
    Tag,
    assert_equal,
)


class SqlAlchemyBooks:
    people, orders, gifts = BuyerSync, SaleSync, GiftSaleSync

    def __init__(self, stall: Stall) -> None:
        self._stall = stall
        self._current: Session | None = None

    @property
    def engine(self) -> Engine:
        return self._stall.engine

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._stall.session() as session, session.begin():
            before, self._current = self._current, session
            try:
                yield
            finally:
                self._current = before

    def savepoint(self) -> Any:
        return self._current.begin_nested()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        if self._current is not None:
            yield self._current
            self._current.flush()
            return
        with self._stall.session() as session, session.begin():
            yield session

    def _add(self, one: Any) -> Any:
        with self._session() as session:
            session.add(one)
            session.flush()
            return one.id

    def add_person(self, name: str, key: Any = None) -> Any:
        return self._add(Buyer(name=name, **({} if key is None else {"id": key})))

    def add_people(self, names: Sequence[str]) -> list[Any]:
        with self._session() as session:
            given = [{"name": name} for name in names]
            return list(
                session.scalars(insert(Buyer).returning(Buyer.id, sort_by_parameter_order=True), given)
            )

    def rename(self, key: Any, name: str) -> None:
        with self._session() as session:
            session.get(Buyer, key).name = name

    def rename_all(self, names: dict[Any, str]) -> None:
        with self._session() as session:
            session.execute(update(Buyer), [{"id": key, "name": name} for key, name in names.items()])

    def remove_person(self, key: Any) -> None:
        with self._session() as session:
            session.delete(session.get(Buyer, key))

    def honour(self, names: Sequence[str]) -> int:
        with self._session() as session:
            return session.execute(update(Buyer).where(Buyer.name.in_(names)).values(vip=True)).rowcount

    def remove_named(self, names: Sequence[str]) -> int:
        with self._session() as session:
            return session.execute(delete(Buyer).where(Buyer.name.in_(names))).rowcount

    def move_key(self, old: Any, new: Any) -> None:
        with self._session() as session:
            session.execute(update(Buyer).where(Buyer.id == old).values(id=new))

    def rename_raw(self, key: Any, name: str) -> None:
        with self._session() as session:
            stored = key if self.engine.dialect.name == "postgresql" else key.hex
            session.execute(
                text("UPDATE buyers SET name = :name WHERE id = :key"), {"name": name, "key": stored}
            )
            BuyerSync.register(session, [key])

    def add_order(self, person: Any) -> Any:
        return self._add(Sale(buyer_id=person))

    def add_gift(self, person: Any) -> Any:
        return self._add(GiftSale(buyer_id=person, greeting="hi"))

    def annotate(self, order: Any, note: str) -> None:
        with self._session() as session:
            session.get(Sale, order).remark = note

    def add_tag(self) -> Any:
        return self._add(Tag(name="t"))

    def tag(self, order: Any, tags: Sequence[Any]) -> None:
        with self._session() as session:
            session.get(Sale, order).tags = [session.get(Tag, tag) for tag in tags]

    def add_line(self, order: Any, amount: int) -> Any:
        return self._add(Line(sale_id=order, amount=amount))

    def move_line(self, line: Any, order: Any) -> None:
        with self._session() as session:
            session.get(Line, line).sale_id = order

    def move_lines(self, amount: int, order: Any) -> None:
        with self._session() as session:
            session.execute(update(Line).where(Line.amount == amount).values(sale_id=order))

    def move_lines_of(self, note: str, order: Any) -> None:
        with self._session() as session:
            session.execute(
                update(Line).where(Line.sale_id == Sale.id, Sale.remark == note).values(sale_id=order)
            )

    @contextmanager
    def before_lines_move(self, act: Callable[[], None]) -> Iterator[None]:
        done: list[str] = []

        def watch_statement(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
            if statement.startswith("UPDATE lines") and not done:
                done.append(statement)
                act()

        event.listen(self.engine, "before_cursor_execute", watch_statement)
        yield
        event.remove(self.engine, "before_cursor_execute", watch_statement)
        assert done

    def assert_equal(self) -> None:
        assert_equal(self._stall)
