"""A Django shop on a fresh database, its syncs on a fresh ClickHouse database, and what both hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from changed_syncs import change, make_tables
from django_site import open_database, set_up

set_up()

from django.db import connections  # noqa: E402 - Django wants its settings first
from django.db.models import Count  # noqa: E402
from django.test import override_settings  # noqa: E402

from oncehouse.sync.django import ModelSync  # noqa: E402
from oncehouse.sync.django.operations import CreateSyncTables  # noqa: E402
from sync_shop import clickhouse_models, models  # noqa: E402

SYNCS = (
    clickhouse_models.CustomerSync,
    clickhouse_models.OrderSync,
    clickhouse_models.GiftOrderSync,
    clickhouse_models.SeatSync,
)


class Shop:
    def __init__(self, alias: str) -> None:
        self.alias = alias

    def rows(self, sync: type[ModelSync], columns: str, *, final: bool = True) -> list[tuple[Any, ...]]:
        """Sorted rows of the sync's table, as ClickHouse shows them."""
        table = sync.declaration().table
        return sorted(
            sync.open_clickhouse().query(f"SELECT {columns} FROM {table} {'FINAL' if final else ''}")
        )

    def waiting(self, sync: type[ModelSync]) -> list[tuple[str, str]]:
        """Kind and key of what waits in the table."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(
                "SELECT kind, key FROM oncehouse_sync_operations WHERE sync = %s ORDER BY id",
                [sync.declaration().name],
            )
            return cursor.fetchall()

    def forget_waiting(self) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("DELETE FROM oncehouse_sync_operations")


def configure(given: dict[str, Any]) -> list[type[ModelSync]]:
    """The syncs of another process: its database, where ClickHouse is, and what a test changed of the classes."""
    alias = _KEPT.enter_context(open_database(given["url"]))
    override_settings(**given["settings"]).enable()
    chosen = [sync for sync in SYNCS if sync.__name__ in given["syncs"]]
    for sync in chosen:
        sync.source_database = alias
        change(sync, given["syncs"][sync.__name__])
    return chosen


_KEPT = ExitStack()
"""Open as long as the process."""


@contextmanager
def open_synced_shop(
    url: str, clickhouse: Any, database: str, syncs: tuple[type[ModelSync], ...] = SYNCS, **settings: Any
) -> Iterator[Shop]:
    """With the tables of these syncs in ClickHouse."""
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    with open_shop(url, address, **settings) as shop:
        make_tables(*syncs)
        yield shop


@contextmanager
def open_shop(url: str, clickhouse_settings: dict[str, Any], **settings: Any) -> Iterator[Shop]:
    """The tables of shop and sync on the database of this URL; none in ClickHouse."""
    with (
        open_database(url) as alias,
        override_settings(CLICKHOUSE_DATABASES={"default": clickhouse_settings}, **settings),
    ):
        with connections[alias].schema_editor() as editor:
            CreateSyncTables().database_forwards("oncehouse_sync", editor, None, None)
            for model in models.ALL:
                editor.create_model(model)
        for sync in SYNCS:
            sync.forget()
            sync.source_database = alias
        try:
            yield Shop(alias)
        finally:
            for sync in SYNCS:
                sync.source_database = None
                sync.forget()


def add_people(shop: Shop, count: int) -> list[models.Customer]:
    people = [models.Customer(name=f"{n:04}", vip=n % 2 == 0) for n in range(count)]
    return list(models.Customer.objects.using(shop.alias).bulk_create(people))


def assert_equal(shop: Shop) -> None:
    """`FINAL` shows what the database has."""

    def stored(model: Any, *names: str) -> list[Any]:
        return sorted(model._base_manager.using(shop.alias).values_list(*names))

    def shown(sync: type[ModelSync], columns: str) -> list[Any]:
        return shop.rows(sync, columns)

    strange = "not what the database has"
    people = stored(models.Customer, "id", "name", "vip")
    assert shown(clickhouse_models.CustomerSync, "id, name, vip") == people, f"customers: {strange}"
    seats = stored(models.Seat, "hall", "number", "taken")
    assert shown(clickhouse_models.SeatSync, "hall, number, taken") == seats, f"seats: {strange}"
    gifts = [(key, note or "") for key, note in stored(models.GiftOrder, "pk", "note")]
    found = shown(clickhouse_models.GiftOrderSync, "id, ifNull(note, '')")
    assert found == gifts, f"gifts: {strange}"
    tags: dict[int, list[int]] = {}
    for order, tag in stored(models.Order.tags.through, "order_id", "tag_id"):
        tags.setdefault(order, []).append(tag)
    orders = models.Order._base_manager.using(shop.alias).annotate(n=Count("lines"))
    wanted = sorted(
        (key, total, note or "", tags.get(key, []), lines)
        for key, total, note, lines in orders.values_list("pk", "total", "note", "n")
    )
    found = shown(clickhouse_models.OrderSync, "id, total, ifNull(note, ''), tags, lines")
    assert found == wanted, f"orders: {strange}"
