"""Answers of commands that no other test asks for as JSON; conftest holds every one of them to the published schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from answer_schemas import validator
from etl_shop import BASE_MS, BOUND, open_shop
from oncehouse.cli.app import run_command
from oncehouse.messaging import Outbox
from oncehouse.messaging.outbox.tables import create_outbox, outbox_tables

ROW = json.dumps({"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def ask(capsys) -> Callable[..., dict]:
    """The last document of a command, which fits the schema of its words; told which those are by `words`."""

    def run(words: str, *arguments: object) -> dict:
        capsys.readouterr()
        assert run_command([*words.split(), *map(str, arguments), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for line in lines:
            validator(f"commands/{words}").validate(line)
        return lines[-1]

    return run


def test_the_scheduler_answers_as_published(ask, clickhouse, database, tmp_path, monkeypatch):
    url = f"http://127.0.0.1:{clickhouse.place.ports['http']}"
    monkeypatch.chdir(tmp_path)
    topics = [
        {"topic": "Stage", "dst": f"{database}.stage"},
        {
            "topic": "Fact",
            "dst": f"{database}.fact",
            "depends_on": [f"{database}.stage"],
            "transform": "fact.sql",
            "expect": [{"check": "rows", "at_least": 1}],
        },
    ]
    lineage = tmp_path / "lineage"
    lineage.mkdir()
    (lineage / "shop.yaml").write_text(yaml.safe_dump({"topics": topics}), encoding="utf-8")
    (lineage / "fact.sql").write_text(
        f"SELECT pos, id, v, c FROM {database}.stage ARRAY JOIN [1, 2] AS c WHERE {BOUND}", encoding="utf-8"
    )
    settings = {
        "clickhouse": {"url": url},
        "database": database,
        "offsets": {"store": "catalog", "catalog": "sqlite:///positions.db"},
    }
    Path("etl.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with open_shop(url, database, tmp_path) as shop:
        shop.add(0, 10)

    assert ask("etl init", "--yes")["ran"]
    assert ask("etl check")["ok"]
    assert len(ask("etl sync", "--yes")["changes"]) == 2
    assert ask("etl log create", "Fact", "--yes")["topic"] == "Fact"
    (step,) = ask("etl plan")["steps"]
    assert step["rows"] == 10
    assert ask("etl run", "--once") == {
        "event": "end",
        "steps": {"Fact": 1},
        "rows": {"Fact": 10},
        "failed": {},
    }
    assert [topic["topic"] for topic in ask("etl status")["topics"]] == ["Fact"]
    assert ask("etl log")["log"][0]["rows"] == 20
    assert ask("etl log checks")["checks"][0]["outcome"] == "held"
    assert ask("etl pause", "Fact")["state"] == "paused"
    assert ask("etl resume", "Fact")["state"] == ""
    assert ask("etl unlock", "Fact")["hostid"] == ""
    forced = ask("etl seek", "Fact", "start", "--force")
    assert forced["book"]["forced_upto"] == {"time_ms": BASE_MS + 9, "id": 9}, "the newest row of the table"
    assert ask("etl seek", "Fact", "2026-02-01")["topic"] == "Fact"
    assert ask("etl backfill", "Fact", "--from", "2026-01-15")["topic"] == "Fact"


def test_the_outbox_answers_as_published(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("messaging.yaml").write_text("database: sqlite:///app.db\n", encoding="utf-8")
    engine, outbox = create_engine(f"sqlite:///{tmp_path}/app.db"), Outbox()
    with engine.begin() as connection:
        create_outbox(connection, outbox_tables())
    with Session(engine) as session, session.begin():
        for _ in range(2):
            outbox.add(session, "orders", "k", {"n": 1})
        session.execute(update(outbox.table).values(parked_at=1e9, last_error="too large", attempts=1))
    engine.dispose()
    assert ask("outbox status")["parked"] == 2
    assert ask("outbox drop", "--all") == {"dropped": False, "messages": 2, "freed": 0}
    assert ask("outbox retry", "--all") == {"messages": 2, "freed": 0}


def test_schemas_answer_as_published(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["init"]) == 0
    pipeline = yaml.safe_load(Path("pipeline.yaml").read_text(encoding="utf-8"))
    Path("row.avsc").write_text(ROW, encoding="utf-8")
    pipeline["source"] |= {"format": "avro", "avro": {"version": "prefix", "schemas": {"1": "row.avsc"}}}
    pipeline["source"]["fields"], pipeline["identity"]["fields"] = {"id": "Int64"}, ["id"]
    Path("pipeline.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    (added,) = ask("schema add", "2", "--avsc", "row.avsc")["added"]
    assert added["schema"] == "2"
    assert ask("schema show", "2")["fields"] == {"id": "Int64"}
