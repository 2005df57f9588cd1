"""`oncehouse table create` shows its statements before it runs any."""

import json

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text


def test_statements_are_shown_and_nothing_is_run(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text().replace("http://localhost:8123", "http://nowhere.invalid:1"))
    assert run_command(["table", "create", str(file)]) == 0
    out = capsys.readouterr().out
    assert "CREATE TABLE `events`" in out
    assert "ORDER BY (`project`, `event_type`, `product_id`)" in out
    assert out.splitlines()[-1] == "-- nothing was changed; --yes runs these statements"


def test_the_sorting_key_follows_renamed_columns_and_the_engine_is_a_choice(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        example_text().replace(
            "  - name: events ",
            "  - name: shop.events\n    columns: {p: product_id, j: project, z: price}\n    #",
        )
    )
    assert run_command(["table", "create", str(file), "--engine", "ReplacingMergeTree", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert (table["table"], table["outcome"]) == ("shop.events", "not run")
    assert "ENGINE = ReplacingMergeTree\nORDER BY (`j`, `p`)" in table["statement"]


def test_an_engine_that_cannot_drop_repeats_is_refused(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text())
    assert run_command(["table", "create", str(file), "--engine", "Memory"]) == 2
    assert "MergeTree" in capsys.readouterr().err


DEBEZIUM = """
pipeline: p
source:
  kafka: {bootstrap_servers: "localhost:9092", topics: [t]}
  format: debezium
  fields: {id: Int64, region: String, _version: UInt64, _deleted: UInt8}
identity: {}
tables: [{name: t}]
clickhouse: {url: "http://nowhere.invalid:1"}
ledger: {catalog: "sqlite:///l.db", files: files}
"""


def test_rows_that_replace_each_other_need_a_key_to_be_told_apart(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(DEBEZIUM)
    create = ["table", "create", str(file), "--engine", "ReplacingMergeTree(_version, _deleted)"]
    assert run_command(create) == 2
    assert "--order-by" in capsys.readouterr().err
    assert run_command([*create, "--order-by", "id, region"]) == 0
    assert "ORDER BY (`id`, `region`)" in capsys.readouterr().out
    assert run_command([*create, "--order-by", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err
    assert run_command(["table", "create", str(file)]) == 0
    assert "ORDER BY tuple()" in capsys.readouterr().out
