"""Every way in which Django changes rows is noticed, in the change's own transaction, on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from oncehouse.sync.operations import spell_key
from sync_world import Shop, open_shop

from django.db import IntegrityError, connections, transaction  # isort: skip - after the settings of sync_world
from django.db.models import F

from sync_shop.clickhouse_models import CustomerSync, GiftOrderSync, OrderSync, SeatSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Seat, Tag


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
    return spell_key(values)


def test_save_and_delete(shop):
    ann = Customer(name="Ann")
    ann.save(using=shop.alias)
    ann.name = "Anna"
    ann.save()
    ann.save(update_fields=["vip"])
    ann_key = key(ann.pk)
    ann.delete()
    assert shop.waiting(CustomerSync) == [
        ("insert", ann_key),
        ("update", ann_key),
        ("update", ann_key),
        ("delete", ann_key),
    ]


def test_bulk_create_and_bulk_update(shop, ann):
    orders = Order.objects.using(shop.alias).bulk_create([Order(customer=ann) for _ in range(3)])
    for order in orders:
        order.total = 5
    Order.objects.using(shop.alias).bulk_update(orders[:2], ["total"])
    assert shop.waiting(OrderSync) == [
        *[("insert", key(order.pk)) for order in orders],
        *[("update", key(order.pk)) for order in orders[:2]],
    ]


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


def test_update_by_a_queryset_names_the_rows_that_it_changed(shop, ann):
    bob, _eve = Customer.objects.using(shop.alias).bulk_create([Customer(name="Bob"), Customer(name="Eve")])
    shop.forget_waiting()
    assert Customer.objects.using(shop.alias).filter(name__in=["Ann", "Bob"]).update(vip=True) == 2
    assert sorted(shop.waiting(CustomerSync)) == sorted([("update", key(ann.pk)), ("update", key(bob.pk))])
    assert Customer.objects.using(shop.alias).filter(name="nobody").update(vip=True) == 0
    assert Customer.objects.using(shop.alias).filter(pk__in=[]).update(vip=True) == 0
    assert len(shop.waiting(CustomerSync)) == 2


def test_update_over_a_relation_and_with_an_expression(shop, order):
    found = Order.objects.using(shop.alias).filter(customer__name="Ann").update(total=F("total") + 1)
    assert found == 1
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]


def test_another_manager_is_noticed_too(shop, order):
    Order._base_manager.using(shop.alias).filter(pk=order.pk).update(removed=True)
    assert Order.objects.using(shop.alias).count() == 0
    assert shop.waiting(OrderSync) == [("update", key(order.pk))]


def test_delete_by_a_queryset_and_what_it_takes_along(shop, order, ann):
    line = Line.objects.using(shop.alias).create(order=order, amount=1)
    shop.forget_waiting()
    counts = Customer.objects.using(shop.alias).all().delete()
    assert counts == (3, {"sync_shop.Customer": 1, "sync_shop.Order": 1, "sync_shop.Line": 1})
    assert shop.waiting(CustomerSync) == [("delete", key(ann.pk))]
    assert ("delete", key(order.pk)) in shop.waiting(OrderSync)
    assert not Line.objects.using(shop.alias).filter(pk=line.pk).exists()


def test_a_raw_delete_is_noticed(shop, ann):
    queryset = Customer.objects.using(shop.alias).all()
    assert queryset._raw_delete(shop.alias) == 1
    assert shop.waiting(CustomerSync) == [("delete", key(ann.pk))]


def test_many_to_many(shop, order):
    red, blue = Tag.objects.using(shop.alias).bulk_create([Tag(name="red"), Tag(name="blue")])
    assert shop.waiting(OrderSync) == []
    changed = [("update", key(order.pk))]
    order.tags.add(red)
    assert shop.waiting(OrderSync) == changed
    order.tags.add(red)
    assert shop.waiting(OrderSync) == changed
    red.order_set.remove(order)
    order.tags.set([red, blue])
    order.tags.clear()
    assert set(shop.waiting(OrderSync)) == set(changed)
    assert len(shop.waiting(OrderSync)) > 3


def test_a_watched_model_has_the_row_it_belongs_to_synced_the_old_and_the_new(shop, order, ann):
    other = Order.objects.using(shop.alias).create(customer=ann)
    line = Line.objects.using(shop.alias).create(order=order, amount=1)
    shop.forget_waiting()
    line.order = other
    line.save()
    assert set(shop.waiting(OrderSync)) == {("update", key(order.pk)), ("update", key(other.pk))}
    shop.forget_waiting()
    Line.objects.using(shop.alias).update(order=None)
    assert shop.waiting(OrderSync) == [("update", key(other.pk))]


def test_rows_of_a_parent_that_are_none_of_the_child_are_left_alone(shop, order):
    order.note = "n"
    order.save()
    order.delete()
    assert shop.waiting(GiftOrderSync) == []


def test_a_row_of_a_child_model_is_spread_over_its_parents(shop, ann):
    gift = GiftOrder.objects.using(shop.alias).create(customer=ann, greeting="hi")
    assert {one for _kind, one in shop.waiting(GiftOrderSync)} == {key(gift.pk)}
    assert ("insert", key(gift.pk)) in shop.waiting(OrderSync)
    shop.forget_waiting()
    assert GiftOrder.objects.using(shop.alias).filter(greeting="hi").update(note="n", greeting="ho") == 1
    assert {one for _kind, one in shop.waiting(GiftOrderSync)} == {key(gift.pk)}
    assert shop.waiting(OrderSync) == [("update", key(gift.pk))]
    shop.forget_waiting()
    assert GiftOrder.objects.using(shop.alias).filter(greeting="ho").update(note="m") == 1
    assert shop.waiting(OrderSync) == [("update", key(gift.pk))]


def test_a_key_that_is_changed_is_both_gone_and_new(shop, ann):
    new = uuid.uuid4()
    Customer.objects.using(shop.alias).filter(pk=ann.pk).update(id=new)
    assert shop.waiting(CustomerSync) == [("delete", key(ann.pk)), ("update", key(new))]


def test_a_key_of_several_columns(shop):
    Seat.objects.using(shop.alias).bulk_create([Seat(hall="a", number=1), Seat(hall="b", number=1)])
    Seat.objects.using(shop.alias).filter(hall="b").update(taken=True)
    assert shop.waiting(SeatSync) == [
        ("insert", key("a", 1)),
        ("insert", key("b", 1)),
        ("update", key("b", 1)),
    ]


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


def test_raw_sql_is_told_by_a_call(shop, ann):
    with transaction.atomic(using=shop.alias), connections[shop.alias].cursor() as cursor:
        cursor.execute("UPDATE sync_shop_customer SET name = 'raw'")
        CustomerSync.register([ann.pk])
    assert shop.waiting(CustomerSync) == [("update", key(ann.pk))]
    SeatSync.register([("a", 1)])
    assert shop.waiting(SeatSync) == [("update", key("a", 1))]


def test_what_is_rolled_back_is_not_noticed(shop):
    with transaction.atomic(using=shop.alias):
        Customer.objects.using(shop.alias).create(name="never")
        transaction.set_rollback(True, using=shop.alias)
    with transaction.atomic(using=shop.alias):
        bob = Customer.objects.using(shop.alias).create(name="Bob")
        with transaction.atomic(using=shop.alias):
            Customer.objects.using(shop.alias).filter(pk=bob.pk).update(vip=True)
            Customer.objects.using(shop.alias).create(name="never")
            transaction.set_rollback(True, using=shop.alias)
    assert shop.waiting(CustomerSync) == [("insert", key(bob.pk))]


def test_a_change_that_fails_is_not_noticed(shop, ann):
    with pytest.raises(IntegrityError):
        Customer.objects.using(shop.alias).create(id=ann.pk, name="twice")
    assert shop.waiting(CustomerSync) == []


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


def test_a_forked_process_opens_connections_of_its_own(shop, monkeypatch):
    engine = CustomerSync.open_source()
    assert CustomerSync.open_source() is engine
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert CustomerSync.open_source() is not engine
