"""`oncehouse batches` on a real catalog: list, show, retry, and a ledger that is not there."""

import json
import shlex

import pytest

from ledger_examples import TABLE, make_batch, register_epochs, take_lease
from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog.batches import (
    create_batches,
    find_batch,
    finish_attempt,
    open_parts,
    start_attempt,
)
from oncehouse.ledger.models import BatchStatus, Stage


@pytest.fixture
def parked(catalog):
    """The id of a batch that ClickHouse has refused, beside one that is new."""
    register_epochs(catalog, 2)
    first, second = (make_batch(part) for part in open_parts(catalog))
    token = take_lease(catalog, Stage.LOAD)
    create_batches(catalog, token, [first, second])
    attempt = start_attempt(catalog, token, first.batch_id)
    finish_attempt(
        catalog, token, attempt, status=BatchStatus.PARKED, outcome="failed", detail="[red]no column\nadd it"
    )
    return first.batch_id


def run_json(capsys, *arguments):
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_batches_are_listed_with_their_reasons(file, parked, capsys):
    assert run_command(["batches", "list", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert parked in lines[1]
    assert "PARKED" in lines[1]
    assert lines[1].endswith("[red]no column")


def test_batches_are_listed_by_status_and_table(file, parked, capsys):
    found = run_json(capsys, "batches", "list", str(file), "--status", "PARKED")["batches"]
    assert [view["batch"]["batch_id"] for view in found] == [parked]
    assert len(run_json(capsys, "batches", "list", str(file), "--table", TABLE)["batches"]) == 2
    assert run_json(capsys, "batches", "list", str(file), "--table", "other")["batches"] == []


def test_a_batch_is_shown_with_its_attempts_and_parts(file, parked, capsys):
    found = run_json(capsys, "batches", "show", parked, str(file))
    assert found["view"]["batch"]["status"] == "PARKED"
    assert [(a["attempt"], a["outcome"]) for a in found["attempts"]] == [(1, "failed")]
    assert [part["part"] for part in found["parts"]] == ["part-1"]
    assert run_command(["batches", "show", parked, str(file)]) == 0
    assert "[red]no column" in capsys.readouterr().out


def test_a_parked_batch_is_let_try_again(file, catalog, parked, capsys):
    assert run_command(["batches", "retry", parked, str(file)]) == 0
    assert find_batch(catalog, parked).status is BatchStatus.RETRY
    assert "will be tried again" in capsys.readouterr().out
    assert run_command(["batches", "retry", parked, str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"]["batch_id"] == parked


@pytest.mark.usefixtures("parked")
def test_a_batch_that_is_not_there_is_told(file, capsys):
    assert run_command(["batches", "retry", "nope", str(file)]) == 2
    assert "has no batch nope" in capsys.readouterr().err


def test_looking_at_a_ledger_that_is_not_there_makes_none(file, capsys):
    assert run_command(["batches", "list", str(file)]) == 2
    assert "has no ledger yet" in capsys.readouterr().err
    assert not (file.parent / "ledger").exists()


def test_the_ledger_of_another_pipeline_is_not_taken_for_this_one(file, catalog, capsys):
    file.write_text(file.read_text().replace("pipeline: events", "pipeline: others"))
    assert run_command(["batches", "list", str(file)]) == 2
    assert "others has no ledger yet" in capsys.readouterr().err


@pytest.fixture
def unproven(catalog, monkeypatch):
    """Makes the next of two loaded batches unproven, and returns its id. ClickHouse is not asked about its views."""
    monkeypatch.setattr("oncehouse.monitoring.actions.plan_view_rebuilds", lambda *_: {})
    register_epochs(catalog, 2)
    waiting = [make_batch(part) for part in open_parts(catalog)]
    token = take_lease(catalog, Stage.LOAD)
    create_batches(catalog, token, waiting)

    def load():
        batch_id = waiting.pop(0).batch_id
        finish_attempt(
            catalog,
            token,
            start_attempt(catalog, token, batch_id),
            status=BatchStatus.IN_CLICKHOUSE,
            outcome="views unproven",
            detail="the query log is off",
        )
        return batch_id

    return load


def test_the_command_that_the_list_prints_settles_the_views_of_the_listed_batches_alone(
    file, catalog, unproven, capsys
):
    listed = unproven()
    assert run_command(["batches", "views", str(file)]) == 0
    program, *arguments = shlex.split(capsys.readouterr().out.splitlines()[-1])
    later = unproven()
    assert program == "oncehouse"
    assert run_command(arguments) == 0
    assert "1 batches" in capsys.readouterr().out
    assert find_batch(catalog, listed).reason is None
    assert find_batch(catalog, later).reason == "the query log is off"


def test_views_of_a_batch_that_is_not_listed_are_not_settled(file, catalog, unproven, capsys):
    listed = unproven()
    assert run_command(["batches", "views", str(file), "--done", listed, "--done", "nope"]) == 2
    assert "unproven: nope. Nothing was changed" in capsys.readouterr().err
    assert find_batch(catalog, listed).reason is not None
    found = run_json(capsys, "batches", "views", str(file), "--done", listed)
    assert [batch["batch_id"] for batch in found["batches"]] == [listed]
    assert found["settled"]
    assert run_json(capsys, "batches", "views", str(file))["batches"] == []
