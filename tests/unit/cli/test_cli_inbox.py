"""`oncehouse inbox` on a SQLite database: tables, looking at messages, putting parked ones right, working them off."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from inbox_examples import message
from oncehouse.cli.app import run_command
from oncehouse.messaging.inbox.stored import StoredInbox

HANDLER = """
def bill(session, message):
    if message.value == b"bad":
        raise ValueError("no [red]such\\ncustomer")

async def bill_later(session, message):
    pass

def stop(session, message):
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)

def alone(message):
    pass

number = 7
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "inbox_shop", raising=False)
    (tmp_path / "inbox_shop.py").write_text(HANDLER)
    path = tmp_path / "messaging.yaml"
    path.write_text(
        "database: sqlite:///shop.db\n"
        "inbox:\n  names: [orders]\n  retries: {attempts: 2, first_wait: 0, longest_wait: 0}\n"
    )
    return path


@pytest.fixture
def stored(file):
    opened = StoredInbox("orders", f"sqlite:///{file.parent}/shop.db")
    opened.create_tables()
    yield opened
    opened.close()


def run_json(capsys, *arguments):
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def parked(stored, capsys) -> StoredInbox:
    stored.store([message("good"), message("bad", value=b"bad", key=None)])
    assert run_command(["inbox", "work", "inbox_shop:bill", "--once"]) == 0
    assert capsys.readouterr().out == "orders: 1 handled, 2 attempts failed, 1 parked\n"
    return stored


def test_a_failing_handler_is_told_while_it_works(stored, capsys, caplog):
    stored.store([message("bad", value=b"bad")])
    assert run_command(["inbox", "work", "inbox_shop:bill", "--once"]) == 0
    assert "message bad was not handled: ValueError: no [red]such" in caplog.text
    assert "`oncehouse inbox list --state waiting --state parked` shows why" in capsys.readouterr().err


def test_init_prints_the_statements_and_runs_them_only_when_told(file, capsys):
    assert run_command(["inbox", "init"]) == 0
    out = capsys.readouterr().out
    assert "CREATE TABLE IF NOT EXISTS oncehouse_inbox_seen" in out
    assert "\\t" not in out
    assert "nothing was changed" in out
    assert run_command(["inbox", "status"]) == 2
    assert "oncehouse inbox init --yes" in capsys.readouterr().err
    assert run_json(capsys, "inbox", "init", "--yes")["ran"]
    assert run_command(["inbox", "init", "--yes"]) == 0, "what exists is kept"
    assert run_json(capsys.readouterr() and capsys, "inbox", "status") == {"inboxes": [], "consumers": []}


def test_status_counts_by_state(parked, capsys):
    parked.store([message("new")])
    (found,) = run_json(capsys, "inbox", "status")["inboxes"]
    assert (found["waiting"], found["parked"], found["done"], found["workers"]) == (1, 1, 1, [])
    assert run_command(["inbox", "status"]) == 0
    assert "orders" in capsys.readouterr().out


def test_dead_letters_are_listed_with_their_reason(parked, capsys):
    assert run_command(["inbox", "list"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["number", "inbox", "id"]
    assert "bad" in line
    assert line.rstrip().endswith("ValueError: no [red]such")


def test_messages_are_listed_by_state_inbox_and_place(parked, capsys):
    def ids(*arguments):
        return [
            one["message_id"].removeprefix("header:orders/")
            for one in run_json(capsys, "inbox", "list", *arguments)["messages"]
        ]

    assert ids("--state", "done") == ["good"]
    assert ids("--state", "done", "--state", "parked") == ["good", "bad"]
    assert ids("--state", "done", "--state", "parked", "--after", "1") == ["bad"]
    assert ids("--state", "done", "--state", "parked", "--limit", "1") == ["good"]
    assert ids("--inbox", "other") == []
    assert run_command(["inbox", "list", "--state", "lost"]) == 2
    assert "states are waiting, done, parked, dropped" in capsys.readouterr().err


def test_a_message_is_shown_with_its_bytes(parked, capsys):
    (found,) = run_json(capsys, "inbox", "show", "bad")["messages"]
    assert found["error"] == "ValueError: no [red]such\ncustomer"
    assert found["message"]["value"] == "YmFk"
    assert run_command(["inbox", "show", "bad"]) == 0
    out = capsys.readouterr().out
    assert "orders/0/0" in out
    assert "oncehouse-id" in out
    assert run_command(["inbox", "show", "nothing"]) == 2


def test_a_parked_message_is_tried_again_and_parked_again(parked, capsys):
    assert run_json(capsys, "inbox", "retry", "--id", "bad") == {"messages": ["header:orders/bad"]}
    assert run_json(capsys, "inbox", "list", "--state", "waiting")["messages"][0]["attempts"] == 0
    found = run_json(capsys, "inbox", "work", "inbox_shop:bill", "--once")
    assert (found["failed"], found["parked"]) == (2, 1)
    assert run_command(["inbox", "retry", "--all"]) == 0
    assert capsys.readouterr().out == "1 message will be tried again by the workers\n"


def test_a_dropped_message_is_never_handled_and_its_repeats_are_skipped(parked, capsys):
    assert run_json(capsys, "inbox", "drop", "--id", "bad") == {"messages": ["header:orders/bad"]}
    assert run_json(capsys, "inbox", "list")["messages"] == []
    assert parked.store([message("bad", value=b"bad", key=None)]).repeated == 1
    assert run_json(capsys, "inbox", "work", "inbox_shop:bill", "--once")["done"] == 0


def test_a_hand_on_what_is_not_parked_changes_nothing(parked, capsys):
    for command in ("retry", "drop"):
        assert run_command(["inbox", command, "--id", "bad", "--id", "good"]) == 2
        assert "'good' is not among its parked messages, so nothing was changed" in capsys.readouterr().err
        assert run_command(["inbox", command]) == 2
        assert "--id ID, as often as needed, or --all" in capsys.readouterr().err
    assert [one["message_id"] for one in run_json(capsys, "inbox", "list")["messages"]] == [
        "header:orders/bad"
    ]


def test_cleanup_tells_what_it_forgot(parked, capsys):
    assert run_json(capsys, "inbox", "cleanup") == {"ids": 0, "messages": 0}
    assert run_command(["inbox", "cleanup"]) == 0
    assert capsys.readouterr().out == "forgot 0 ids and 0 finished messages\n"


def test_async_handlers_work_too(stored, capsys):
    stored.store([message("1")])
    assert run_json(capsys, "inbox", "work", "inbox_shop:bill_later", "--once")["done"] == 1


def test_a_worker_ends_on_sigterm_when_its_handlers_have_ended(stored, capsys):
    stored.store([message("1")])
    assert run_json(capsys, "inbox", "work", "inbox_shop:stop")["done"] == 1


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("inbox_shop", "write MODULE:FUNCTION"),
        ("inbox_nowhere:bill", "there is no module 'inbox_nowhere'"),
        ("inbox_shop:nothing", "has no function 'nothing'"),
        ("inbox_shop:number", "has no function 'number'"),
        (
            "inbox_shop:alone",
            "is called with (session, message), which it does not take: too many positional",
        ),
        ("inbox_broken:bill", "inbox_broken cannot be imported: ZeroDivisionError"),
        (
            "inbox_lacking:bill",
            "inbox_lacking cannot be imported: ModuleNotFoundError: No module named 'inbox_gone'",
        ),
    ],
)
def test_a_handler_that_cannot_be_called_is_named(stored, capsys, handler, says):
    Path("inbox_broken.py").write_text("1 / 0\n")
    Path("inbox_lacking.py").write_text("import inbox_gone\n")
    assert run_command(["inbox", "work", handler]) == 2
    assert says in capsys.readouterr().err


def test_serving_needs_to_know_the_inboxes(file, capsys):
    file.write_text("database: sqlite:///shop.db\n")
    assert run_command(["inbox", "serve"]) == 2
    assert "inbox.names is empty" in capsys.readouterr().err


def test_serving_without_tables_says_how_they_are_made(file, capsys):
    assert run_command(["inbox", "serve"]) == 2
    assert "oncehouse inbox init --yes" in capsys.readouterr().err


def test_the_inlet_serves_until_sigterm(stored, file, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file.write_text(file.read_text() + f"  inlet: {{port: {port}}}\n")
    answers = []

    def ask() -> None:
        for _ in range(200):
            try:
                answers.append(httpx.get(f"http://127.0.0.1:{port}/health").json())
                break
            except httpx.TransportError:
                time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    thread.start()
    assert run_command(["inbox", "serve"]) == 0
    thread.join()
    assert answers == [{"ok": True}]
    assert capsys.readouterr().out == f"listening on http://127.0.0.1:{port} for orders\n"
