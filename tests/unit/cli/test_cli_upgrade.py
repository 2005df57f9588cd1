"""`oncehouse upgrade`: what is missing, and doing it."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import old_ledger
from ledger_examples import take_lease
from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import VERSION

# The package's name `check` is the function.
check = sys.modules["oncehouse.cli.pipeline.check"]


@pytest.fixture
def old_file(file):
    """The example file over the catalog that a release left."""
    ledger = old_ledger.unpack(file.parent / "old")
    document = yaml.safe_load(file.read_text())
    document["pipeline"] = old_ledger.PIPELINE
    document["ledger"] = {"catalog": ledger.url, "files": str(ledger.folder / "files")}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def version_of(old_file) -> int:
    opened = Catalog(yaml.safe_load(old_file.read_text())["ledger"]["catalog"], old_ledger.PIPELINE)
    found = opened.version()
    opened.close()
    return found


def test_the_plan_tells_the_missing_steps_and_changes_nothing(old_file, capsys):
    assert run_command(["upgrade", str(old_file), "--plan"]) == 0
    told = capsys.readouterr().out
    assert "step 2: the catalog remembers which oncehouse brought it to which version" in told
    assert f"the catalog has version 1, this oncehouse works with {VERSION}; nothing was changed" in told
    assert version_of(old_file) == 1


def test_the_page_on_upgrades_shows_the_plan_and_every_version(old_file, capsys):
    run_command(["upgrade", str(old_file), "--plan"])
    page = (Path(__file__).parents[3] / "docs" / "upgrading.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in page
    versions = re.findall(r"^\| (\d+) \| [\d.]+ \|", page, re.MULTILINE)
    assert versions == [str(version) for version in range(1, VERSION + 1)]


def test_it_upgrades_and_then_finds_nothing_to_do(old_file, capsys):
    assert run_command(["upgrade", str(old_file)]) == 0
    assert f"the catalog was upgraded from version 1 to {VERSION}" in capsys.readouterr().out
    assert run_command(["upgrade", str(old_file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"] == told["catalog"]["version"] == VERSION
    assert [found["version"] for found in told["catalog"]["history"]] == list(range(2, VERSION + 1))
    assert run_command(["upgrade", str(old_file)]) == 0
    assert f"the catalog has version {VERSION}, which this oncehouse works with" in capsys.readouterr().out


def test_processes_at_work_are_named(file, catalog, capsys):
    take_lease(catalog)
    assert run_command(["upgrade", str(file), "--plan"]) == 0
    assert ["events", "ingest", "this", "test"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def test_commands_that_look_say_that_the_catalog_is_to_be_upgraded(old_file, capsys):
    assert run_command(["status", str(old_file), "--ledger-only"]) == 2
    assert "`oncehouse upgrade`" in capsys.readouterr().err
    assert run_command(["schema", "list", str(old_file)]) == 2
    capsys.readouterr()
    assert version_of(old_file) == 1


def test_check_warns_of_an_upgrade_that_a_run_will_make(old_file, capsys, monkeypatch):
    for elsewhere in ("kafka", "clickhouse", "clocks", "sample"):
        monkeypatch.setattr(check, f"examine_{elsewhere}", lambda pipeline: ())
    run_command(["check", str(old_file), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [found for found in findings if found["where"] == "ledger"]
    assert found["level"] == "warning"
    assert "The next `oncehouse run` upgrades it" in found["what"]


def test_a_catalog_that_is_not_there_is_not_made(file, capsys):
    assert run_command(["upgrade", str(file)]) == 2
    assert "There is no catalog yet" in capsys.readouterr().err
    assert not (file.parent / "ledger" / "catalog.db").exists()


def test_a_newer_catalog_is_refused(file, catalog, capsys):
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE oncehouse_ledger SET version = {VERSION + 1}")
    assert run_command(["upgrade", str(file)]) == 2
    assert f"has version {VERSION + 1}, this oncehouse" in capsys.readouterr().err
