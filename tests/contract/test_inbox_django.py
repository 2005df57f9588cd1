"""The inbox in Django: remembered with the handler's own writes, in one transaction of Django's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, inspect, update

from django_site import open_database, set_up
from inbox_examples import message
from oncehouse.common.database import begin, open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.once import InboxCounts
from oncehouse.messaging.inbox.tables import handled_ids, metadata

set_up()

import django  # noqa: E402 - Django wants its settings first
from django.apps import apps  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402

from oncehouse.messaging.django import inbox, outbox  # noqa: E402
from oncehouse.messaging.django.models import OutboxRow, SeenRow  # noqa: E402


@pytest.fixture
def alias(catalog_url) -> Iterator[str]:
    with open_database(catalog_url) as alias:
        yield alias


@pytest.fixture
def migrated(alias) -> str:
    call_command("migrate", "oncehouse_messaging", database=alias, verbosity=0)
    return alias


@pytest.fixture
def consumer() -> str:
    """Names are taken once a process."""
    return f"billing-{uuid.uuid4().hex}"


@pytest.fixture
def bill(migrated, consumer):
    """A handler whose effect is a message of its own, so that both meet in one transaction."""

    @inbox.once(consumer=consumer, keep="7d", using=migrated)
    def handler(given):
        for one in given if isinstance(given, list) else [given]:
            outbox.add("billed", "k", one.message_id, using=migrated)
        return "billed"

    return handler


def billed(alias: str) -> list[str]:
    rows = OutboxRow.objects.using(alias).order_by("seq")
    return [bytes(row.value).decode() for row in rows]


def test_a_message_that_comes_again_is_skipped_and_counted(migrated, bill, consumer):
    assert [bill(message(one)) for one in ("1", "2", "1")] == ["billed", "billed", None]
    assert billed(migrated) == ["1", "2"]
    assert inbox.counts()[consumer] == InboxCounts(handled=2, repeated=1)


def test_of_a_batch_the_handler_gets_only_what_is_new(migrated, bill):
    bill([message("1"), message("2"), message("1")])
    bill([message("2"), message("3")])
    bill([])
    assert billed(migrated) == ["1", "2", "3"]


def test_what_rolled_back_is_not_remembered(migrated, bill, consumer):
    with transaction.atomic(using=migrated):
        bill(message("1"))
        transaction.set_rollback(True, using=migrated)
    assert billed(migrated) == []
    assert SeenRow.objects.using(migrated).count() == 0
    bill(message("1"))
    assert billed(migrated) == ["1"]
    row = SeenRow.objects.using(migrated).get(consumer=consumer)
    assert str(row) == f"header:orders/1 of {consumer}"
    assert row.keep_until - row.seen_at == pytest.approx(7 * 86_400, abs=5)


def test_a_handler_that_fails_leaves_nothing_behind_even_if_the_caller_goes_on(migrated, consumer):
    failing = [True, False]

    @inbox.once(consumer=consumer, keep="7d", using=migrated)
    def handler(one):
        outbox.add("billed", "k", one.message_id, using=migrated)
        if failing.pop(0):
            raise ValueError("no")

    with transaction.atomic(using=migrated):
        with pytest.raises(ValueError):
            handler(message("1"))
        handler(message("1"))
    assert billed(migrated) == ["1"]


def test_ids_are_forgotten_after_their_time(migrated, bill, catalog_url):
    bill([message(str(n)) for n in range(5)])
    assert inbox.clean_up(using=migrated) == 0
    engine = open_engine(catalog_url, setting="database")
    with begin(engine, whose="test") as connection:
        connection.execute(update(handled_ids).values(keep_until=1.0))
    engine.dispose()
    assert inbox.clean_up(using=migrated, batch_rows=2) == 5
    assert SeenRow.objects.using(migrated).count() == 0


def test_migrate_makes_the_tables_of_the_inbox_and_takes_them_back(migrated, catalog_url):
    engine = create_engine(catalog_url)
    assert set(inspect(engine).get_table_names()) >= set(metadata.tables)
    call_command("migrate", "oncehouse_messaging", "0001", database=migrated, verbosity=0)
    assert not inspect(engine).has_table("oncehouse_inbox_seen")
    assert inspect(engine).has_table("oncehouse_outbox")
    call_command("migrate", "oncehouse_messaging", database=migrated, verbosity=0)
    assert inspect(engine).has_table("oncehouse_inbox_seen")
    engine.dispose()


def test_the_model_says_what_the_table_has():
    fields = {field.column for field in SeenRow._meta.get_fields() if field.concrete and field.column}
    assert fields == {column.name for column in handled_ids.columns}


def test_missing_tables_are_named_with_the_command_that_makes_them(alias, consumer):
    handler = inbox.once(consumer=consumer, keep="7d", using=alias)(lambda _one: None)
    with pytest.raises(ConfigurationError, match=r"manage\.py migrate"):
        handler(message("1"))


def test_an_async_handler_is_refused(consumer):
    async def handler(_one):
        raise AssertionError

    with pytest.raises(ConfigurationError, match="plain handler"):
        inbox.once(consumer=consumer, keep="7d")(handler)


def test_an_older_django_is_refused_by_name(monkeypatch):
    app = apps.get_app_config("oncehouse_messaging")
    monkeypatch.setattr(django, "VERSION", (5, 1, 9, "final", 0))
    with pytest.raises(ConfigurationError, match=r"needs Django 5\.2 or newer.*this is 5\.1\.9"):
        app.import_models()
