"""Wishes that a command leaves in the ledger: refilling a table, rebuilding the index."""

import json

import pytest

from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog.requests import open_requests
from oncehouse.ledger.models import RequestKind


def test_filling_a_table_again_is_left_as_a_request(file, catalog, capsys):
    assert run_command(["replay", str(file), "--table", "events", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (request,) = open_requests(catalog)
    assert (request.request, request.kind, request.arguments) == (
        told["request"],
        RequestKind.REFILL_TABLE,
        {"table": "events"},
    )


def test_rebuilding_the_index_is_left_as_a_request(file, catalog, capsys):
    assert run_command(["rebuild-index", str(file)]) == 0
    assert "request 1 (rebuild-index) is in the ledger" in capsys.readouterr().out
    assert [request.kind for request in open_requests(catalog)] == [RequestKind.REBUILD_INDEX]


def test_a_table_that_the_file_does_not_name_is_refused(file, catalog, capsys):
    assert run_command(["replay", str(file), "--table", "event"]) == 2
    assert "no table 'event' in tables; did you mean 'events'?" in capsys.readouterr().err
    assert open_requests(catalog) == ()


@pytest.mark.parametrize("command", [["rebuild-index"], ["replay", "--table", "events"]])
def test_a_request_to_a_ledger_that_is_not_there_makes_none(command, file, capsys):
    assert run_command([*command, str(file)]) == 2
    assert "has no ledger yet" in capsys.readouterr().err
    assert not (file.parent / "ledger").exists()
