"""A stall of SQLAlchemy classes on a fresh database, its syncs on a fresh ClickHouse database, and what both hold.

Buyers, sales, tags, soft deletes: declarative, dataclasses, imperative; keys of several columns; both inheritances.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Engine,
    ForeignKey,
    Integer,
    Interval,
    MetaData,
    Numeric,
    String,
    Table,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    mapped_column,
    registry,
    relationship,
)

from changed_syncs import change, make_tables
from oncehouse.sync import sqlalchemy as syncs
from oncehouse.sync.model import model_sync as core
from oncehouse.sync.sqlalchemy import ModelSync, sources
from oncehouse.sync.tables import create_tables

metadata = MetaData()
Identifier = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    metadata = metadata


class State(Enum):
    OPEN = "o"
    PAID = "p"


sale_tags = Table(
    "sale_tags",
    metadata,
    Column("sale_id", ForeignKey("sales.id"), nullable=False),
    Column("tag_id", ForeignKey("tags.id"), nullable=False),
)


class Buyer(Base):
    __tablename__ = "buyers"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str]
    vip: Mapped[bool] = mapped_column(default=False)
    born: Mapped[date | None]
    sales: Mapped[list[Sale]] = relationship(back_populates="buyer", cascade="all, delete-orphan")


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(Identifier, primary_key=True)
    name: Mapped[str]


class Sale(Base):
    __tablename__ = "sales"
    id: Mapped[int] = mapped_column(Identifier, primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), default="sale")
    buyer_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("buyers.id"))
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2), default=0)
    # The attribute has another name than the column.
    remark: Mapped[str | None] = mapped_column("note")
    details: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    took: Mapped[timedelta | None] = mapped_column(Interval)
    state: Mapped[State] = mapped_column(default=State.OPEN)
    removed: Mapped[bool] = mapped_column(default=False)
    buyer: Mapped[Buyer] = relationship(back_populates="sales")
    tags: Mapped[list[Tag]] = relationship(secondary=sale_tags)
    lines: Mapped[list[Line]] = relationship(back_populates="sale", cascade="all")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "sale"}  # noqa: RUF012 - as users write it


class GiftSale(Sale):
    __tablename__ = "gift_sales"
    id: Mapped[int] = mapped_column(ForeignKey("sales.id"), primary_key=True)
    greeting: Mapped[str]
    __mapper_args__ = {"polymorphic_identity": "gift"}  # noqa: RUF012


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(Identifier, primary_key=True)
    sale_id: Mapped[int | None] = mapped_column(ForeignKey("sales.id"))
    amount: Mapped[int]
    sale: Mapped[Sale | None] = relationship(back_populates="lines")


class Chair(MappedAsDataclass, Base):
    """A dataclass with a key of two columns."""

    __tablename__ = "chairs"
    hall: Mapped[str] = mapped_column(String(10), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    taken: Mapped[bool] = mapped_column(default=False)


class Person:
    """Mapped by hand, with a class of the same table below it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Boss(Person):
    pass


people = Table(
    "people",
    metadata,
    Column("id", Identifier, primary_key=True),
    Column("name", String),
    Column("role", String(10)),
)
_registry = registry(metadata=metadata)
_registry.map_imperatively(Person, people, polymorphic_on=people.c.role, polymorphic_identity="person")
_registry.map_imperatively(Boss, inherits=Person, polymorphic_identity="boss")


class BuyerSync(ModelSync):
    model = Buyer
    sync_enabled = True
    sync_batch_size = 50


class SaleSync(ModelSync):
    model = Sale
    sync_enabled = True
    columns = {  # noqa: RUF012 - declared as users do
        "tags": syncs.Column(),
        "buyer_name": syncs.Column(
            "String", select(Buyer.name).where(Buyer.id == Sale.buyer_id).scalar_subquery()
        ),
        "lines": syncs.Column(
            "UInt64", select(func.count(Line.id)).where(Line.sale_id == Sale.id).scalar_subquery()
        ),
        "removed": None,
    }
    watch = {Line: "sale"}  # noqa: RUF012


class GiftSaleSync(ModelSync):
    model = GiftSale
    sync_enabled = True


class ChairSync(ModelSync):
    model = Chair
    sync_enabled = True


class BossSync(ModelSync):
    model = Boss
    sync_enabled = True
    table = "bosses"


SYNCS = (BuyerSync, SaleSync, GiftSaleSync, ChairSync, BossSync)
for _sync in SYNCS:
    # They are there while a stall is open, and not for the tests of others.
    core._registered.remove(_sync)


class Stall:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def session(self, **options: Any) -> Session:
        return Session(self.engine, **options)

    def rows(self, sync: type[ModelSync], columns: str) -> list[tuple[Any, ...]]:
        """Sorted rows of the sync's table, as ClickHouse shows them."""
        table = sync.declaration().table
        return sorted(sync.open_clickhouse().query(f"SELECT {columns} FROM {table} FINAL"))

    def waiting(self, sync: type[ModelSync]) -> list[tuple[str, str]]:
        """Kind and key of what waits in the table."""
        asked = text("SELECT kind, key FROM oncehouse_sync_operations WHERE sync = :sync ORDER BY id")
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(asked, {"sync": sync.declaration().name})]

    def forget_waiting(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM oncehouse_sync_operations"))


@contextmanager
def open_stall(
    url: str, clickhouse_settings: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Stall]:
    """The tables of stall and sync on the database of this URL; none in ClickHouse."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(
            engine, "connect", lambda connection, _record: connection.execute("PRAGMA foreign_keys=ON")
        )
    before = dict(sources._configured)
    core._registered.extend(SYNCS)
    try:
        syncs.configure(engine, CLICKHOUSE_DATABASES={"default": clickhouse_settings or {}}, **settings)
        with engine.begin() as connection:
            metadata.create_all(connection)
            create_tables(connection)
        yield Stall(engine)
    finally:
        for sync in SYNCS:
            core._registered.remove(sync)
            sync.forget()
        sources._configured.update(before)
        engine.dispose()


def configure(given: dict[str, Any]) -> list[type[ModelSync]]:
    """The syncs of another process: its database, where ClickHouse is, and what a test changed of the classes."""
    core._registered.extend(SYNCS)
    syncs.configure(given["url"], **given["settings"])
    chosen = [sync for sync in SYNCS if sync.__name__ in given["syncs"]]
    for sync in chosen:
        change(sync, given["syncs"][sync.__name__])
    return chosen


@contextmanager
def open_synced_stall(url: str, clickhouse: Any, database: str, **settings: Any) -> Iterator[Stall]:
    """With the tables of its syncs in ClickHouse."""
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    with open_stall(url, address, **settings) as stall:
        make_tables(*SYNCS)
        yield stall


def assert_equal(stall: Stall) -> None:
    """`FINAL` shows what the database has."""
    with stall.session() as session:
        buyers = session.execute(select(Buyer.id, Buyer.name, Buyer.vip)).all()
        assert stall.rows(BuyerSync, "id, name, vip") == sorted(map(tuple, buyers)), (
            "buyers: not what the database has"
        )
        chairs = session.execute(select(Chair.hall, Chair.number, Chair.taken)).all()
        found = stall.rows(ChairSync, "hall, number, taken")
        assert found == sorted(map(tuple, chairs)), "chairs: not what the database has"
        bosses = session.execute(select(Boss.id, Boss.name)).all()
        assert stall.rows(BossSync, "id, name") == sorted(map(tuple, bosses)), (
            "bosses: not what the database has"
        )
        gifts = session.execute(select(GiftSale.id, GiftSale.greeting, GiftSale.remark)).all()
        assert stall.rows(GiftSaleSync, "id, greeting, ifNull(remark, '')") == sorted(
            (*gift[:2], gift[2] or "") for gift in gifts
        ), "gifts: not what the database has"
        tags: dict[int, list[int]] = {}
        # The table has no key: two writers may tie the same tag to a sale, which a session shows once.
        for sale, tag in session.execute(select(sale_tags).order_by(sale_tags.c.tag_id)):
            tags.setdefault(sale, []).append(tag)
        wanted = [
            (
                one.id,
                one.total,
                one.remark or "",
                one.state.name,
                tags.get(one.id, []),
                len(one.lines),
            )
            for one in session.scalars(select(Sale))
        ]
    found = stall.rows(SaleSync, "id, total, ifNull(remark, ''), state, tags, lines")
    strange = set(map(repr, found)) ^ set(map(repr, wanted))
    assert not strange, f"sales: not what the database has: {sorted(strange)}"
