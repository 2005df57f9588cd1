"""What of the shop is in ClickHouse: three tables. Every process that changes rows imports this module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select

from models import DATABASE, Customer, Line, Order, Tag
from oncehouse.sync.sqlalchemy import Column, ModelSync, configure

configure(
    DATABASE,
    CLICKHOUSE_DATABASES={
        "default": {"db_url": os.environ.get("CLICKHOUSE_URL", "http://127.0.0.1:8123"), "db_name": "shop"}
    },
    CLICKHOUSE_REDIS_CONFIG={
        "host": os.environ.get("REDIS_HOST", "127.0.0.1"),
        "port": int(os.environ.get("REDIS_PORT", "6379")),
    },
    CLICKHOUSE_SYNC_DELAY=1,  # seconds; five, if nothing is said
)


def of_lines(value: Any) -> Any:
    """An aggregate over the lines of an order."""
    return select(value).where(Line.order_id == Order.id).scalar_subquery()


class CustomerSync(ModelSync):
    """Changed keys wait in Redis; while Redis is away, in the table of PostgreSQL that the others use."""

    model = Customer
    sync_enabled = True
    table = "customers"
    sync_storage = "redis"
    columns = {"email": None, "country": "LowCardinality(String)"}


class OrderSync(ModelSync):
    """Orders with sums over their lines, and with the keys of their tags; synced again when a line changes."""

    model = Order
    sync_enabled = True
    table = "orders"
    columns = {
        "note": None,
        "removed": None,
        "status": "LowCardinality(String)",
        "tags": Column(),
        "lines": Column("UInt32", of_lines(func.count())),
        "revenue": Column("Decimal(18, 2)", of_lines(func.sum(Line.quantity * Line.price)), default=0),
    }
    watch = {Line: "order"}

    @classmethod
    def get_sync_select(cls, keys: Sequence[tuple[Any, ...]]) -> Select[Any]:
        """Orders that are removed softly are deleted in ClickHouse, and come back when they are restored."""
        return super().get_sync_select(keys).where(~Order.removed)


class TagSync(ModelSync):
    model = Tag
    sync_enabled = True
    table = "tags"
