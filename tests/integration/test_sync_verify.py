"""`verify` on real PostgreSQL and ClickHouse: planted differences are found and named, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from changed_syncs import changed, make_tables
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.sync.backfill.replay import parse_typed_key, register_since, reregister_keys
from oncehouse.sync.rounds.runner import run_once
from oncehouse.sync.verify import verify as verifying
from oncehouse.sync.verify.repair import verify_and_repair
from oncehouse.sync.verify.verify import Difference, SyncVerifyReport, verify
from sync_stall import SYNCS as STALL_SYNCS
from sync_stall import Boss, Buyer, Chair, GiftSale, Line, Person, Sale, SaleSync, Tag, open_synced_stall
from synced_shop import Shop, add_people, open_synced_shop

from django.db import connections  # isort: skip - after the settings of synced_shop

from oncehouse.sync.django import Append, Collapsing, VersionedCollapsing
from sync_shop.clickhouse_models import CustomerSync, OrderSync, SeatSync
from sync_shop.models import Customer, Order, Seat
from sync_shop.models import Tag as ShopTag

BEYOND = 1 << 62


@pytest.fixture(autouse=True)
def _hurry(monkeypatch) -> None:
    monkeypatch.setattr(verifying, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def shop(postgres_url, clickhouse, database) -> Iterator[Shop]:
    with open_synced_shop(postgres_url, clickhouse, database, (CustomerSync,)) as shop:
        yield shop


def make_people(shop: Shop, count: int) -> list[Customer]:
    people = add_people(shop, count)
    CustomerSync.sync_batch_from_storage()
    return people


def look(sync: Any = CustomerSync, **options: Any) -> SyncVerifyReport:
    return verify(sync, **{"keys_a_range": 8, **options})


def found(report: SyncVerifyReport) -> dict[str, list[str]]:
    return {kind.value: sorted(keys) for kind, keys in report.differences.items() if keys}


def raw(shop: Shop, statement: str, *values: Any) -> None:
    """Past Django, so that no operation tells of it."""
    with connections[shop.alias].cursor() as cursor:
        cursor.execute(statement, values)


def plant(shop: Shop, people: list[Customer]) -> dict[str, list[str]]:
    """Every kind of difference, each by another cause."""
    lost, stale, older, raw_deleted, unheard = people[:5]
    client = CustomerSync.open_clickhouse()
    client.command(f"ALTER TABLE customers DELETE WHERE id = '{lost.pk}'", settings={"mutations_sync": 2})
    raw(shop, "UPDATE sync_shop_customer SET name = 'past Django' WHERE id = %s", stale.pk)
    raw(shop, "UPDATE sync_shop_customer SET born = '1999-01-01' WHERE id = %s", older.pk)
    raw(shop, "DELETE FROM sync_shop_customer WHERE id = %s", raw_deleted.pk)
    client.command(
        f"INSERT INTO customers (id, name, _version, _deleted) VALUES ('{unheard.pk}', '', {BEYOND}, 1)"
    )
    strange = "00000000-0000-0000-0000-000000000001"
    client.command(f"INSERT INTO customers (id, name, _version) VALUES ('{strange}', 'who', 1)")

    def keys(*people: Any) -> list[str]:
        return sorted(f'["{one}"]' for one in people)

    return {
        "missing": keys(lost.pk, unheard.pk),
        "stale": keys(stale.pk, older.pk),
        "extra": keys(raw_deleted.pk, strange),
    }


def test_planted_differences_are_found_named_and_repaired(shop):
    planted = plant(shop, make_people(shop, 24))
    report = look(keys_a_range=4)
    assert not report.is_clean
    assert found(report) == planted
    assert 0 < report.differing_ranges < report.ranges
    # What is held as deleted with a number beyond all others is beyond repair; without it the older row is shown.
    CustomerSync.open_clickhouse().command(
        f"ALTER TABLE customers DELETE WHERE _version = {BEYOND}", settings={"mutations_sync": 2}
    )
    report, repaired = verify_and_repair(CustomerSync)
    assert (report.is_clean, repaired) == (True, 5)
    assert (report.rows, report.ranges, report.differing_ranges) == (23, 1, 0)
    assert len(shop.rows(CustomerSync, "id")) == 23


@pytest.mark.long
def test_what_waits_is_no_difference(shop):
    people = make_people(shop, 6)
    Customer.objects.using(shop.alias).filter(pk=people[0].pk).update(name="changed")
    people[1].delete()
    Customer.objects.using(shop.alias).create(name="new")
    report = look()
    assert (report.is_clean, report.waiting, found(report)) == (True, 3, {})
    CustomerSync.sync_batch_from_storage()
    assert (look().waiting, look().differing_ranges) == (0, 0)


@pytest.mark.long
def test_writers_that_go_on_raise_no_alarm(shop, monkeypatch):
    people = make_people(shop, 20)
    stop = threading.Event()
    monkeypatch.setattr(verifying, "_READS", 4)

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            some = [one.pk for one in people[turn % 5 :: 5]]
            Customer.objects.using(shop.alias).filter(pk__in=some).update(vip=turn % 2 == 0)
            Customer.objects.using(shop.alias).create(name=str(turn))
            Customer.objects.using(shop.alias).filter(name=str(turn - 3)).delete()
            run_once([CustomerSync])
        connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reports = [look() for _look in range(2)]
    finally:
        stop.set()
        writer.join()
    assert [found(report) for report in reports] == [{}, {}]


@pytest.mark.long
def test_values_and_keys_of_every_kind_compare_as_equal(shop):
    make_tables(OrderSync, SeatSync)
    ann = make_people(shop, 1)[0]
    order = Order.objects.using(shop.alias).create(
        customer=ann, total="1.10", details={"ä": [1, None]}, note=""
    )
    Order.objects.using(shop.alias).create(customer=ann)
    order.tags.set([ShopTag.objects.using(shop.alias).create(name=name) for name in "ab"])
    Seat.objects.using(shop.alias).bulk_create(
        [Seat(hall=hall, number=n) for hall in ("b", "ä", "A", "'", "") for n in (-1, 2)]
    )
    run_once([OrderSync, SeatSync])
    assert [look(sync).rows for sync in (OrderSync, SeatSync)] == [2, 10]
    assert [found(look(sync)) for sync in (OrderSync, SeatSync)] == [{}, {}]
    # Null is not the empty text.
    raw(shop, "UPDATE sync_shop_order SET note = NULL WHERE id = %s", order.pk)
    raw(shop, "DELETE FROM sync_shop_seat WHERE hall = 'ä' AND number = 2")
    assert found(look(OrderSync)) == {"stale": [f"[{order.pk}]"]}
    assert found(look(SeatSync)) == {"extra": ['["ä", 2]']}


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", [Append(), Collapsing(), VersionedCollapsing()], ids=lambda one: type(one).__name__
)
def test_other_engines_are_compared_by_what_they_show_and_told_of_doubled_rows(shop, engine):
    with changed({CustomerSync: {"engine": engine}}):
        people = make_people(shop, 9)
        people[1].delete()
        Customer.objects.using(shop.alias).filter(pk=people[2].pk).update(name="again")
        CustomerSync.sync_batch_from_storage()
        assert found(look()) == {}
        raw(shop, "UPDATE sync_shop_customer SET vip = NOT vip WHERE id = %s", people[3].pk)
        raw(shop, "DELETE FROM sync_shop_customer WHERE id = %s", people[4].pk)
        client = CustomerSync.open_clickhouse()
        client.command(f"INSERT INTO customers SELECT * FROM customers WHERE id = '{people[5].pk}' LIMIT 1")
        planted = {
            "stale": [f'["{people[3].pk}"]'],
            "extra": [f'["{people[4].pk}"]'],
            "doubled": [f'["{people[5].pk}"]'],
        }
        assert found(look()) == planted
        report, repaired = verify_and_repair(CustomerSync)
        assert repaired == 2
        assert found(report) == {"doubled": planted["doubled"]}


@pytest.mark.long
def test_append_tables_without_marks_are_judged_as_far_as_they_can_be(shop):
    with changed({CustomerSync: {"engine": Append(deleted=None)}}):
        make_people(shop, 2)[0].delete()
        CustomerSync.sync_batch_from_storage()
        assert found(look()) == {}
    with (
        changed({CustomerSync: {"engine": Append(version=None)}}),
        pytest.raises(ConfigurationError, match="without a version"),
    ):
        look()


@pytest.mark.long
def test_so_many_differences_that_a_backfill_is_better_end_the_search(shop, monkeypatch):
    people = make_people(shop, 30)
    monkeypatch.setattr(verifying, "MOST_DIFFERENCES", 10)
    CustomerSync.open_clickhouse().command("TRUNCATE TABLE customers")
    report = look()
    assert (report.complete, report.is_clean) == (False, False)
    assert 10 < len(report.differences[Difference.MISSING]) < 30
    report, repaired = verify_and_repair(CustomerSync, keys_a_range=4)
    assert (report.is_clean, repaired) == (True, len(people))


@pytest.mark.long
def test_keys_and_times_are_replayed(shop):
    people = make_people(shop, 5)
    make_tables(SeatSync)
    assert reregister_keys(CustomerSync, [parse_typed_key(CustomerSync, str(people[0].pk).upper())]) == 1
    assert shop.waiting(CustomerSync) == [("update", f'["{people[0].pk}"]')]
    assert CustomerSync.sync_batch_from_storage().rows == 1
    later = datetime.now(UTC)
    Customer.objects.using(shop.alias).filter(pk=people[1].pk).update(vip=True)
    people[2].delete()
    CustomerSync.sync_batch_from_storage()
    assert register_since(CustomerSync, later) == 2
    assert register_since(CustomerSync, datetime(2020, 1, 1)) == 5  # noqa: DTZ001 - UTC where nothing is said
    assert CustomerSync.sync_batch_from_storage().rows == 5
    assert found(look()) == {}
    assert parse_typed_key(SeatSync, '["a", 7]') == '["a", 7]'
    with pytest.raises(ConfigurationError, match="hall, number"):
        parse_typed_key(SeatSync, "a")
    with pytest.raises(PermanentError, match="no key of Customer"):
        parse_typed_key(CustomerSync, "7")
    with (
        changed({CustomerSync: {"engine": Collapsing()}}),
        pytest.raises(ConfigurationError, match="keeps no version"),
    ):
        register_since(CustomerSync, later)


@pytest.mark.long
def test_mapped_classes_are_compared_too(postgres_url, clickhouse, database):
    with open_synced_stall(postgres_url, clickhouse, database) as stall:
        with stall.session() as session:
            session.add_all(
                Buyer(
                    name=name,
                    sales=[Sale(lines=[Line(amount=1)], tags=[Tag(name=name)]), GiftSale(greeting="g")],
                )
                for name in "abc"
            )
            session.add_all(
                [Boss("b"), Person("p"), *(Chair(hall, n) for hall in ("ä", "b", "A") for n in (1, 2))]
            )
            session.commit()
        run_once(STALL_SYNCS)
        assert [(look(sync).rows, found(look(sync))) for sync in STALL_SYNCS] == [
            (3, {}), (6, {}), (3, {}), (6, {}), (1, {}),
        ]  # fmt: skip
        with stall.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE sales SET total = 1 WHERE id = (SELECT min(id) FROM sales)")
            [key] = connection.exec_driver_sql("SELECT min(id) FROM sales").one()
        assert found(look(SaleSync)) == {"stale": [f"[{key}]"]}
        assert verify_and_repair(SaleSync)[1] == 1
        with pytest.raises(PermanentError, match="no key of Sale"):
            parse_typed_key(SaleSync, "x")
