"""Every way in which Django changes rows is noticed, in the change's own transaction, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_site import open_database
from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import format_key
from synced_shop import Shop, open_shop

from django.db import connections, models, transaction  # isort: skip - after the settings of synced_shop
from django.db.migrations.state import ModelState, ProjectState, StateApps
from django.db.models import F

from oncehouse.sync.django import Append
from sync_shop.clickhouse_models import CustomerSync, GiftOrderSync, OrderSync, SeatSync
from sync_shop.models import HAS_COMPOSITE_KEYS, Customer, GiftOrder, Line, Order, Seat, Tag

composite = pytest.mark.skipif(not HAS_COMPOSITE_KEYS, reason="Django has keys of several columns since 5.2")


@pytest.fixture
def shop(catalog_url) -> Iterator[Shop]:
    with open_shop(catalog_url, {"db_url": "http://localhost:1"}) as shop:
        yield shop


@pytest.fixture
def ann(shop) -> Customer:
    customer = Customer.objects.using(shop.alias).create(name="Ann")
    shop.forget_waiting()
    return customer


@pytest.fixture
def order(shop, ann) -> Order:
    order = Order.objects.using(shop.alias).create(customer=ann)
    shop.forget_waiting()
    return order


def key(*values: Any) -> str:
    return format_key(values)


def test_bulk_create_that_ignores_or_updates_conflicts(shop, ann):
    new = Customer(name="Bob")
    Customer.objects.using(shop.alias).bulk_create(
        [new, Customer(id=ann.pk, name="no")], ignore_conflicts=True
    )
    assert shop.waiting(CustomerSync) == [("insert", key(new.pk))]
    Customer.objects.using(shop.alias).bulk_create([Customer(id=ann.pk, name="no")], ignore_conflicts=True)
    assert len(shop.waiting(CustomerSync)) == 1
    Customer.objects.using(shop.alias).bulk_create(
        [Customer(id=ann.pk, name="yes")],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["name"],
    )
    assert shop.waiting(CustomerSync)[1:] == [("insert", key(ann.pk))]


def test_bulk_create_that_would_move_rows_of_a_watched_model_is_refused(shop, order):
    line = Line.objects.using(shop.alias).create(order=order, amount=1)
    other = Order.objects.using(shop.alias).create(customer=order.customer)
    shop.forget_waiting()
    given = {"update_conflicts": True, "unique_fields": ["id"]}
    moved = [Line(id=line.pk, order=other, amount=2)]
    with pytest.raises(ConfigurationError, match=r"sets order_id of rows of sync_shop\.Line"):
        Line.objects.using(shop.alias).bulk_create(moved, update_fields=["order", "amount"], **given)
    Line.objects.using(shop.alias).bulk_create(moved, update_fields=["amount"], **given)
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]


def test_update_over_a_relation_and_with_an_expression(shop, order):
    found = Order.objects.using(shop.alias).filter(customer__name="Ann").update(total=F("total") + 1)
    assert found == 1
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]


def test_a_save_of_an_expression(shop, order):
    """Django from 6.0 on asks such an UPDATE for the value that came of it."""
    order.total = F("total") + 1
    order.save()
    order.refresh_from_db()
    assert order.total == 1
    order.note = "n"
    order.save(update_fields=["note"])
    assert shop.waiting(OrderSync) == [("update", key(order.pk))] * 2


def test_another_manager_is_noticed_too(shop, order):
    Order._base_manager.using(shop.alias).filter(pk=order.pk).update(removed=True)
    assert Order.objects.using(shop.alias).count() == 0
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]


def test_a_raw_delete_is_noticed(shop, ann):
    queryset = Customer.objects.using(shop.alias).all()
    assert queryset._raw_delete(shop.alias) == 1
    assert shop.waiting(CustomerSync) == [("delete", key(ann.pk))]


def test_one_update_of_a_child_and_its_parents(shop, ann):
    gift = GiftOrder.objects.using(shop.alias).create(customer=ann, greeting="hi")
    shop.forget_waiting()
    assert GiftOrder.objects.using(shop.alias).filter(greeting="hi").update(note="n", greeting="ho") == 1
    assert {one for _kind, one in shop.waiting(GiftOrderSync)} == {key(gift.pk)}
    assert shop.waiting(OrderSync) == [("update", key(gift.pk))]
    shop.forget_waiting()
    assert GiftOrder.objects.using(shop.alias).filter(greeting="ho").update(note="m") == 1
    assert shop.waiting(OrderSync) == [("update", key(gift.pk))]


@composite
def test_a_key_of_several_columns(shop):
    Seat.objects.using(shop.alias).bulk_create([Seat(hall="a", number=1), Seat(hall="b", number=1)])
    Seat.objects.using(shop.alias).filter(hall="b").update(taken=True)
    assert shop.waiting(SeatSync) == [
        ("insert", key("a", 1)),
        ("insert", key("b", 1)),
        ("update", key("b", 1)),
    ]


@composite
def test_a_key_is_spelled_alike_whoever_notes_it(shop):
    hall = 'ü"\\/\n\t\x01<'
    Seat.objects.using(shop.alias).create(hall=hall, number=-5)
    assert shop.waiting(SeatSync) == [("insert", key(hall, -5))]


def test_many_new_rows_get_their_keys_in_their_order(shop, ann):
    orders = [Order(customer=ann, total=n) for n in range(500)]
    Order.objects.using(shop.alias).bulk_create(orders)
    stored = dict(Order.objects.using(shop.alias).values_list("pk", "total"))
    assert all(stored[order.pk] == order.total for order in orders)
    assert [one for _kind, one in shop.waiting(OrderSync)] == [key(order.pk) for order in orders]


def test_a_change_that_cannot_be_noticed_does_not_happen(shop):
    from oncehouse.errors import ConfigurationError

    with connections[shop.alias].cursor() as cursor:
        cursor.execute("DROP TABLE oncehouse_sync_operations")
    with pytest.raises(ConfigurationError, match=r"manage\.py migrate"):
        Customer.objects.using(shop.alias).create(name="Ann")
    assert Customer.objects.using(shop.alias).count() == 0


def test_a_disabled_sync_and_another_database_are_left_alone(shop, monkeypatch):
    monkeypatch.setattr(CustomerSync, "sync_enabled", False)
    Customer.objects.using(shop.alias).create(name="Ann")
    assert shop.waiting(CustomerSync) == []
    monkeypatch.setattr(CustomerSync, "sync_enabled", True)
    monkeypatch.setattr(CustomerSync, "source_database", "default")
    Customer.objects.using(shop.alias).create(name="Bob")
    monkeypatch.undo()
    assert shop.waiting(CustomerSync) == []


def test_another_alias_of_the_same_database_is_noticed_too(shop, ann, catalog_url):
    with open_database(catalog_url) as other:
        Customer.objects.using(other).filter(pk=ann.pk).update(vip=True)
        Customer.objects.using(other).create(name="Bob")
        assert [kind for kind, _key in shop.waiting(CustomerSync)] == ["update", "insert"]
        shop.forget_waiting()
        with transaction.atomic(using=other):
            CustomerSync.register([ann.pk], using=other)
            transaction.set_rollback(True, using=other)
        assert shop.waiting(CustomerSync) == []
        CustomerSync.register([ann.pk], using=other)
    assert shop.waiting(CustomerSync) == [("update", key(ann.pk))]
    with pytest.raises(ConfigurationError, match="leads to another one"):
        CustomerSync.register([ann.pk], using="default")


class OldLine(models.Model):
    """As lines were before they belonged to orders."""

    amount = models.PositiveIntegerField()

    class Meta:
        app_label = "old"
        db_table = "sync_shop_line"

    def __str__(self) -> str:
        return str(self.amount)


def make_historical(*models: Any) -> StateApps:
    """The models that a migration gets."""
    state = ProjectState()
    for model in models:
        state.add_model(ModelState.from_model(model))
    return state.apps


def test_data_migrations_are_noticed(shop, ann, order):
    apps = make_historical(Customer, Tag, Order, GiftOrder, Line)
    people = apps.get_model("sync_shop", "Customer").objects.using(shop.alias)
    bob = people.create(name="Bob")
    people.bulk_create([people.model(name="Eve")])
    people.filter(pk=ann.pk).update(vip=True)
    bob.name = "Bobby"
    bob.save()
    gone = key(bob.pk)
    bob.delete()
    told = shop.waiting(CustomerSync)
    assert [kind for kind, _key in told] == ["insert", "insert", "update", "update", "delete"]
    assert [told[place][1] for place in (0, 2, 3, 4)] == [gone, key(ann.pk), gone, gone]
    lines = apps.get_model("sync_shop", "Line").objects.using(shop.alias)
    orders = apps.get_model("sync_shop", "Order")._base_manager.using(shop.alias)
    shop.forget_waiting()
    new = orders.create(customer_id=ann.pk)
    lines.create(order_id=order.pk, amount=1)
    lines.update(order_id=new.pk)
    new.tags.add(apps.get_model("sync_shop", "Tag").objects.using(shop.alias).create(name="red"))
    assert {one for _kind, one in shop.waiting(OrderSync)} == {key(order.pk), key(new.pk)}
    gifts = apps.get_model("sync_shop", "GiftOrder")._base_manager.using(shop.alias)
    gift = gifts.create(customer_id=ann.pk, greeting="hi")
    assert {one for _kind, one in shop.waiting(GiftOrderSync)} == {key(gift.pk)}


def test_a_data_migration_of_a_database_that_is_older_than_the_program_goes_through(shop, order):
    Line.objects.using(shop.alias).create(order=order, amount=1)
    shop.forget_waiting()
    make_historical(OldLine).get_model("old", "OldLine").objects.using(shop.alias).update(amount=2)
    assert shop.waiting(OrderSync) == []
    people = make_historical(Customer).get_model("sync_shop", "Customer").objects.using(shop.alias)
    with connections[shop.alias].cursor() as cursor:
        cursor.execute("DROP TABLE oncehouse_sync_operations")
    assert people.update(vip=True) == 1
    people.create(name="Bob")


def test_a_forked_process_opens_connections_of_its_own(shop, monkeypatch):
    engine = CustomerSync.open_source()
    assert CustomerSync.open_source() is engine
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert CustomerSync.open_source() is not engine


@contextmanager
def counted_statements(alias: str) -> Iterator[list[str]]:
    run: list[str] = []

    def count(execute, sql, params, many, context):
        run.append(sql)
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(count):
        yield run


@pytest.fixture
def only_orders(monkeypatch) -> None:
    """Orders are noticed for one sync alone, by their own key, a whole number."""
    monkeypatch.setattr(GiftOrderSync, "sync_enabled", False)


def test_every_change_of_a_model_with_one_sync(shop, ann, only_orders):
    orders = Order.objects.using(shop.alias)
    first, others = (
        orders.create(customer=ann),
        orders.bulk_create([Order(customer=ann), Order(customer=ann)]),
    )
    keys = [key(one.pk) for one in (first, *others)]
    assert len(set(keys)) == 3
    assert shop.waiting(OrderSync) == [("insert", one) for one in keys]
    assert sorted(orders.values_list("pk", flat=True)) == sorted(one.pk for one in (first, *others))
    shop.forget_waiting()
    first.note = "n"
    first.save()
    assert orders.filter(total=0).update(note="m") == 3
    assert shop.waiting(OrderSync)[0] == ("update", keys[0])
    assert sorted(shop.waiting(OrderSync)[1:]) == sorted(("update", one) for one in keys)
    shop.forget_waiting()
    assert orders.filter(pk=0).delete() == (0, {})
    assert orders.filter(note="m").delete()[0] == 3
    assert sorted(shop.waiting(OrderSync)) == sorted(("delete", one) for one in keys)
    assert orders.filter(note="m").update(note="k") == 0


def test_a_save_that_is_noticed_is_one_statement(shop, ann, only_orders):
    order = Order(customer=ann)
    with counted_statements(shop.alias) as run:
        order.save(using=shop.alias)
        order.note = "n"
        order.save()
        ann.name = "Anna"
        ann.save()
    if connections[shop.alias].vendor == "postgresql":
        assert len(run) == 3
    assert shop.waiting(OrderSync) == [("insert", key(order.pk)), ("update", key(order.pk))]
    assert shop.waiting(CustomerSync) == [("update", key(ann.pk))]


def test_a_save_that_finds_no_row_shows_none_in_a_history(shop, ann, only_orders, monkeypatch):
    monkeypatch.setattr(OrderSync, "engine", Append())
    order = Order(pk=7, customer=ann)
    order.save(using=shop.alias)
    assert shop.waiting(OrderSync) == [("insert", key(7))]


def test_a_registered_key_is_taken_in_the_form_of_its_field(shop, order, ann):
    OrderSync.register([str(order.pk)])
    CustomerSync.register([str(ann.pk).upper()])
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]
    assert shop.waiting(CustomerSync) == [("update", key(ann.pk))]
