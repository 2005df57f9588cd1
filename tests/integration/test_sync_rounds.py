"""Rounds on real PostgreSQL and ClickHouse: what is in the table at rest, and what rounds do when others interfere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, insert, select, text, update

from changed_syncs import changed, make_tables
from oncehouse.errors import ConfigurationError, FencedError, PermanentError, TransientError
from oncehouse.sync.changes.change import format_key
from oncehouse.sync.model.model_sync import SyncRunResult, registered_syncs
from oncehouse.sync.rounds import round as rounds
from oncehouse.sync.rounds.lease import hold_lease
from oncehouse.sync.rounds.runner import FailedRun, run_once, run_until_stopped
from oncehouse.sync.state import read_sync_state
from oncehouse.sync.table.ddl import plan_table
from oncehouse.sync.tables import lease_tables, operations, states
from synced_shop import Shop, add_people, open_synced_shop

from django.db import transaction  # isort: skip - after the settings of synced_shop

from oncehouse.sync.django import (
    Append,
    Collapsing,
    ModelSerializer,
    Replacing,
    VersionedCollapsing,
)
from sync_shop.clickhouse_models import CustomerSync, OrderSync, SeatSync
from sync_shop.models import Customer, Line, Order, Seat, Tag


@pytest.fixture
def shop(postgres_url, clickhouse, database) -> Iterator[Shop]:
    with open_synced_shop(postgres_url, clickhouse, database, (CustomerSync, OrderSync)) as shop:
        yield shop


def customers(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.rows(CustomerSync, "name, vip")


def take_over(sync: Any) -> None:
    """As if the lease of whoever holds it had run out."""
    engine = sync.open_source()
    with engine.begin() as connection:
        connection.execute(
            update(lease_tables.leases)
            .where(lease_tables.leases.c.name == f"sync:{sync.declaration().name}")
            .values(expires_at=0.0)
        )
        connection.execute(
            update(lease_tables.members)
            .where(lease_tables.members.c.name == f"sync:{sync.declaration().name}")
            .values(expires_at=0.0)
        )


def test_every_kind_of_value_arrives(shop):
    ann = Customer.objects.using(shop.alias).create(name="Ann's “name” \\ ü", born=date(1900, 1, 1))
    red, blue = Tag.objects.using(shop.alias).bulk_create([Tag(name="red"), Tag(name="blue")])
    order = Order.objects.using(shop.alias).create(
        customer=ann,
        total=Decimal("12345.67"),
        note="x",
        details={"a": [1, None, "ü"]},
        took=timedelta(days=1, microseconds=7),
    )
    order.tags.set([blue, red])
    Line.objects.using(shop.alias).create(order=order, amount=1)
    Seat.objects.using(shop.alias).create(hall="ü", number=-7)
    make_tables(SeatSync)
    for sync in (CustomerSync, OrderSync, SeatSync):
        sync.sync_batch_from_storage()
    assert shop.rows(CustomerSync, "id, name, vip, born") == [(ann.pk, ann.name, False, ann.born)]
    [row] = shop.rows(OrderSync, "id, customer_id, total, note, details, took, tags, customer_name, lines")
    assert row[:4] == (order.pk, ann.pk, Decimal("12345.67"), "x")
    assert row[4] == '{"a": [1, null, "ü"]}'
    assert row[5:] == (86_400_000_007, sorted([red.pk, blue.pk]), ann.name, 1)
    assert shop.rows(SeatSync, "hall, number, taken") == [("ü", -7, False)]


def test_a_run_drains_what_waits_in_rounds(shop):
    Customer.objects.using(shop.alias).bulk_create([Customer(name=str(n)) for n in range(120)])
    # The last one looks whether something came out of order.
    assert CustomerSync.sync_batch_from_storage() == SyncRunResult(
        sync="CustomerSync", rounds=4, operations=120, rows=120
    )
    assert len(customers(shop)) == 120
    assert CustomerSync.sync_batch_from_storage().operations == 0
    assert shop.waiting(CustomerSync) == []


def test_a_hung_round_that_inserts_late_does_not_overwrite_what_is_newer(shop, monkeypatch):
    ann = Customer.objects.using(shop.alias).create(name="old")
    insert_batch = CustomerSync.insert_batch

    def hang(batch, *, token):
        monkeypatch.undo()
        Customer.objects.using(shop.alias).filter(pk=ann.pk).update(name="new")
        take_over(CustomerSync)
        assert CustomerSync.sync_batch_from_storage().rows == 1
        assert customers(shop) == [("new", False)]
        insert_batch(batch, token=token)

    monkeypatch.setattr(CustomerSync, "insert_batch", hang)
    with suppress(FencedError):  # the run goes on to its next round, and finds its lease gone
        CustomerSync.sync_batch_from_storage()
    assert [row[0] for row in shop.rows(CustomerSync, "name", final=False)] == ["new", "old"]
    assert customers(shop) == [("new", False)]


def test_a_round_that_lost_its_lease_while_it_read_inserts_nothing(shop, monkeypatch):
    ann = Customer.objects.using(shop.alias).create(name="old")
    get_sync_objects = CustomerSync.get_sync_objects

    def hang(operations):
        # Numbered before the other round, read after it: inserted, it would be the newer state under the lower number.
        monkeypatch.undo()
        take_over(CustomerSync)
        CustomerSync.sync_batch_from_storage()
        Customer.objects.using(shop.alias).filter(pk=ann.pk).update(name="new")
        return get_sync_objects(operations)

    monkeypatch.setattr(CustomerSync, "get_sync_objects", hang)
    with pytest.raises(FencedError):
        CustomerSync.sync_batch_from_storage()
    assert customers(shop) == [("old", False)]
    CustomerSync.sync_batch_from_storage()
    assert customers(shop) == [("new", False)]


def test_changes_that_lock_nothing_in_common_and_commit_out_of_order_are_both_there(shop, postgres_url):
    ann = Customer.objects.using(shop.alias).create(name="Ann")
    order = Order.objects.using(shop.alias).create(customer=ann)
    red, blue = Tag.objects.using(shop.alias).bulk_create([Tag(name="red"), Tag(name="blue")])
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as first:
        first.execute(
            "INSERT INTO sync_shop_order_tags (order_id, tag_id) VALUES (%s, %s)", (order.pk, red.pk)
        )
        first.execute(
            "INSERT INTO oncehouse_sync_operations (sync, key, kind) VALUES ('OrderSync', %s, 'update')",
            (f"[{order.pk}]",),
        )
        order.tags.add(blue)  # a higher number, committed first
        OrderSync.sync_batch_from_storage()
        assert shop.rows(OrderSync, "tags") == [([blue.pk],)]
        first.commit()
    OrderSync.sync_batch_from_storage()
    assert shop.rows(OrderSync, "tags") == [(sorted([red.pk, blue.pk]),)]


def test_who_died_holds_a_sync_up_for_no_longer_than_its_lease(shop, monkeypatch):
    monkeypatch.setattr(CustomerSync, "sync_lease", 1)
    CustomerSync.forget()
    Customer.objects.using(shop.alias).create(name="Ann")
    with hold_lease(CustomerSync.open_source(), CustomerSync.declaration()) as died:
        # It does nothing more, as if killed.
        assert died is not None
        assert CustomerSync.sync_batch_from_storage().held_elsewhere
        assert customers(shop) == []
        give_up_at = time.monotonic() + 30
        while CustomerSync.sync_batch_from_storage().held_elsewhere:
            assert time.monotonic() < give_up_at, "the lease does not run out"
        assert customers(shop) == [("Ann", False)]
    CustomerSync.forget()


def test_a_failure_is_noted_told_and_loses_nothing_and_others_go_on(shop, monkeypatch):
    told = []
    monkeypatch.setattr(CustomerSync, "post_sync_failed", told.append)
    ann = Customer.objects.using(shop.alias).create(name="Ann")
    Order.objects.using(shop.alias).create(customer=ann)
    client = CustomerSync.open_clickhouse()
    client.command("RENAME TABLE customers TO away")
    failed, fine = run_once([CustomerSync, OrderSync])
    assert isinstance(failed, FailedRun)
    assert isinstance(failed.error, ConfigurationError)
    assert told == [failed.error]
    assert fine == SyncRunResult(sync="OrderSync", rounds=1, operations=1, rows=1)
    state = read_sync_state(CustomerSync.open_source(), "CustomerSync")
    assert (state.failures, state.synced_seconds_ago) == (1, None)
    assert "does not exist" in state.last_error
    assert len(shop.waiting(CustomerSync)) == 1
    client.command("RENAME TABLE away TO customers")
    CustomerSync.sync_batch_from_storage()
    assert customers(shop) == [("Ann", False)]
    assert read_sync_state(CustomerSync.open_source(), "CustomerSync").failures == 0


def test_an_insert_whose_answer_was_lost_is_harmless(shop, monkeypatch):
    Customer.objects.using(shop.alias).create(name="Ann")
    insert_batch = CustomerSync.insert_batch

    def lose_answer(batch, *, token):
        monkeypatch.undo()
        insert_batch(batch, token=token)
        raise TransientError("the answer was lost")

    monkeypatch.setattr(CustomerSync, "insert_batch", lose_answer)
    with pytest.raises(TransientError):
        CustomerSync.sync_batch_from_storage()
    CustomerSync.sync_batch_from_storage()
    assert customers(shop) == [("Ann", False)]


def test_steps_and_hooks_are_called_in_their_order(shop, monkeypatch):
    calls = []

    def note(name):
        original = getattr(CustomerSync, name)

        def call(*given, **named):
            calls.append(name)
            return original(*given, **named)

        monkeypatch.setattr(CustomerSync, name, call)

    for name in ("pre_sync", "get_sync_objects", "get_insert_batch", "insert_batch", "post_sync"):
        note(name)
    Customer.objects.using(shop.alias).create(name="Ann")
    CustomerSync.sync_batch_from_storage()
    assert calls == ["pre_sync", "get_sync_objects", "get_insert_batch", "insert_batch", "post_sync"]


def test_a_serializer_of_the_users_own(shop):
    class Loud(ModelSerializer):
        def serialize(self, obj):
            return {**super().serialize(obj), "note": f"{obj.customer.name}!"}

    ann = Customer.objects.using(shop.alias).create(name="Ann")
    order = Order.objects.using(shop.alias).create(customer=ann)
    tag = Tag.objects.using(shop.alias).create(name="red")
    order.tags.add(tag)
    columns = {"placed_at": None, "took": None}
    with changed({OrderSync: {"django_model_serializer": Loud, "columns": columns}}):
        OrderSync.sync_batch_from_storage()
        assert shop.rows(OrderSync, "note, tags, details") == [("Ann!", [tag.pk], "{}")]


def test_a_narrower_queryset_deletes_what_it_leaves_out(shop, monkeypatch):
    monkeypatch.setattr(
        OrderSync,
        "get_sync_queryset",
        lambda keys: Order.objects.using(shop.alias).filter(pk__in=keys),
    )
    ann = Customer.objects.using(shop.alias).create(name="Ann")
    order = Order.objects.using(shop.alias).create(customer=ann)
    OrderSync.sync_batch_from_storage()
    assert len(shop.rows(OrderSync, "id")) == 1
    order.removed = True
    order.save()
    OrderSync.sync_batch_from_storage()
    assert shop.rows(OrderSync, "id") == []


def test_a_sync_inside_of_a_transaction_is_refused(shop):
    Customer.objects.using(shop.alias).create(name="Ann")
    with transaction.atomic(using=shop.alias), pytest.raises(PermanentError, match="transaction"):
        CustomerSync.sync_batch_from_storage()


def test_a_value_that_does_not_fit_is_told_with_its_column_and_nothing_is_lost(shop):
    Customer.objects.using(shop.alias).create(name="Ann")
    with (
        changed({CustomerSync: {"columns": {"name": "UInt8"}}}),
        pytest.raises(PermanentError, match="column 'name': 'Ann'"),
    ):
        CustomerSync.sync_batch_from_storage()
    assert len(shop.waiting(CustomerSync)) == 1


@pytest.fixture(params=[Collapsing(), VersionedCollapsing(), Append()], ids=lambda engine: engine.family)
def other_engine(request, shop):
    with changed({CustomerSync: {"engine": request.param}}):
        yield request.param


def shown(shop: Shop, engine: Any) -> list[tuple[Any, ...]]:
    if isinstance(engine, Append):
        latest = "SELECT argMax((name, vip, _deleted), _version) AS last FROM customers GROUP BY id"
        return sorted(
            CustomerSync.open_clickhouse().query(f"SELECT last.1, last.2 FROM ({latest}) WHERE last.3 = 0")
        )
    return customers(shop)


def test_other_engines_show_the_same_rows(shop, other_engine):
    people = Customer.objects.using(shop.alias)
    ann, bob = people.bulk_create([Customer(name="Ann"), Customer(name="Bob", born=date(2000, 1, 2))])
    CustomerSync.sync_batch_from_storage()
    people.filter(pk=ann.pk).update(name="Anna", vip=True)
    bob.delete()
    people.create(name="Eve")
    CustomerSync.sync_batch_from_storage()
    people.filter(pk=ann.pk).update(vip=False)
    CustomerSync.sync_batch_from_storage()
    assert shown(shop, other_engine) == [("Anna", False), ("Eve", False)]
    if isinstance(other_engine, Collapsing):
        query = CustomerSync.open_clickhouse().query
        assert query("SELECT sum(_sign) FROM customers") == [(2,)]


def test_other_engines_never_change_a_batch_whose_answer_was_lost(shop, other_engine, monkeypatch):
    """`Append` finds its rows by their version and sends them once; the others send the same batch again."""
    people = Customer.objects.using(shop.alias)
    ann = people.create(name="Ann")
    CustomerSync.sync_batch_from_storage()
    people.filter(pk=ann.pk).update(name="Anna")
    insert_batch = CustomerSync.insert_batch
    sent = []

    def lose_answer(batch, *, token):
        sent.append((token, batch.to_pylist()))
        if len(sent) == 1:
            insert_batch(batch, token=token)
            raise TransientError("the answer was lost")
        insert_batch(batch, token=token)

    monkeypatch.setattr(CustomerSync, "insert_batch", lose_answer)
    with pytest.raises(TransientError):
        CustomerSync.sync_batch_from_storage()
    people.filter(pk=ann.pk).update(name="Annabel")
    CustomerSync.sync_batch_from_storage()
    if isinstance(other_engine, Append):
        assert [rows[0]["name"] for _, rows in sent] == ["Anna", "Annabel"]
    else:
        assert sent[1] == sent[0]
        assert len(sent) == 3
    assert shown(shop, other_engine) == [("Annabel", False)]
    rows = len(shop.rows(CustomerSync, "name", final=False))
    assert rows == (3 if isinstance(other_engine, Append) else 5)
    assert shop.waiting(CustomerSync) == []


def lose_answer_and_token(shop: Shop, monkeypatch: Any, *, arrives: bool = True) -> None:
    """Ann's batch is kept after a lost answer, and others insert until the table may have forgotten its token."""
    Customer.objects.using(shop.alias).create(name="Ann")
    client, insert_batch = CustomerSync.open_clickhouse(), CustomerSync.insert_batch
    client.command("ALTER TABLE customers MODIFY SETTING non_replicated_deduplication_window = 3")

    def lose_answer(batch, *, token):
        monkeypatch.undo()
        if arrives:
            insert_batch(batch, token=token)
        raise TransientError("the answer was lost")

    monkeypatch.setattr(CustomerSync, "insert_batch", lose_answer)
    with pytest.raises(TransientError):
        CustomerSync.sync_batch_from_storage()
    own = CustomerSync.declaration().engine.own_columns()
    names, values = ", ".join(["name", *own]), ", ".join(["1"] * len(own))
    for number in range(4):
        row = f"'other {number}', {values}".rstrip(", ")
        client.command(f"INSERT INTO customers ({names}) VALUES ({row})")


def count_ann() -> int:
    (row,) = CustomerSync.open_clickhouse().query("SELECT count() FROM customers WHERE name = 'Ann'")
    return int(row[0])


@pytest.mark.parametrize("arrives", [True, False])
def test_a_batch_whose_token_others_pushed_out_is_not_sent_again_where_its_rows_are_there(
    shop, monkeypatch, arrives
):
    with changed({CustomerSync: {"engine": Append()}}):
        lose_answer_and_token(shop, monkeypatch, arrives=arrives)
        CustomerSync.sync_batch_from_storage()
        assert count_ann() == 1
        assert shop.waiting(CustomerSync) == []


@pytest.mark.parametrize(
    "engine", [Collapsing(), VersionedCollapsing(), Append(version=None)], ids=["signs", "versions", "plain"]
)
def test_a_batch_whose_rows_cannot_be_recognized_stops_the_sync_with_the_remedy(shop, monkeypatch, engine):
    with changed({CustomerSync: {"engine": engine}}):
        lose_answer_and_token(shop, monkeypatch)
        for _ in range(2):
            with pytest.raises(PermanentError, match="sync verify --repair") as told:
                CustomerSync.sync_batch_from_storage()
        assert count_ann() == 1
        if not engine.cancels:
            return
        statement = str(told.value).partition("Run ")[2].partition(" in the sync")[0]
        with CustomerSync.open_source().begin() as connection:
            connection.execute(text(statement))
        CustomerSync.sync_batch_from_storage()
        assert count_ann() == 1
        assert shop.waiting(CustomerSync) == []


def test_a_batch_that_kept_no_count_is_sent_again_under_its_token(shop, monkeypatch):
    with changed({CustomerSync: {"engine": Append(version=None)}}):
        monkeypatch.setattr(rounds, "read_count", lambda _sync: None)
        Customer.objects.using(shop.alias).create(name="Ann")
        insert_batch, sent = CustomerSync.insert_batch, []

        def lose_answer(batch, *, token):
            sent.append(token)
            insert_batch(batch, token=token)
            if len(sent) == 1:
                raise TransientError("the answer was lost")

        monkeypatch.setattr(CustomerSync, "insert_batch", lose_answer)
        with pytest.raises(TransientError):
            CustomerSync.sync_batch_from_storage()
        CustomerSync.sync_batch_from_storage()
        assert len(sent) == 2
        assert count_ann() == 1


@pytest.mark.parametrize("known", [True, False], ids=["finished", "unknown"])
def test_a_batch_that_is_there_is_not_sent_again_and_unproven_views_are_named(
    shop, monkeypatch, caplog, known
):
    with changed({CustomerSync: {"engine": Append()}}):
        client, insert_batch, sent = CustomerSync.open_clickhouse(), CustomerSync.insert_batch, []
        client.command(
            "CREATE TABLE seen (name String) ENGINE = MergeTree ORDER BY name "
            "SETTINGS non_replicated_deduplication_window = 100000"
        )
        client.command("CREATE MATERIALIZED VIEW seeing TO seen AS SELECT name FROM customers")
        Customer.objects.using(shop.alias).create(name="Ann")

        def lose_answer(batch, *, token):
            sent.append(token)
            insert_batch(batch, token=token if known else f"not logged as {token}")
            raise TransientError("the answer was lost")

        monkeypatch.setattr(CustomerSync, "insert_batch", lose_answer)
        with pytest.raises(TransientError):
            CustomerSync.sync_batch_from_storage()
        CustomerSync.sync_batch_from_storage()
        assert len(sent) == 1
        assert count_ann() == 1
        told = [
            record.getMessage() for record in caplog.records if "materialized views" in record.getMessage()
        ]
        assert told == [] if known else len(told) == 1


@pytest.mark.parametrize(
    "engine", [Append(), Collapsing(), Replacing()], ids=["append", "signs", "replacing"]
)
def test_a_view_that_would_take_a_repeated_batch_twice_is_refused(shop, engine):
    with changed({CustomerSync: {"engine": engine}}):
        client = CustomerSync.open_clickhouse()
        client.command("CREATE TABLE seen (name String) ENGINE = MergeTree ORDER BY name")
        client.command("CREATE MATERIALIZED VIEW seeing TO seen AS SELECT name FROM customers")
        Customer.objects.using(shop.alias).create(name="Ann")
        if engine.is_idempotent:
            CustomerSync.sync_batch_from_storage()
            return
        with pytest.raises(ConfigurationError, match=r"materialized view .*seeing writes to .*seen"):
            CustomerSync.sync_batch_from_storage()
        (problem,) = plan_table(client, CustomerSync.declaration()).problems
        statement = problem.rpartition("run: ")[2]
        client.command(statement)
        CustomerSync.sync_batch_from_storage()
        assert shop.waiting(CustomerSync) == []


def test_need_sync_waits_for_the_delay_and_longer_after_failures(shop, monkeypatch):
    assert CustomerSync.need_sync()
    CustomerSync.sync_batch_from_storage()
    assert not CustomerSync.need_sync()
    engine = CustomerSync.open_source()

    def started(seconds_ago, failures):
        with engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE oncehouse_sync_states SET failures = :failures, "
                    "started_at = extract(epoch from clock_timestamp()) - :ago"
                ),
                {"failures": failures, "ago": seconds_ago},
            )

    started(6, 0)
    assert CustomerSync.need_sync()
    started(6, 3)
    assert not CustomerSync.need_sync()
    started(61, 30)
    assert CustomerSync.need_sync()
    monkeypatch.setattr(CustomerSync, "sync_enabled", False)
    assert not CustomerSync.need_sync()


def test_reading_numbers_grow_when_the_clock_does_not(shop):
    Customer.objects.using(shop.alias).create(name="Ann")
    CustomerSync.sync_batch_from_storage()
    engine, ahead = CustomerSync.open_source(), 1 << 61
    with engine.begin() as connection:
        connection.execute(update(states).where(states.c.sync == "CustomerSync").values(reading=ahead))
    Customer.objects.using(shop.alias).update(name="Anna")
    CustomerSync.sync_batch_from_storage()
    with engine.connect() as connection:
        assert connection.scalar(select(states.c.reading).where(states.c.sync == "CustomerSync")) == ahead + 1
    assert customers(shop) == [("Anna", False)]


def test_a_runner_syncs_what_is_due_until_it_is_stopped(shop):
    Customer.objects.using(shop.alias).create(name="Ann")
    stop, outcomes = threading.Event(), []

    def report(outcome):
        outcomes.append(outcome)
        if len(outcomes) == 2:
            stop.set()

    run_until_stopped([CustomerSync, OrderSync], stop, report=report)
    assert {outcome.sync for outcome in outcomes} == {"CustomerSync", "OrderSync"}
    assert customers(shop) == [("Ann", False)]


def test_the_shops_syncs_are_found_by_their_module():
    assert [sync.__name__ for sync in registered_syncs()] == [
        "CustomerSync",
        "OrderSync",
        "GiftOrderSync",
        "SeatSync",
    ]


def note_sends(monkeypatch, *, at: int = 0, act: Any = None) -> list[str]:
    """The threads that batches are sent in; `act` is called before the batch of this number."""
    send, threads = rounds.send, []

    def noted(*given: Any) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == at:
            act()
        send(*given)

    monkeypatch.setattr(rounds, "send", noted)
    return threads


def test_batches_of_a_backlog_are_sent_while_the_next_are_read(shop, monkeypatch):
    threads = note_sends(monkeypatch)
    people = add_people(shop, 175)
    run = CustomerSync.sync_batch_from_storage()
    assert (run.operations, run.rows) == (175, 175)
    assert len(threads) == 4
    assert sum(name.startswith("sync CustomerSync") for name in threads) == 3
    assert customers(shop) == sorted((one.name, one.vip) for one in people)
    assert shop.waiting(CustomerSync) == []
    assert read_sync_state(CustomerSync.open_source(), "CustomerSync").rows_synced == 175


def test_an_operation_that_commits_behind_those_that_were_listed_is_in_the_same_run(shop, monkeypatch):
    people = add_people(shop, 175)

    def change_under_an_old_number() -> None:
        with CustomerSync.open_source().begin() as connection:
            table = Customer._meta.db_table
            connection.execute(text(f"UPDATE {table} SET vip = true WHERE id = :id"), {"id": people[1].pk})
            written = {"sync": "CustomerSync", "key": format_key([people[1].pk]), "kind": "update"}
            first = connection.execute(select(func.min(operations.c.id))).scalar_one()
            connection.execute(insert(operations).values(written | {"id": first - 1}))

    note_sends(monkeypatch, at=3, act=change_under_an_old_number)
    with CustomerSync.open_source().begin() as connection:
        # Room for a smaller number.
        connection.execute(update(operations).values(id=operations.c.id + 1_000_000))
    CustomerSync.sync_batch_from_storage()
    assert (people[1].name, True) in customers(shop)
    assert shop.waiting(CustomerSync) == []


def test_a_batch_that_fails_beside_the_next_reading_ends_the_run_and_is_read_again(shop, monkeypatch):
    def refuse() -> None:
        raise TransientError("ClickHouse is away")

    people = add_people(shop, 175)
    note_sends(monkeypatch, at=2, act=refuse)
    with pytest.raises(TransientError, match="ClickHouse is away"):
        CustomerSync.sync_batch_from_storage()
    state = read_sync_state(CustomerSync.open_source(), "CustomerSync")
    assert (state.failures, state.rows_synced) == (1, 50)
    assert len(shop.waiting(CustomerSync)) == 125
    CustomerSync.sync_batch_from_storage()
    assert customers(shop) == sorted((one.name, one.vip) for one in people)
    assert shop.waiting(CustomerSync) == []


def test_a_step_of_the_users_own_keeps_rounds_one_after_the_other(shop, monkeypatch):
    threads, sent = note_sends(monkeypatch), []
    add_people(shop, 175)
    monkeypatch.setattr(CustomerSync, "post_sync", sent.append)
    CustomerSync.sync_batch_from_storage()
    assert sent == [50, 50, 50, 25]
    assert set(threads) == {threading.current_thread().name}
