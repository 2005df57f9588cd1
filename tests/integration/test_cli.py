"""The command line against a real broker and a real ClickHouse: from an empty folder to a pipeline that may run."""

import json

import pytest

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text


@pytest.fixture
def file(tmp_path, kafka, clickhouse, database, topic):
    """A pipeline file for a topic that exists and a table that does not."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        example_text()
        .replace("localhost:9092", kafka.bootstrap_servers)
        .replace("topics: [events]", f"topics: [{topic()}]")
        .replace("http://localhost:8123", f"http://127.0.0.1:{clickhouse.place.ports['http']}/{database}")
    )
    return path


def run_json(capsys, *arguments):
    code = run_command([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def errors(told):
    return [finding for finding in told["findings"] if finding["level"] == "error"]


def test_a_missing_table_is_found_made_when_asked_and_found_right(file, capsys):
    code, told = run_json(capsys, "check", str(file))
    assert code == 2
    assert ["does not exist" in finding["what"] for finding in errors(told)] == [True]

    code, told = run_json(capsys, "table", "create", str(file))
    assert (code, told["tables"][0]["outcome"]) == (0, "not run")
    code, told = run_json(capsys, "check", str(file))
    assert code == 2

    code, told = run_json(capsys, "table", "create", str(file), "--yes")
    assert (code, told["tables"][0]["outcome"]) == (0, "created")
    code, told = run_json(capsys, "table", "create", str(file), "--yes")
    assert (code, told["tables"][0]["outcome"]) == (0, "exists already, kept as it is")

    code, told = run_json(capsys, "check", str(file))
    assert (code, told["ok"]) == (0, True)
    # Only the one broker and the rights of the server's administrator, who loads here, are remarked on.
    topic, user = (finding["where"] for finding in told["findings"])
    assert topic.endswith(": replication factor")
    assert user == "events: clickhouse.user"
    assert not (file.parent / "ledger" / "catalog.db").exists()


def test_a_missing_topic_and_a_missing_table_are_told_together(file, capsys):
    file.write_text(file.read_text().replace("topics: [", "topics: [no-such-topic, "))
    code, told = run_json(capsys, "check", str(file))
    assert code == 2
    assert {finding["where"] for finding in errors(told)} == {"kafka", "events"}
    assert "no-such-topic" in told["findings"][0]["what"]
