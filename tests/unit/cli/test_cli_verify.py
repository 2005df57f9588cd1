"""`oncehouse verify` ends with 0 when all agrees, with 3 and every difference when it does not."""

import json

import pytest

from ledger_examples import register_epochs
from oncehouse.cli.app import run_command


@pytest.mark.usefixtures("catalog")
def test_a_ledger_that_agrees_ends_with_0(file, capsys):
    assert run_command(["verify", str(file), "--ledger-only"]) == 0
    facts = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()[-6:])
    assert facts["differences"] == "0"
    assert facts["rows in ClickHouse"] == "-"


def test_differences_are_told_and_end_with_3(file, catalog, capsys):
    register_epochs(catalog, 1)  # its files were never written
    assert run_command(["verify", str(file), "--ledger-only"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("difference in files: ")
    assert "parts/part-1" in out
    assert run_command(["verify", str(file), "--ledger-only", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert {finding["kind"] for finding in told["report"]["findings"]} == {"files"}
    assert told["report"]["epochs"] == 1


def test_a_ledger_that_is_not_there_cannot_be_verified(file, capsys):
    assert run_command(["verify", str(file)]) == 2
    assert "has no ledger yet" in capsys.readouterr().err
