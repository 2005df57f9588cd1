"""`oncehouse leases` tells who runs what."""

import json

from ledger_examples import take_lease
from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.models import Stage


def test_leases_tell_who_runs_each_stage_and_which_are_free(file, catalog, capsys):
    take_lease(catalog, Stage.INGEST)
    take_lease(catalog, Stage.LOAD)
    (load,) = [lease for lease in leases.list_leases(catalog) if lease.stage is Stage.LOAD]
    leases.release(catalog, load)
    assert run_command(["leases", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (ingest,) = [line for line in lines if line[:1] == ["ingest"]]
    assert (ingest[1:3], ingest[-1]) == (["this", "test"], "1")
    # A slow machine has let a moment of the ten minutes pass.
    assert ingest[3] == "10m" or 540 < int(ingest[3].removesuffix("s")) < 600
    assert ["load", "no", "process", "1"] in lines


def test_leases_as_json(file, catalog, capsys):
    take_lease(catalog, Stage.RETENTION)
    assert run_command(["leases", str(file), "--json"]) == 0
    (lease,) = json.loads(capsys.readouterr().out)["leases"]
    assert (lease["stage"], lease["holder"], lease["token"]) == ("retention", "this test", 1)
    assert 0 < lease["ends_in_seconds"] <= 600


def test_a_ledger_that_nobody_has_run_says_so(file, catalog, capsys):
    assert run_command(["leases", str(file)]) == 0
    assert "no process has run it yet" in capsys.readouterr().out
