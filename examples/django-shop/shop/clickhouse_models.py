"""What of the shop is in ClickHouse: three tables, found here by `oncehouse.sync.django` when Django starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, F, Sum

from oncehouse.sync.django import Column, ModelSync
from shop.models import Customer, Line, Order, Tag


class CustomerSync(ModelSync):
    """Changed keys wait in Redis; while Redis is away, in the table of PostgreSQL that the others use."""

    django_model = Customer
    sync_enabled = True
    table = "customers"
    sync_storage = "redis"
    columns = {"email": None, "country": "LowCardinality(String)"}


class OrderSync(ModelSync):
    """Orders with sums over their lines, and with the keys of their tags; synced again when a line changes."""

    django_model = Order
    sync_enabled = True
    table = "orders"
    columns = {
        "note": None,
        "removed": None,
        "status": "LowCardinality(String)",
        "lines": Column("UInt32", Count("lines")),
        "revenue": Column("Decimal(18, 2)", Sum(F("lines__quantity") * F("lines__price")), default=0),
    }
    watch = {Line: "order"}

    @classmethod
    def get_sync_queryset(cls, keys: Sequence[Any]) -> Any:
        """Orders that are removed softly are deleted in ClickHouse, and come back when they are restored."""
        return super().get_sync_queryset(keys).filter(removed=False)


class TagSync(ModelSync):
    django_model = Tag
    sync_enabled = True
    table = "tags"
