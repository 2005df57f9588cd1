"""The runners of model sync, and its tables as commands and migrations make them."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from oncehouse.cli.app import run_command
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.model_sync import _registered
from synced_shop import SYNCS, Shop, open_synced_shop

from django.core.management import call_command  # isort: skip - after the settings of synced_shop
from django.core.management.base import CommandError
from django.db import connections
from django.test import override_settings

from oncehouse.sync.django import ModelSync
from oncehouse.sync.django.operations import SyncTable
from sync_shop.clickhouse_models import CustomerSync, OrderSync
from sync_shop.models import Customer, Order


@pytest.fixture
def shop(postgres_url, clickhouse, database, monkeypatch) -> Iterator[Shop]:
    # Django is set up already; the name is how the command knows that there is a project.
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "the_tests_settings")
    with open_synced_shop(postgres_url, clickhouse, database) as shop:
        yield shop


@pytest.fixture
def ann(shop) -> Customer:
    customer = Customer.objects.using(shop.alias).create(name="Ann")
    Order.objects.using(shop.alias).create(customer=customer)
    return customer


def test_sync_run_once_syncs_what_waits_and_tells_how_much(shop, ann, capsys):
    assert run_command(["sync", "run", "--once", "CustomerSync", "OrderSync"]) == 0
    assert capsys.readouterr().out == "CustomerSync: 1 operations, 1 rows\nOrderSync: 1 operations, 1 rows\n"
    assert shop.rows(CustomerSync, "name") == [("Ann",)]
    assert run_command(["sync", "run", "--once", "CustomerSync", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "event": "synced",
        "sync": "CustomerSync",
        "held_elsewhere": False,
        "rounds": 1,
        "operations": 0,
        "rows": 0,
    }


def test_sync_run_tells_of_a_failure_syncs_the_others_and_ends_with_a_code(shop, ann, capsys):
    CustomerSync.open_clickhouse().command("DROP TABLE customers SYNC")
    assert run_command(["sync", "run", "--once"]) == 1
    out, err = capsys.readouterr()
    assert "OrderSync: 1 operations, 1 rows" in out
    assert "error: Sync CustomerSync: the table customers does not exist" in err
    assert "`oncehouse sync apply` runs it" in err
    assert run_command(["sync", "status", "--json"]) == 0
    status = {one["sync"]: one for one in json.loads(capsys.readouterr().out)["syncs"]}
    assert (status["CustomerSync"]["waiting"], status["CustomerSync"]["failures"]) == (1, 1)
    assert status["CustomerSync"]["lag_seconds"] >= 0
    assert "does not exist" in status["CustomerSync"]["last_error"]
    assert status["OrderSync"] | {"synced_seconds_ago": 0} == {
        "sync": "OrderSync",
        "model": "sync_shop.Order",
        "table": "orders",
        "enabled": True,
        "waiting": 0,
        "lag_seconds": 0.0,
        "running": False,
        "backfilled": None,
        "rows_synced": 1,
        "synced_seconds_ago": 0,
        "failures": 0,
        "failed_seconds_ago": None,
        "last_error": None,
        "pipeline_file": None,
    }
    assert run_command(["sync", "status"]) == 0
    assert "CustomerSync: ConfigurationError: Sync CustomerSync: the table" in capsys.readouterr().out


def stop_once(told: Callable[[], bool]) -> threading.Thread:
    """A signal to this process when it has told what it is waited for, or when nobody waits any longer."""

    def wait_and_stop() -> None:
        give_up_at = time.monotonic() + 60
        while not told() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    waiting = threading.Thread(target=wait_and_stop)
    waiting.start()
    return waiting


def test_sync_run_goes_on_until_a_signal(shop, ann, capsys):
    told: list[str] = []

    def has_synced() -> bool:
        told.append(capsys.readouterr().out)
        return "CustomerSync: 1 operations" in "".join(told)

    stopping = stop_once(has_synced)
    assert run_command(["sync", "run"]) == 0
    stopping.join()
    assert "CustomerSync: 1 operations" in "".join(told)


def test_plan_shows_and_apply_runs_what_the_tables_lack(shop, capsys):
    client = CustomerSync.open_clickhouse()
    client.command("DROP TABLE customers SYNC")
    client.command("ALTER TABLE orders DROP COLUMN note")
    assert run_command(["sync", "plan"]) == 0
    out = capsys.readouterr().out
    assert "CustomerSync:\nCREATE TABLE `customers`" in out
    assert "OrderSync:\nALTER TABLE `orders` ADD COLUMN IF NOT EXISTS `note` Nullable(String);" in out
    assert "SeatSync: seats is as it should be" in out
    assert run_command(["sync", "plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"]["SeatSync"]["statements"] == []
    assert run_command(["sync", "apply"]) == 0
    capsys.readouterr()
    assert run_command(["sync", "plan"]) == 0
    assert capsys.readouterr().out.count("is as it should be") == 4


def test_apply_judges_all_tables_before_it_changes_one(shop, capsys):
    client = CustomerSync.open_clickhouse()
    client.command("DROP TABLE customers SYNC")
    client.command("DROP TABLE orders SYNC")
    client.command("CREATE TABLE orders (id Int64) ENGINE = MergeTree ORDER BY id")
    assert run_command(["sync", "apply"]) == 2
    assert "its engine is MergeTree" in capsys.readouterr().err
    assert client.query("EXISTS TABLE customers") == [(0,)]


def test_what_could_change_values_is_applied_only_when_asked(shop, capsys):
    client = CustomerSync.open_clickhouse()
    client.command("ALTER TABLE customers MODIFY COLUMN vip String")
    assert run_command(["sync", "plan", "CustomerSync"]) == 0
    assert "only with --risky" in capsys.readouterr().out
    assert run_command(["sync", "apply", "CustomerSync"]) == 2
    assert run_command(["sync", "apply", "CustomerSync", "--risky"]) == 0


def test_init_prints_or_makes_the_tables_of_model_sync(shop, capsys):
    assert run_command(["sync", "init", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ran"], [bool(one["statements"]) for one in told["databases"]]) == (False, [True])
    assert run_command(["sync", "apply", "--json"]) == 0
    assert {"CustomerSync", "OrderSync"} <= set(json.loads(capsys.readouterr().out)["plans"])
    assert run_command(["sync", "init"]) == 0
    assert "CREATE TABLE IF NOT EXISTS oncehouse_sync_operations" in capsys.readouterr().out
    with connections[shop.alias].cursor() as cursor:
        cursor.execute("DROP TABLE oncehouse_sync_operations")
    assert run_command(["sync", "init", "--yes"]) == 0
    assert shop.waiting(CustomerSync) == []


def test_a_sync_that_nobody_declared_and_a_module_that_is_not_there_are_refused(shop, capsys, monkeypatch):
    assert run_command(["sync", "status", "NoSync"]) == 2
    assert "there are: CustomerSync, OrderSync" in capsys.readouterr().err
    assert run_command(["sync", "status", "--module", "no_such_module"]) == 2
    assert "no module 'no_such_module'" in capsys.readouterr().err
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    monkeypatch.setattr("oncehouse.sync.discovery.registered_syncs", list)
    assert run_command(["sync", "status"]) == 2
    assert "--module" in capsys.readouterr().err


def test_the_management_command_syncs_once(shop, ann):
    out, err = io.StringIO(), io.StringIO()
    call_command("clickhouse_sync", "--once", stdout=out, stderr=err)
    assert "CustomerSync: 1 operations, 1 rows" in out.getvalue()
    assert shop.rows(CustomerSync, "name") == [("Ann",)]
    CustomerSync.forget()
    CustomerSync.open_clickhouse().command("DROP TABLE customers SYNC")
    with pytest.raises(CommandError, match="not all syncs"):
        call_command("clickhouse_sync", "CustomerSync", "--once", stdout=out, stderr=err)
    assert "does not exist" in err.getvalue()
    with pytest.raises(CommandError, match="there is no sync"):
        call_command("clickhouse_sync", "Nobody")


def test_the_management_command_goes_on_until_a_signal(shop, ann):
    out = io.StringIO()
    stopping = stop_once(lambda: "CustomerSync: 1 operations" in out.getvalue())
    call_command("clickhouse_sync", stdout=out)
    stopping.join()
    assert "CustomerSync: 1 operations, 1 rows" in out.getvalue()


def test_a_migration_makes_the_table_of_a_sync(shop):
    client = CustomerSync.open_clickhouse()
    client.command("DROP TABLE customers SYNC")
    operation = SyncTable("sync_shop.clickhouse_models.CustomerSync")
    with connections["default"].schema_editor() as editor:
        operation.database_forwards("sync_shop", editor, None, None)
    assert client.query("EXISTS TABLE customers") == [(0,)]
    with connections[shop.alias].schema_editor() as editor:
        operation.database_forwards("sync_shop", editor, None, None)
        operation.database_backwards("sync_shop", editor, None, None)
        assert client.query("EXISTS TABLE customers") == [(1,)]
        with pytest.raises(ConfigurationError, match="no such class"):
            SyncTable("sync_shop.Nobody").database_forwards("sync_shop", editor, None, None)
    assert "CustomerSync" in operation.describe()


def test_the_migration_of_model_sync_can_be_taken_back(shop):
    call_command("migrate", "oncehouse_sync", database=shop.alias, verbosity=0)
    call_command("migrate", "oncehouse_sync", "zero", database=shop.alias, verbosity=0)
    with connections[shop.alias].cursor() as cursor:
        names = connections[shop.alias].introspection.table_names(cursor)
    assert not [name for name in names if name.startswith("oncehouse_sync")]
    call_command("migrate", "oncehouse_sync", database=shop.alias, verbosity=0)
    assert shop.waiting(CustomerSync) == []


def test_settings_have_another_prefix_if_you_like(shop):
    with override_settings(CLICKHOUSE_SETTINGS_PREFIX="CH_", CH_SYNC_BATCH_SIZE=7):
        OrderSync.forget()
        assert OrderSync.declaration().batch_size == 7
    OrderSync.forget()


def test_two_syncs_of_one_name_are_refused(shop):
    class Twin(ModelSync):
        django_model = Customer
        sync_name = "CustomerSync"

    try:
        with pytest.raises(CommandError, match="both call themselves CustomerSync"):
            call_command("clickhouse_sync", "--once")
    finally:
        _registered.remove(Twin)


def test_celery_tasks_start_what_is_due_in_its_queue(shop, ann, monkeypatch):
    pytest.importorskip("celery", reason="Celery is an extra and is not installed here")
    from celery import Celery

    app = Celery("tests", broker="memory://", set_as_current=True)
    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = True
    from oncehouse.sync.django import tasks

    assert tasks.clickhouse_auto_sync.name == "oncehouse.sync.django.tasks.clickhouse_auto_sync"
    started = []
    apply_async = tasks.sync_clickhouse_model.apply_async

    def note(arguments, **options):
        started.append((arguments, options["queue"]))
        return apply_async(arguments, **options)

    monkeypatch.setattr(tasks.sync_clickhouse_model, "apply_async", note)
    monkeypatch.setattr(OrderSync, "queue", "slow")
    for sync in SYNCS:
        monkeypatch.setattr(sync, "sync_delay", 3_600.0)
        sync.forget()
    tasks.clickhouse_auto_sync.delay()
    assert {(("CustomerSync",), "celery"), (("OrderSync",), "slow")} <= set(started)
    assert shop.rows(CustomerSync, "name") == [("Ann",)]
    started.clear()
    tasks.clickhouse_auto_sync.delay()
    assert started == []
