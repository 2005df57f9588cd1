"""`oncehouse sync backfill`, `verify` and `replay` as a person runs them, and Django's management commands for them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from oncehouse.cli.app import run_command
from oncehouse.sync.verify import verify
from synced_shop import Shop, open_synced_shop

from django.core.management import call_command  # isort: skip - after the settings of synced_shop
from django.core.management.base import CommandError
from django.db import connections

from oncehouse.sync.django import Append
from sync_shop.clickhouse_models import CustomerSync
from sync_shop.models import Customer


@pytest.fixture
def shop(postgres_url, clickhouse, database, monkeypatch) -> Iterator[Shop]:
    # Django is set up already; the name is how the command knows that there is a project.
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "the_tests_settings")
    monkeypatch.setattr(verify, "PAUSE_SECONDS", 0.01)
    with open_synced_shop(postgres_url, clickhouse, database, (CustomerSync,)) as shop:
        people = [Customer(name=f"{n}") for n in range(6)]
        Customer.objects.using(shop.alias).bulk_create(people)
        shop.forget_waiting()
        yield shop


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run_command(["sync", *arguments]) == code
    return capsys.readouterr().out


def test_backfill_and_verify_tell_programs_what_they_did(shop, capsys):
    lines = [json.loads(line) for line in ask(capsys, "backfill", "CustomerSync", "--json").splitlines()]
    assert [line["event"] for line in lines] == ["progress", "backfilled"]
    assert (lines[1]["keys"], lines[1]["finished"]) == (6, True)
    told = json.loads(ask(capsys, "verify", "CustomerSync", "--json").splitlines()[-1])
    assert (told["ok"], told["syncs"][0]["rows"]) == (True, 6)


@pytest.mark.long
def test_backfill_verify_and_replay_by_hand(shop, capsys):
    out = ask(capsys, "backfill", "CustomerSync", "--chunk", "4")
    assert out.startswith("CustomerSync: 6 keys, 6 rows in ")
    assert "CustomerSync" in ask(capsys, "verify", "CustomerSync")
    key = Customer.objects.using(shop.alias).first().pk
    with connections[shop.alias].cursor() as cursor:
        cursor.execute("UPDATE sync_shop_customer SET name = 'raw' WHERE id = %s", [key])
    out = ask(capsys, "verify", "CustomerSync", code=3)
    assert f'CustomerSync: stale: ["{key}"]' in out
    assert "CustomerSync: `oncehouse sync verify --repair` syncs these keys again" in out
    [told] = [
        json.loads(line)
        for line in ask(capsys, "verify", "CustomerSync", "--json", code=3).splitlines()
        if '"verified"' in line
    ]
    assert told["ok"] is False
    [one] = told["syncs"]
    assert (one["sync"], one["rows"], one["repaired"]) == ("CustomerSync", 6, 0)
    assert one["stale"] == {"count": 1, "examples": [f'["{key}"]']}
    assert "CustomerSync: 1 keys were synced again" in ask(capsys, "verify", "CustomerSync", "--repair")
    assert "1 operations registered" in ask(capsys, "replay", "CustomerSync", "--key", str(key))
    told = json.loads(ask(capsys, "replay", "CustomerSync", "--since", "2026-01-01", "--json"))
    assert told == {"sync": "CustomerSync", "operations": 6}
    lines = ask(capsys, "replay", "CustomerSync", "--all", "--json").splitlines()
    end = json.loads(lines[-1])
    assert (end["event"], end["keys"], end["finished"]) == ("backfilled", 6, True)
    assert json.loads(lines[0])["event"] == "progress"


@pytest.mark.long
def test_what_cannot_be_replayed_is_refused(shop, capsys, monkeypatch):
    assert run_command(["sync", "replay", "CustomerSync"]) == 2
    assert run_command(["sync", "replay", "CustomerSync", "--all", "--key", "1"]) == 2
    assert "one of --key, --since and --all" in capsys.readouterr().err
    assert run_command(["sync", "replay", "CustomerSync", "--key", "7"]) == 1
    assert '["7"] is no key of Customer' in capsys.readouterr().err
    monkeypatch.setattr(CustomerSync, "engine", Append())
    CustomerSync.forget()
    assert run_command(["sync", "replay", "CustomerSync", "--all"]) == 2
    assert "Append table" in capsys.readouterr().err


@pytest.mark.long
def test_the_management_commands_do_the_same(shop):
    out, err = io.StringIO(), io.StringIO()
    call_command("clickhouse_sync_backfill", "CustomerSync", stdout=out, stderr=err)
    assert "CustomerSync: 6 keys, 6 rows" in out.getvalue()
    call_command("clickhouse_sync_verify", "CustomerSync", stdout=out, stderr=err)
    assert "CustomerSync: 6 rows in 1 ranges: missing 0, stale 0, extra 0, doubled 0" in out.getvalue()
    with connections[shop.alias].cursor() as cursor:
        cursor.execute("DELETE FROM sync_shop_customer WHERE name = '3'")
    with pytest.raises(CommandError, match="rows differ") as raised:
        call_command("clickhouse_sync_verify", "CustomerSync", stdout=out, stderr=err)
    assert raised.value.returncode == 3
    assert "CustomerSync: extra: [" in out.getvalue()
    assert "`oncehouse sync verify --repair` syncs these keys again" in out.getvalue()
    call_command("clickhouse_sync_verify", "CustomerSync", "--repair", "--chunk", "2", stdout=out, stderr=err)
    assert "CustomerSync: 1 keys were synced again" in out.getvalue()
    assert len(shop.rows(CustomerSync, "id")) == 5
    with pytest.raises(CommandError, match="there is no sync"):
        call_command("clickhouse_sync_backfill", "Nobody")


@pytest.mark.long
def test_status_tells_of_an_unfinished_backfill(shop, capsys, monkeypatch):
    CustomerSync.open_clickhouse().command("RENAME TABLE customers TO away")
    assert run_command(["sync", "backfill", "CustomerSync"]) == 2
    assert "the table customers does not exist" in capsys.readouterr().err
    assert json.loads(ask(capsys, "status", "CustomerSync", "--json"))["syncs"][0]["backfilled"] is None
    CustomerSync.open_clickhouse().command("RENAME TABLE away TO customers")
    monkeypatch.setattr(CustomerSync, "insert_batch", lambda *_batch, **_token: 1 / 0)
    assert run_command(["sync", "backfill", "CustomerSync"]) == 70
    monkeypatch.undo()
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "the_tests_settings")
    capsys.readouterr()
    [told] = json.loads(ask(capsys, "status", "CustomerSync", "--json"))["syncs"]
    assert told["backfilled"] == 0.0
    assert "CustomerSync: its backfill is unfinished" in ask(capsys, "status", "CustomerSync")
