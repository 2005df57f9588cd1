"""Customers place orders, which have lines and tags. `python models.py` makes the tables, as Alembic would."""

from __future__ import annotations

import os
from datetime import datetime
from decimal import Decimal

from sqlalchemy import URL, Column, DateTime, ForeignKey, Numeric, String, Table, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

DATABASE = URL.create(
    "postgresql+psycopg",
    username=os.environ.get("PGUSER", "postgres"),
    password=os.environ.get("PGPASSWORD"),
    host=os.environ.get("PGHOST", "127.0.0.1"),
    port=int(os.environ.get("PGPORT", "5432")),
    database=os.environ.get("PGDATABASE", "shop"),
)


class Base(DeclarativeBase):
    pass


order_tags = Table(
    "order_tags",
    Base.metadata,
    Column("order_id", ForeignKey("orders.id"), primary_key=True),
    Column("tag_id", ForeignKey("tags.id"), primary_key=True),
)


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    email: Mapped[str] = mapped_column(String(254), unique=True)
    country: Mapped[str] = mapped_column(String(2))
    orders: Mapped[list[Order]] = relationship(back_populates="customer", cascade="all, delete-orphan")


class Tag(Base):
    __tablename__ = "tags"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    orders: Mapped[list[Order]] = relationship(secondary=order_tags, back_populates="tags")


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"), index=True)
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    status: Mapped[str] = mapped_column(String(10), default="open")
    note: Mapped[str] = mapped_column(default="")
    removed: Mapped[bool] = mapped_column(default=False)
    """A soft delete: the row stays, and nobody counts it."""
    customer: Mapped[Customer] = relationship(back_populates="orders")
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")
    tags: Mapped[list[Tag]] = relationship(secondary=order_tags, back_populates="orders")


class Line(Base):
    __tablename__ = "lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), index=True)
    product: Mapped[str] = mapped_column(String(50))
    quantity: Mapped[int]
    price: Mapped[Decimal] = mapped_column(Numeric(9, 2))
    order: Mapped[Order] = relationship(back_populates="lines")


if __name__ == "__main__":
    Base.metadata.create_all(create_engine(DATABASE))
