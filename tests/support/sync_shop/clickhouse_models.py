from __future__ import annotations

from django.db.models import Count

from oncehouse.sync.django import Column, ModelSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Seat


class CustomerSync(ModelSync):
    django_model = Customer
    sync_enabled = True
    table = "customers"
    sync_batch_size = 50


class OrderSync(ModelSync):
    django_model = Order
    sync_enabled = True
    table = "orders"
    columns = {  # noqa: RUF012 - declared as users do
        "note": "Nullable(String)",
        "customer_name": Column("String", "customer__name"),
        "lines": Column("UInt64", Count("lines", distinct=True)),
        "placed_at": None,
    }
    watch = {Line: "order"}  # noqa: RUF012


class GiftOrderSync(ModelSync):
    django_model = GiftOrder
    sync_enabled = True
    table = "gift_orders"
    columns = {"tags": None}  # noqa: RUF012


class SeatSync(ModelSync):
    django_model = Seat
    sync_enabled = True
    table = "seats"
