"""`oncehouse schema plan` and `apply` on real tables: additive by itself, more only when told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.schema.identity_guard import identity_of

COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red"]}
MORE = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}


@pytest.fixture
def file(tmp_path, clickhouse, database) -> Path:
    """Two versions; the table was made for the first."""
    versions = {
        "1": [("id", "long"), ("size", "int"), ("colour", COLOUR), ("gone", "string")],
        "2": [("id", "long"), ("size", "long"), ("colour", MORE), ("note", "string")],
    }
    for version, fields in versions.items():
        record = {"type": "record", "name": "O", "fields": [{"name": n, "type": t} for n, t in fields]}
        (tmp_path / f"{version}.avsc").write_text(json.dumps(record))
    document = {
        "pipeline": "orders",
        "source": {
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"version": "header", "schemas": {version: f"{version}.avsc" for version in versions}},
            "fields": {"id": "Int64", "size": "Int32", "colour": "Enum8('red' = 1)", "gone": "String"},
        },
        "identity": {"fields": ["id"]},
        "tables": [{"name": f"{database}.orders"}],
        "clickhouse": {"url": f"http://127.0.0.1:{clickhouse.place.ports['http']}"},
        "ledger": {"catalog": "sqlite:///catalog.db", "files": "files"},
    }
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    assert run_command(["table", "create", str(path), "--yes"]) == 0
    pipeline = load_pipeline(path)
    catalog = open_catalog(pipeline)
    catalog.prepare()
    catalog.adopt(identity_of(pipeline))
    catalog.close()
    return path


def columns(client, database) -> dict[str, str]:
    rows = client.query(
        f"SELECT name, type FROM system.columns WHERE database = '{database}' ORDER BY position"
    )
    return {name: type_ for name, type_ in rows.result_rows if not name.startswith("_")}


def test_a_new_version_widens_the_table_and_stored_values_stay(file, clickhouse_client, database, capsys):
    clickhouse_client.command(
        f"INSERT INTO {database}.orders (id, size, colour, gone) VALUES (1, -7, 'red', 'x')"
    )
    before = columns(clickhouse_client, database)
    assert run_command(["schema", "plan", str(file)]) == 0
    told = capsys.readouterr().out
    assert "field size Int64 (widen): version 2 has Int64" in told
    assert "field gone Nullable(String) (widen): version 2 has it no more" in told
    assert columns(clickhouse_client, database) == before, "a plan changes nothing"
    assert run_command(["schema", "apply", str(file), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["run"]) == 4
    assert columns(clickhouse_client, database) == {
        "id": "Int64",
        "size": "Int64",
        "colour": "Enum8('red' = 1, 'blue' = 2)",
        "gone": "Nullable(String)",
        "note": "Nullable(String)",
    }
    found = clickhouse_client.query(f"SELECT id, size, colour, gone, note FROM {database}.orders").result_rows
    assert found == [(1, -7, "red", "x", None)]
    # What was learnt counts for the whole pipeline: its tables fit, and there is nothing more to do.
    assert run_command(["schema", "plan", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [change for change in plan["columns"] if change["statement"]] == []
    assert [change for change in plan["fields"] if change["type"]] == []
    assert run_command(["table", "create", str(file)]) == 0
    assert "`note` Nullable(String)" in capsys.readouterr().out


def test_what_could_change_values_is_left_alone_unless_told(file, clickhouse_client, database, capsys):
    clickhouse_client.command(f"ALTER TABLE {database}.orders MODIFY COLUMN gone Nullable(String)")
    assert run_command(["schema", "apply", str(file), "--version", "1"]) == 0
    told = capsys.readouterr().out
    assert "0 statements were run" in told
    clickhouse_client.command(f"ALTER TABLE {database}.orders MODIFY COLUMN size Int64")
    assert run_command(["schema", "apply", str(file), "--version", "1"]) == 0
    told = capsys.readouterr().out
    assert "left alone (the table has Int64, the pipeline sends Int32)" in told
    assert columns(clickhouse_client, database)["size"] == "Int64"
    assert run_command(["schema", "apply", str(file), "--version", "1", "--allow-narrowing"]) == 0
    assert columns(clickhouse_client, database)["size"] == "Int32"
