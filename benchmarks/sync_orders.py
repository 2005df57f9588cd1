"""The Django model that the benchmarks of model sync change, and the changes.

Imported in two environments, that of oncehouse and that of django-clickhouse, so it needs nothing but Django.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

TABLE = "bench_orders"
NOTE = "left at the door, " * 4
STATUSES = ("new", "paid", "sent", "returned")

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_CHUNK = 1_000


def set_up(postgres: str, *apps: str, **settings: Any) -> None:
    """Django on this database, given as a URL."""
    import django
    from django.conf import settings as django_settings

    parts = urlsplit(postgres)
    django_settings.configure(
        INSTALLED_APPS=list(apps),
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path.strip("/"),
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port,
                # As programs have it: a connection stays.
                "CONN_MAX_AGE": None,
            }
        },
        USE_TZ=True,
        **settings,
    )
    django.setup()


def define_order(base: type) -> Any:
    """The model, on the base class that a tool asks for."""
    from django.db import models

    class Order(base):
        id = models.BigAutoField(primary_key=True)
        customer = models.IntegerField()
        status = models.CharField(max_length=20)
        quantity = models.IntegerField()
        total = models.DecimalField(max_digits=12, decimal_places=2)
        paid = models.BooleanField(default=False)
        note = models.TextField()
        placed_at = models.DateTimeField()

        class Meta:
            app_label = "bench"
            db_table = TABLE

    return Order


def make_order(model: Any, number: int) -> Any:
    return model(
        customer=number % 1_000,
        status=STATUSES[number % len(STATUSES)],
        quantity=number % 7 + 1,
        total=Decimal(number % 100_000) / 100,
        paid=number % 3 == 0,
        note=NOTE,
        placed_at=_FIRST + timedelta(seconds=number),
    )


def fill(connection: Any, rows: int) -> None:
    """Rows from 1 on, by the database itself: nobody notices them."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {TABLE} RESTART IDENTITY")
        cursor.execute(
            f"INSERT INTO {TABLE} (customer, status, quantity, total, paid, note, placed_at) "
            "SELECT mod(n, 1000), 'new', mod(n, 7) + 1, mod(n, 100000) / 100.0, false, %s, "
            "timestamptz '2026-01-01 00:00:00Z' + n * interval '1 second' FROM generate_series(1, %s) AS n",
            [NOTE, rows],
        )


def change(model: Any, changes: int) -> None:
    """So many rows of a filled table, each once: 1 % by save, 59 % by QuerySet.update, and 40 % new by bulk_create."""
    saved, updated = changes // 100, changes * 6 // 10
    for order in model.objects.filter(pk__lte=saved):
        order.status = "paid"
        order.save()
    for first in range(saved, updated, _CHUNK):
        chosen = model.objects.filter(pk__gt=first, pk__lte=min(first + _CHUNK, updated))
        chosen.update(status="sent", paid=True)
    for first in range(updated, changes, _CHUNK):
        model.objects.bulk_create(
            [make_order(model, number) for number in range(first, min(first + _CHUNK, changes))]
        )
