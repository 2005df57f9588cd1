"""`oncehouse outbox init` and `trace` without any server: a database in a file, and stages that cannot be asked."""

import json
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, inspect, update
from sqlalchemy.orm import Session

from oncehouse.cli.app import run_command
from oncehouse.messaging.outbox.outbox import Outbox
from oncehouse.messaging.outbox.tables import DEFAULT_TABLE
from oncehouse.messaging.settings import OutboxSettings

OUTBOX = Outbox()


@pytest.fixture
def messaging(tmp_path):
    path = tmp_path / "messaging.yaml"
    path.write_text("database: sqlite:///app.db\nkafka: {bootstrap_servers: '127.0.0.1:1'}\n")
    return path


@pytest.fixture
def engine(messaging):
    assert run_command(["outbox", "init", str(messaging), "--yes", "--json"]) == 0
    opened = create_engine(f"sqlite:///{messaging.parent}/app.db")
    yield opened
    opened.dispose()


def run_json(capsys, *arguments, code=0):
    capsys.readouterr()
    assert run_command(["outbox", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def add(engine, **values):
    with Session(engine) as session, session.begin():
        message_id = OUTBOX.add(session, "orders", "k", {"n": 1})
        changes = update(OUTBOX.table).where(OUTBOX.table.c.id == message_id).values(**values)
        if values:
            session.execute(changes)
    return message_id


def test_the_section_names_the_table_that_the_code_means():
    assert OutboxSettings().table == DEFAULT_TABLE


def test_init_shows_the_statements_and_changes_nothing(messaging, capsys):
    assert run_command(["outbox", "init", str(messaging)]) == 0
    shown = capsys.readouterr().out
    assert "CREATE TABLE IF NOT EXISTS oncehouse_outbox (\n  seq INTEGER" in shown
    assert shown.endswith("-- nothing was changed; --yes runs these statements\n")
    assert not (messaging.parent / "app.db").exists()


def test_init_makes_the_tables_when_told_and_keeps_what_is_there(messaging, capsys):
    assert run_json(capsys, "init", messaging, "--yes")["outcome"] == "created"
    again = run_json(capsys, "init", messaging, "--yes")
    assert (again["table"], again["outcome"]) == ("oncehouse_outbox", "exists already, kept as it is")
    engine = create_engine(f"sqlite:///{messaging.parent}/app.db")
    assert inspect(engine).has_table("oncehouse_outbox")
    engine.dispose()


def test_init_for_postgresql_asks_no_server(messaging, capsys):
    messaging.write_text("database: postgresql+psycopg://nowhere:1/x\noutbox: {table: sales.outbox}\n")
    found = run_json(capsys, "init", messaging)
    assert found["table"] == "sales.outbox"
    assert any("CREATE OR REPLACE TRIGGER" in statement for statement in found["statements"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "database: sqlite:///a.db\noutbox: {table: 'a;b'}\n",
            "messaging.yaml:2: outbox.table: 'a;b' is not a name",
        ),
        ("{}\n", "the messaging file has no database"),
        ("# nothing\n", "is empty; write keys and values into it, such as `kafka: {bootstrap_servers"),
        ("database: mysql://x/y\n", "'mysql' is not a database of the outbox"),
        ("database: 'sqlite:///:memory:'\n", "messaging.yaml:1: database: is a database in memory"),
        ("database: nowhere\n", "database is not a database URL"),
    ],
)
def test_a_wrong_file_is_told(messaging, capsys, text, told):
    messaging.write_text(text)
    assert run_command(["outbox", "init", str(messaging)]) == 2
    assert told in capsys.readouterr().err


def test_a_waiting_message_is_shown_although_kafka_is_away(messaging, engine, capsys):
    message_id = add(engine, attempts=3, last_error="broker away")
    found = run_json(capsys, "trace", message_id, messaging, "--seconds", "0", code=75)
    row = found["outbox"]
    assert (row["state"], row["topic"], row["attempts"], row["last_error"]) == (
        "waiting",
        "orders",
        3,
        "broker away",
    )
    assert row["age_seconds"] >= 0
    assert found["kafka"]["failed"] is True
    assert "--pipeline" in found["pipeline"]["why"]
    assert run_command(["outbox", "trace", str(message_id), str(messaging), "--seconds", "0"]) == 75
    shown = capsys.readouterr().out
    assert "3 attempts failed, the last with: broker away" in shown
    assert "cannot be asked: Kafka at 127.0.0.1:1" in shown


def test_a_parked_message_and_those_behind_it_say_so_and_are_looked_for_nowhere(messaging, engine, capsys):
    parked = add(engine, parked_at=1e9, last_error="too large", attempts=1)
    behind = add(engine, parked_at=1e9, behind=parked)
    found = run_json(capsys, "trace", parked, messaging)
    assert (found["outbox"]["state"], found["outbox"]["last_error"]) == ("parked", "too large")
    assert found["kafka"]["why"] == "not looked for: a parked message is in no topic"
    found = run_json(capsys, "trace", behind, messaging)
    assert (found["outbox"]["state"], found["outbox"]["behind"]) == ("behind a parked one", str(parked))
    assert run_command(["outbox", "trace", str(behind), str(messaging)]) == 0
    assert f"parked 2001-09-09 01:46:40 behind {parked}" in capsys.readouterr().out


def test_a_sent_row_that_knows_its_place_needs_no_scan(messaging, engine, capsys):
    message_id = add(engine, sent_at=1e9, sent_partition=3, sent_offset=17)
    found = run_json(capsys, "trace", message_id, messaging)
    (place,) = found["kafka"]["places"]
    assert (found["outbox"]["state"], place["topic"], place["partition"], place["offset"]) == (
        "sent",
        "orders",
        3,
        17,
    )
    assert run_command(["outbox", "trace", str(message_id), str(messaging)]) == 0
    assert "orders/3/17, 2001-09-09 01:46:40" in capsys.readouterr().out


def test_a_message_that_is_nowhere_says_what_to_name(messaging, engine, capsys):
    found = run_json(capsys, "trace", uuid4(), messaging)
    assert "rolled back" in found["outbox"]["why"]
    assert "--topic" in found["kafka"]["why"]
    found = run_json(capsys, "trace", uuid4(), messaging, "--topic", "orders")
    assert "--since" in found["kafka"]["why"]


def test_looking_makes_no_database(messaging, capsys):
    found = run_json(capsys, "trace", uuid4(), messaging, code=75)
    assert found["outbox"] == {"why": "no such file", "failed": True}
    assert not (messaging.parent / "app.db").exists()


def test_a_database_without_the_table_is_told(messaging, tmp_path, capsys):
    (tmp_path / "app.db").touch()
    assert (
        "no table oncehouse_outbox" in run_json(capsys, "trace", uuid4(), messaging, code=75)["outbox"]["why"]
    )


def test_what_is_no_id_is_told(messaging, capsys):
    assert run_command(["outbox", "trace", "nope", str(messaging)]) == 2
    assert "'nope' is not the id of a message" in capsys.readouterr().err
