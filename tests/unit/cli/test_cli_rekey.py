"""`oncehouse rekey`: the plan, the request, and taking it back."""

import json

import pytest

from ledger_examples import make_registration, take_lease
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import list_key_files
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.rekey import note_prepared
from oncehouse.ledger.catalog.requests import list_requests, open_requests, pending_rekey
from oncehouse.ledger.models import LedgerIdentity, RequestKind
from oncehouse.pipeline.schema.identity_guard import identity_of


@pytest.fixture
def ledger(file):
    """The ledger of the example file, with its rule; the file is changed after that."""
    pipeline = load_pipeline(file)
    opened = Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline)
    opened.prepare()
    opened.adopt(identity_of(pipeline))
    yield opened
    opened.close()


def change_file(
    file,
    old="fields: [project, event_type, product_id]",
    new="fields: [project, event_type, product_id]\n  buckets: 32",
):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_nothing_is_to_be_done_when_file_and_ledger_agree(file, ledger, capsys):
    assert run_command(["rekey", str(file)]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert run_command(["rekey", str(file), "--apply"]) == 2
    assert "has the rule of the pipeline file already" in capsys.readouterr().err
    assert open_requests(ledger) == ()


def test_the_plan_tells_both_rules_and_changes_nothing(file, ledger, capsys):
    change_file(
        file, "fields: [project, event_type, product_id]", "fields: [project, product_id]\n  key: true"
    )
    assert run_command(["rekey", str(file)]) == 0
    told = capsys.readouterr().out
    assert "project (text), event_type (text), product_id (integer); 16 buckets" in told
    assert "project (text), product_id (integer), key; 16 buckets" in told
    assert "--apply asks for the change" in told
    assert open_requests(ledger) == ()
    assert run_command(["rekey", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["forecast"] == {"events": 0, "live": 0, "doubled": 0, "dropped": 0}
    assert told["change"] is True


def test_a_change_is_asked_for_once_and_can_be_taken_back(file, ledger, capsys):
    change_file(file)
    assert run_command(["rekey", str(file), "--apply"]) == 0
    assert "request 1 (rekey) is in the ledger" in capsys.readouterr().out
    known = ledger.identity()
    assert known is not None
    assert pending_rekey(ledger) == LedgerIdentity(fingerprint=known.fingerprint, buckets=32)
    assert [request.kind for request in open_requests(ledger)] == [RequestKind.REKEY]
    assert run_command(["rekey", str(file), "--apply"]) == 2
    assert "this very change is asked for already" in capsys.readouterr().err
    change_file(file, "buckets: 32", "buckets: 64")
    assert run_command(["rekey", str(file), "--apply"]) == 2
    assert "a change to another rule is asked for already" in capsys.readouterr().err
    assert run_command(["rekey", str(file), "--withdraw", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"withdrawn": [1]}
    assert [request.result for request in list_requests(ledger)] == ["withdrawn"]
    assert run_command(["rekey", str(file), "--withdraw"]) == 0
    assert "nothing to take back" in capsys.readouterr().out


def test_asking_and_taking_back_at_once_is_refused(file, ledger, capsys):
    assert run_command(["rekey", str(file), "--apply", "--withdraw"]) == 2
    assert "contradict each other" in capsys.readouterr().err


def test_the_way_that_a_change_has_come_is_told(file, ledger, capsys):
    token = take_lease(ledger)
    register(ledger, token, make_registration())
    register(ledger, token, make_registration(2, start=10, end=20))
    change_file(file)
    assert run_command(["rekey", str(file), "--apply"]) == 0
    assert "prepares the change while it reads on" in capsys.readouterr().out
    (_, _, first), _ = list_key_files(ledger)
    note_prepared(ledger, token, 1, [(first, None)], [])
    assert run_command(["rekey", str(file)]) == 0
    told = capsys.readouterr().out
    assert "50% of 20 events, 1 of 2 key files" in told
    assert "32 buckets (request 1)" in told
    assert run_command(["rekey", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["progress"]["events_done"] == 10
