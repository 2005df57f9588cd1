"""Backfills on real PostgreSQL and ClickHouse: rows that were there before, while writers and rounds go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from changed_syncs import changed, make_tables
from oncehouse.errors import PermanentError, TransientError
from oncehouse.sync.backfill import backfill as backfilling
from oncehouse.sync.backfill.backfill import backfill
from oncehouse.sync.tables import lease_tables
from sync_stall import SYNCS, Boss, Buyer, Chair, GiftSale, Person, Sale, assert_equal, open_synced_stall
from synced_shop import Shop, add_people, open_synced_shop

from oncehouse.sync.django import Append, Collapsing, VersionedCollapsing  # isort: skip - after the settings of synced_shop
from sync_shop import models
from sync_shop.clickhouse_models import CustomerSync, OrderSync, SeatSync
from sync_shop.models import Customer, Order, Seat


@pytest.fixture
def shop(postgres_url, clickhouse, database) -> Iterator[Shop]:
    with open_synced_shop(postgres_url, clickhouse, database, (CustomerSync,)) as shop:
        yield shop


def make_people(shop: Shop, count: int) -> list[Customer]:
    """As if they had been there before anything was synced."""
    people = add_people(shop, count)
    shop.forget_waiting()
    return people


def names(shop: Shop) -> list[str]:
    return [row[0] for row in shop.rows(CustomerSync, "name")]


def expire_lease() -> None:
    """As if the process that holds it had hung for long."""
    with CustomerSync.open_source().begin() as connection:
        for table in (lease_tables.leases, lease_tables.members):
            connection.execute(
                update(table).where(table.c.name == "sync:CustomerSync").values(expires_at=0.0)
            )


def test_rows_of_every_kind_of_key_are_filled_in(shop):
    people = make_people(shop, 23)
    make_tables(OrderSync, SeatSync)
    order = Order.objects.using(shop.alias).create(customer=people[0], total=7)
    order.tags.add(models.Tag.objects.using(shop.alias).create(name="red"))
    halls = ("b", "ä", "A", "a b", "'")
    seats = [Seat(hall=hall, number=number) for hall in halls for number in range(3)]
    Seat.objects.using(shop.alias).bulk_create(seats)
    shop.forget_waiting()
    told = []
    result = backfill(CustomerSync, chunk=5, report=told.append)
    assert (result.finished, result.resumed, result.keys, result.rows) == (True, False, 23, 23)
    assert names(shop) == sorted(person.name for person in people)
    assert (told[0].keys, told[0].estimate) == (0, 23)
    assert (told[-1].keys, told[-1].rows) == (23, 23)
    assert backfill(SeatSync, chunk=4).rows == 15
    assert shop.rows(SeatSync, "hall, number") == sorted((seat.hall, seat.number) for seat in seats)
    assert backfill(OrderSync).rows == 1
    assert [row[0] for row in shop.rows(OrderSync, "length(tags), customer_name")] == [1]


def test_one_that_was_stopped_goes_on_where_it_was(shop):
    make_people(shop, 20)
    stop = threading.Event()
    first = backfill(CustomerSync, chunk=5, stop=stop, report=lambda told: told.keys == 10 and stop.set())
    assert (first.finished, first.keys) == (False, 10)
    assert len(names(shop)) == 10
    second = backfill(CustomerSync, chunk=5)
    assert (second.finished, second.resumed, second.keys) == (True, True, 10)
    assert len(names(shop)) == 20
    stop.clear()
    backfill(CustomerSync, chunk=10, stop=stop, report=lambda told: told.keys == 10 and stop.set())
    assert backfill(CustomerSync, restart=True).keys == 20


@pytest.mark.long
def test_what_writers_change_meanwhile_is_synced_between_chunks(shop, monkeypatch):
    people = make_people(shop, 20)
    told = []

    def write(progress: Any) -> None:
        told.append(progress)
        if progress.keys == 5:
            Customer.objects.using(shop.alias).filter(pk__in=[one.pk for one in people]).update(vip=True)
            Customer.objects.using(shop.alias).create(name="new")
        if progress.keys == 10:
            assert shop.waiting(CustomerSync) == []

    backfill(CustomerSync, chunk=5, report=write)
    assert told[-1].keys in {20, 21}
    assert shop.rows(CustomerSync, "name, vip") == [
        *((one.name, True) for one in people),
        ("new", False),
    ]


@pytest.mark.long
def test_a_run_that_has_no_end_gives_way_to_a_backfill(shop, monkeypatch):
    people = make_people(shop, 3)
    monkeypatch.setattr(CustomerSync, "sync_lease", 1)
    monkeypatch.setattr(CustomerSync, "sync_batch_size", 1)
    CustomerSync.forget()
    filled = []
    filler = threading.Thread(target=lambda: filled.append(backfill(CustomerSync)))

    def change() -> None:
        Customer.objects.using(shop.alias).filter(pk=people[0].pk).update(vip=True)

    def write(_rows: int) -> None:
        # Another change after each round: there is always one more to do.
        if not filler.ident:
            filler.start()
        if not filled:
            change()

    monkeypatch.setattr(CustomerSync, "post_sync", write)
    change()
    run = CustomerSync.sync_batch_from_storage()
    filler.join(60)
    assert run.rounds > 0
    assert filled[0].finished
    CustomerSync.forget()


def test_a_chunk_that_hangs_and_reads_late_overwrites_nothing(shop, monkeypatch):
    ann = make_people(shop, 1)[0]
    people = Customer.objects.using(shop.alias).filter(pk=ann.pk)
    get_sync_objects = CustomerSync.get_sync_objects

    def hang(operations: Any) -> Any:
        # Read, then hang while another process syncs what is newer.
        monkeypatch.undo()
        read = get_sync_objects(operations)
        people.update(name="newer")
        expire_lease()
        assert CustomerSync.sync_batch_from_storage().rows == 1
        return read

    monkeypatch.setattr(CustomerSync, "get_sync_objects", hang)
    backfill(CustomerSync)
    assert shop.rows(CustomerSync, "name", final=False) != [("0000",)]
    assert names(shop) == ["newer"]


@pytest.mark.long
def test_a_chunk_that_hangs_and_inserts_late_overwrites_nothing(shop, monkeypatch):
    ann = make_people(shop, 1)[0]
    insert_batch = CustomerSync.insert_batch

    def hang(batch: Any, *, token: str) -> None:
        monkeypatch.undo()
        Customer.objects.using(shop.alias).filter(pk=ann.pk).update(name="newer")
        expire_lease()
        assert CustomerSync.sync_batch_from_storage().rows == 1
        insert_batch(batch, token=token)
        assert names(shop) == ["newer"]

    monkeypatch.setattr(CustomerSync, "insert_batch", hang)
    assert backfill(CustomerSync).finished
    assert names(shop) == ["newer"]


@pytest.mark.long
def test_rows_that_a_narrower_queryset_leaves_out_are_not_shown(shop, monkeypatch):
    make_people(shop, 4)
    get_sync_queryset = CustomerSync.get_sync_queryset
    monkeypatch.setattr(
        CustomerSync, "get_sync_queryset", lambda keys: get_sync_queryset(keys).exclude(name="0002")
    )
    backfill(CustomerSync, chunk=3)
    assert names(shop) == ["0000", "0001", "0003"]


@pytest.mark.long
@pytest.mark.parametrize("engine", [Collapsing(), VersionedCollapsing()], ids=lambda engine: engine.family)
def test_a_collapsing_table_gets_what_it_lacks_and_cancels_what_is_old(shop, engine):
    people = make_people(shop, 7)
    with changed({CustomerSync: {"engine": engine}}):
        assert backfill(CustomerSync, chunk=3).rows == 7
        assert backfill(CustomerSync, chunk=3).rows == 0
        Customer.objects.using(shop.alias).filter(pk=people[0].pk).update(name="changed")
        shop.forget_waiting()
        assert backfill(CustomerSync, chunk=3).rows == 2
        [(count,)] = shop.rows(CustomerSync, "sum(_sign)", final=False)
        assert count == 7
        assert names(shop)[-1] == "changed"


@pytest.mark.long
def test_an_append_table_gets_rows_of_the_keys_that_it_has_none_of(shop):
    people = make_people(shop, 6)
    with changed({CustomerSync: {"engine": Append()}}):
        Customer.objects.using(shop.alias).filter(pk=people[2].pk).update(name="changed")
        CustomerSync.sync_batch_from_storage()
        assert backfill(CustomerSync, chunk=4).rows == 5
        assert backfill(CustomerSync, chunk=4).rows == 0
        assert len(shop.rows(CustomerSync, "id", final=False)) == 6


@pytest.mark.long
def test_what_may_pass_is_tried_again_and_what_may_not_ends_it(shop, monkeypatch):
    make_people(shop, 4)
    monkeypatch.setattr(backfilling, "_BACKOFF", backfilling.Backoff(base_seconds=0.0, longest_seconds=0.0))
    insert_batch, failures = CustomerSync.insert_batch, [TransientError("away"), TransientError("away")]

    def fail_twice(batch: Any, *, token: str) -> None:
        if failures:
            raise failures.pop()
        insert_batch(batch, token=token)

    monkeypatch.setattr(CustomerSync, "insert_batch", fail_twice)
    assert backfill(CustomerSync, chunk=2).rows == 4
    failures.append(PermanentError("refused"))
    with pytest.raises(PermanentError, match="refused"):
        backfill(CustomerSync, chunk=2)
    failures += [TransientError("away")] * 20
    with pytest.raises(TransientError, match="away"):
        backfill(CustomerSync, chunk=2)


def test_mapped_classes_are_filled_in_too(postgres_url, clickhouse, database):
    with open_synced_stall(postgres_url, clickhouse, database) as stall:
        with stall.session() as session:
            session.add_all(Buyer(name=name, sales=[Sale(), GiftSale(greeting="g")]) for name in "abc")
            session.add_all([Boss("b"), Person("p")])
            session.add_all(Chair(hall, number) for hall in ("ä", "b", "A") for number in (1, 2))
            session.commit()
        stall.forget_waiting()
        assert [backfill(sync, chunk=4).keys for sync in SYNCS] == [3, 6, 3, 6, 1]
        assert_equal(stall)
