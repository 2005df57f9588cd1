"""The outbox as a Django app: its migration, its model, and what it asks of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from sqlalchemy import create_engine, inspect

from django_site import open_database, set_up
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.outbox.outbox import Outbox

set_up()

from django.core.management import call_command  # noqa: E402 - Django wants its settings first
from django.db import connections, transaction  # noqa: E402
from django.db.utils import IntegrityError  # noqa: E402

from oncehouse.messaging.django import outbox  # noqa: E402
from oncehouse.messaging.django.models import OutboxRow  # noqa: E402
from oncehouse.messaging.django.operations import CreateOutbox  # noqa: E402


@pytest.fixture
def alias(catalog_url) -> Iterator[str]:
    with open_database(catalog_url) as alias:
        yield alias


@pytest.fixture
def migrated(alias) -> str:
    call_command("migrate", "oncehouse_messaging", database=alias, verbosity=0)
    return alias


def test_migrate_makes_the_tables_that_the_relay_knows_and_can_take_the_outbox_back(
    migrated, catalog_url, tmp_path
):
    engine = create_engine(catalog_url)
    found = {column["name"] for column in inspect(engine).get_columns("oncehouse_outbox")}
    indexes = {index["name"] for index in inspect(engine).get_indexes("oncehouse_outbox")}
    tables = set(inspect(engine).get_table_names())
    assert found == {column.name for column in Outbox().table.columns}
    assert indexes == {index.name for index in Outbox().table.indexes}
    assert tables >= set(Outbox().metadata.tables)
    call_command("migrate", "oncehouse_messaging", "zero", database=migrated, verbosity=0)
    assert not inspect(engine).has_table("oncehouse_outbox")
    call_command("migrate", "oncehouse_messaging", database=migrated, verbosity=0)
    assert inspect(engine).has_table("oncehouse_outbox")
    engine.dispose()


def test_the_model_says_what_the_table_has(migrated):
    columns = {column.name: column.nullable for column in Outbox().table.columns}
    assert {field.column: field.null for field in OutboxRow._meta.get_fields()} == columns
    with transaction.atomic(using=migrated):
        message_id = outbox.add("orders", "k", "v", {"a": "b"}, using=migrated)
    row = OutboxRow.objects.using(migrated).get(id=message_id)
    assert (row.topic, bytes(row.key), bytes(row.value), row.attempts) == ("orders", b"k", b"v", 0)
    assert str(row) == f"{message_id} for orders"


def test_nothing_is_left_for_makemigrations():
    call_command("makemigrations", "oncehouse_messaging", check=True, dry_run=True, verbosity=0)


def test_sqlmigrate_shows_the_statements_of_outbox_init(alias):
    shown = StringIO()
    call_command("sqlmigrate", "oncehouse_messaging", "0001", database=alias, stdout=shown)
    dialect = connections[alias].vendor
    for statement in Outbox().ddl(dialect):
        assert statement.splitlines()[0] in shown.getvalue()


def test_outside_of_a_transaction_nothing_is_written_unless_that_is_meant(migrated):
    with pytest.raises(ConfigurationError, match=rf"outside of a transaction of the database '{migrated}'"):
        outbox.add("orders", "k", b"", using=migrated)
    assert OutboxRow.objects.using(migrated).count() == 0
    outbox.add("orders", "k", b"", using=migrated, without_transaction=True)
    assert OutboxRow.objects.using(migrated).count() == 1


def test_a_transaction_that_was_begun_by_hand_is_one(migrated):
    transaction.set_autocommit(False, using=migrated)
    try:
        outbox.add("orders", "k", b"", using=migrated)
        transaction.rollback(using=migrated)
    finally:
        transaction.set_autocommit(True, using=migrated)
    assert OutboxRow.objects.using(migrated).count() == 0


def test_the_routers_are_asked_where_no_database_is_named(migrated, monkeypatch):
    class ToTest:
        def db_for_write(self, model, **hints):
            return migrated if model is OutboxRow else None

    from django.db import router

    monkeypatch.setattr(router, "routers", [ToTest()])
    with transaction.atomic(using=migrated):
        outbox.add("orders", "k", b"")
    assert OutboxRow.objects.using(migrated).count() == 1


def test_a_database_that_routers_keep_the_app_from_is_left_alone(alias, catalog_url, monkeypatch):
    class KeepAway:
        def allow_migrate(self, db, app_label, **hints):
            return False

    from django.db import router

    monkeypatch.setattr(router, "routers", [KeepAway()])
    call_command("migrate", "oncehouse_messaging", database=alias, verbosity=0)
    engine = create_engine(catalog_url)
    assert not inspect(engine).has_table("oncehouse_outbox")
    engine.dispose()


def test_a_database_of_another_kind_is_refused_with_advice():
    class Editor:
        class connection:  # noqa: N801 - stands for Django's attribute
            alias, vendor = "default", "oracle"

    with pytest.raises(ConfigurationError, match="cannot be created in oracle"):
        CreateOutbox().database_forwards("oncehouse_messaging", Editor, None, None)


def test_errors_of_the_callers_own_transaction_stay_djangos(migrated, monkeypatch):
    with transaction.atomic(using=migrated):
        taken = outbox.add("orders", "k", b"", using=migrated)
    monkeypatch.setattr("oncehouse.messaging.outbox.row_builder.make_id", lambda: taken)
    with pytest.raises(IntegrityError), transaction.atomic(using=migrated):
        outbox.add("orders", "k", b"", using=migrated)


def test_a_larger_limit_can_be_asked_for(migrated):
    with transaction.atomic(using=migrated):
        with pytest.raises(ConfigurationError, match="the limit is 1,000,000"):
            outbox.add("orders", "k", b"x" * 1_000_000, using=migrated)
        outbox.add("orders", "k", b"x" * 1_000_000, using=migrated, max_bytes=2_000_000)
