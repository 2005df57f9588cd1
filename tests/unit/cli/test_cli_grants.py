"""`oncehouse grants` from the command line; what the rights are worth is tried in tests/integration/test_roles.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hostile_names import QUOTABLE, REFUSED
from oncehouse.cli.app import run_command


@pytest.fixture
def file(tmp_path) -> str:
    return write(tmp_path)


def write(folder: Path, *, url: str = "http://h:1/sales", **source: object) -> str:
    document = {
        "pipeline": "shop",
        "source": {
            "kafka": {"bootstrap_servers": "a:1", "topics": ["events"]},
            "fields": {"id": "UInt64", "session": "UUID"},
        }
        | source,
        "identity": {"fields": ["id"]},
        "tables": [{"name": "events"}, {"name": "other.facts", "id_column": None}],
        "clickhouse": {"url": url},
        "ledger": {"catalog": "sqlite:///c.db", "files": "files"},
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def statements(text: str) -> list[str]:
    return [line.partition(";")[0] for line in text.splitlines() if line.startswith("GRANT ")]


def test_each_role_has_its_statements_and_each_right_stands_once(file, capsys):
    assert run_command(["grants", file]) == 0
    assert statements(capsys.readouterr().out) == [
        "GRANT INSERT ON `sales`.`events` TO `oncehouse_writer`",
        "GRANT SELECT ON `sales`.`events` TO `oncehouse_writer`",
        "GRANT SELECT ON system.processes TO `oncehouse_writer`",
        "GRANT INSERT ON `other`.`facts` TO `oncehouse_writer`",
        "GRANT SELECT ON `other`.`facts` TO `oncehouse_writer`",
        "GRANT CREATE TABLE ON `sales`.`events` TO `oncehouse_migrator`",
        "GRANT TABLE ENGINE ON MergeTree TO `oncehouse_migrator`",
        "GRANT ALTER ADD COLUMN ON `sales`.`events` TO `oncehouse_migrator`",
        "GRANT ALTER MODIFY COLUMN ON `sales`.`events` TO `oncehouse_migrator`",
        "GRANT ALTER SETTINGS ON `sales`.`events` TO `oncehouse_migrator`",
        "GRANT CREATE TABLE ON `other`.`facts` TO `oncehouse_migrator`",
        "GRANT ALTER ADD COLUMN ON `other`.`facts` TO `oncehouse_migrator`",
        "GRANT ALTER MODIFY COLUMN ON `other`.`facts` TO `oncehouse_migrator`",
        "GRANT ALTER SETTINGS ON `other`.`facts` TO `oncehouse_migrator`",
        "GRANT SELECT(`_batch_id`, `_unique_id`) ON `sales`.`events` TO `oncehouse_reader`",
        "GRANT SELECT(`_batch_id`) ON `other`.`facts` TO `oncehouse_reader`",
    ]


def test_a_pipeline_that_adds_columns_needs_the_right_to_and_a_url_without_a_database_means_default(
    tmp_path, capsys
):
    file = write(tmp_path, url="http://h:1", new_fields="add")
    assert run_command(["grants", "--role", "writer", "--user", "loader", file]) == 0
    found = statements(capsys.readouterr().out)
    assert "GRANT ALTER ADD COLUMN ON `default`.`events` TO `loader`" in found


def test_rights_that_nothing_fails_without_are_comments(file, capsys):
    run_command(["grants", "--role", "writer", file])
    said = capsys.readouterr().out
    assert "\n-- GRANT SELECT ON system.replicas TO " in said
    assert "\n-- GRANT CREATE TEMPORARY TABLE ON *.* TO " in said


@pytest.mark.parametrize("user", QUOTABLE.values(), ids=QUOTABLE)
def test_a_strange_user_is_quoted_and_json_holds_the_whole_statement(user, file, capsys):
    assert run_command(["grants", "--json", "--role", "reader", "--user", user, file]) == 0
    found = json.loads(capsys.readouterr().out)["reader"]
    assert found["user"] == user
    escaped = user.replace("\\", "\\\\").replace("`", "\\`")
    assert all(grant["statement"].endswith(f" TO `{escaped}`") for grant in found["grants"])


@pytest.mark.parametrize("user", REFUSED.values(), ids=REFUSED)
def test_a_user_that_cannot_be_is_refused(user, file, capsys):
    assert run_command(["grants", "--role", "reader", "--user", user, file]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "--user" in said.err


def test_a_user_without_a_role_is_asked_for_one(file, capsys):
    assert run_command(["grants", "--user", "bob", file]) == 2
    assert "--role" in capsys.readouterr().err


def test_a_role_that_there_is_not_is_refused(file, capsys):
    assert run_command(["grants", "--role", "owner", file]) == 2
