"""The books in Django's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from synced_shop import Shop, assert_equal

from django.db import connections, transaction  # isort: skip - after the settings of synced_shop

from sync_shop.clickhouse_models import CustomerSync, GiftOrderSync, OrderSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Tag


class DjangoBooks:
    people, orders, gifts = CustomerSync, OrderSync, GiftOrderSync

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    @property
    def engine(self) -> Engine:
        return CustomerSync.open_source()

    def transaction(self) -> Any:
        return transaction.atomic(using=self._shop.alias)

    savepoint = transaction

    def _rows(self, model: Any) -> Any:
        return model._base_manager.using(self._shop.alias)

    def add_person(self, name: str, key: Any = None) -> Any:
        return self._rows(Customer).create(name=name, **({} if key is None else {"id": key})).pk

    def add_people(self, names: Sequence[str]) -> list[Any]:
        return [one.pk for one in self._rows(Customer).bulk_create([Customer(name=name) for name in names])]

    def rename(self, key: Any, name: str) -> None:
        person = self._rows(Customer).get(pk=key)
        person.name = name
        person.save()

    def rename_all(self, names: dict[Any, str]) -> None:
        people = list(self._rows(Customer).filter(pk__in=names).order_by("name"))
        for person in people:
            person.name = names[person.pk]
        self._rows(Customer).bulk_update(people, ["name"])

    def remove_person(self, key: Any) -> None:
        self._rows(Customer).get(pk=key).delete()

    def honour(self, names: Sequence[str]) -> int:
        return self._rows(Customer).filter(name__in=names).update(vip=True)

    def remove_named(self, names: Sequence[str]) -> int:
        return self._rows(Customer).filter(name__in=names).delete()[0]

    def move_key(self, old: Any, new: Any) -> None:
        self._rows(Customer).filter(pk=old).update(id=new)

    def rename_raw(self, key: Any, name: str) -> None:
        connection = connections[self._shop.alias]
        with self.transaction(), connection.cursor() as cursor:
            stored = key if connection.vendor == "postgresql" else key.hex
            cursor.execute("UPDATE sync_shop_customer SET name = %s WHERE id = %s", [name, stored])
            CustomerSync.register([key])

    def add_order(self, person: Any) -> Any:
        return self._rows(Order).create(customer_id=person).pk

    def add_gift(self, person: Any) -> Any:
        return self._rows(GiftOrder).create(customer_id=person, greeting="hi").pk

    def annotate(self, order: Any, note: str) -> None:
        self._rows(Order).filter(pk=order).update(note=note)

    def add_tag(self) -> Any:
        return self._rows(Tag).create(name="t").pk

    def tag(self, order: Any, tags: Sequence[Any]) -> None:
        self._rows(Order).get(pk=order).tags.set(tags)

    def add_line(self, order: Any, amount: int) -> Any:
        return self._rows(Line).create(order_id=order, amount=amount).pk

    def move_line(self, line: Any, order: Any) -> None:
        found = self._rows(Line).get(pk=line)
        found.order_id = order
        found.save()

    def move_lines(self, amount: int, order: Any) -> None:
        self._rows(Line).filter(amount=amount).update(order=order)

    def move_lines_of(self, note: str, order: Any) -> None:
        self._rows(Line).filter(order__note=note).update(order=order)

    @contextmanager
    def before_lines_move(self, act: Callable[[], None]) -> Iterator[None]:
        done: list[str] = []

        def watch_statement(run: Any, sql: str, *others: Any) -> Any:
            if 'UPDATE "sync_shop_line"' in sql and not done:
                done.append(sql)
                act()
            return run(sql, *others)

        with connections[self._shop.alias].execute_wrapper(watch_statement):
            yield
        assert done

    def assert_equal(self) -> None:
        assert_equal(self._shop)
