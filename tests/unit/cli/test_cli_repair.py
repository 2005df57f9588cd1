"""`oncehouse repair` tells what is damaged and what is done about it; exit 3 as long as damage is left."""

import json
from dataclasses import replace

import pytest

from ledger_examples import make_file
from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog.snapshots import SnapshotFile
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.repair import repair
from oncehouse.pipeline.repair.catalog_restore import CatalogRepair
from oncehouse.pipeline.repair.file_restorer import Done
from oncehouse.pipeline.repair.repair import Refusal, RepairPlan, RepairResult
from oncehouse.pipeline.repair.repair_plan import FileKind, Repair, RepairSource

SPAN = OffsetRange(topic="orders", partition=0, start=5, end=16)
PART = Repair(
    kind=FileKind.PART,
    name="part-1",
    epoch=1,
    file=make_file("shop/part-1"),
    problem="shop/part-1 is missing",
    rows=10,
    source=RepairSource.RAW,
    records=10,
    ranges=(SPAN,),
    lost="7 rows cannot be sent",
)
LOST = replace(
    PART, kind=FileKind.RAW, name="keys-1", source=None, why="Kafka has deleted the offsets 5 to 8"
)
CATALOG = CatalogRepair(
    problem="the SQLite file is damaged",
    snapshot=SnapshotFile(token=1, epoch=4, taken_ms=1_800_000_000_000, path="shop/catalog/x", digest="0"),
    begins_anew=False,
    epoch=4,
    reads=(SPAN,),
    strange_rows={"shop.orders": 30},
    arrived_batches=(),
    arrived_parts=("part-1",),
    resent_batches=(),
    refused=(),
)
CLEAN = RepairPlan(catalog=None, files=(), files_checked=12)


@pytest.fixture
def planned(monkeypatch):
    def plan(found: RepairPlan) -> None:
        monkeypatch.setattr(repair, "plan_repair", lambda _pipeline, _say, **_: found)

    return plan


@pytest.fixture
def applied(monkeypatch):
    def apply(result: RepairResult) -> None:
        monkeypatch.setattr(repair, "apply_repair", lambda _pipeline, _say, **_: result)

    return apply


def test_a_sound_ledger_ends_with_0(file, planned, capsys):
    planned(CLEAN)
    assert run_command(["repair", str(file)]) == 0
    assert "nothing is damaged: the catalog and 12 files" in capsys.readouterr().out
    assert run_command(["repair", str(file), "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_the_plan_tells_source_cost_and_loss_of_each_file(file, planned, capsys):
    planned(replace(CLEAN, files=(PART, replace(PART, name="part-2"), LOST)))
    assert run_command(["repair", str(file), "--plan"]) == 3
    told = capsys.readouterr().out
    assert "part part-1 and 1 more in one file: shop/part-1 is missing" in told
    assert "from: raw bytes; cost: 20 events are read (orders/0 5 to 15)" in told
    assert "cannot be made again: Kafka has deleted the offsets 5 to 8" in told
    assert "lost: 7 rows cannot be sent" in told
    assert run_command(["repair", str(file), "--json"]) == 3
    files = json.loads(capsys.readouterr().out)["plan"]["files"]
    assert [(found["kind"], found["source"]) for found in files][1:] == [
        ("part", "raw bytes"),
        ("raw bytes", None),
    ]


def test_the_plan_tells_how_a_catalog_comes_back_and_why_it_cannot(file, planned, capsys):
    planned(RepairPlan(catalog=CATALOG, files=(), files_checked=None))
    assert run_command(["repair", str(file)]) == 3
    told = capsys.readouterr().out
    assert "the snapshot of 2027-01-15 08:00:00 (epoch 4)" in told
    assert "shop.orders: the ids of 30 rows" in told
    assert "11 records are read again (orders/0 5 to 15)" in told
    assert "1 batches and open parts that it would send, or send again, have come" in told
    anew = replace(CATALOG, snapshot=None, begins_anew=True, refused=("shop.orders drops rows",))
    planned(RepairPlan(catalog=anew, files=(), files_checked=None))
    assert run_command(["repair", str(file)]) == 3
    told = capsys.readouterr().out
    assert "cannot be brought back exactly: shop.orders drops rows" in told
    assert "every record from the first on" in told


def test_what_was_done_and_what_was_left_is_told(file, applied, capsys, tmp_path):
    done = Done(repairs=(PART,), released=("batch-1",))
    whole = RepairResult(
        catalog=CATALOG, put_aside=tmp_path / "catalog.db.damaged-1", done=(done,), refused=()
    )
    applied(whole)
    assert run_command(["repair", str(file), "--apply"]) == 0
    told = capsys.readouterr().out
    assert "as of epoch 4" in told
    assert "catalog.db.damaged-1" in told
    assert "batch batch-1 is tried again" in told
    assert "1 files were made again, 0 could not be" in told
    applied(replace(whole, refused=(Refusal(repairs=(LOST,), reason="gone"),)))
    assert run_command(["repair", str(file), "--apply", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["result"]["refused"][0]["reason"] == "gone"


def test_a_catalog_that_cannot_come_back_ends_with_3_and_its_reasons(file, applied, capsys):
    left = replace(CATALOG, refused=("Kafka has deleted the offsets 5 to 8",))
    applied(RepairResult(catalog=left, put_aside=None, done=(), refused=()))
    assert run_command(["repair", str(file), "--apply"]) == 3
    told = capsys.readouterr().out
    assert "cannot be brought back exactly: Kafka has deleted the offsets 5 to 8" in told
    assert "nothing was changed" in told
    assert "is back" not in told
    assert run_command(["repair", str(file), "--apply", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_whoever_gives_rows_again_can_say_so(file, monkeypatch):
    said = []

    def plan(_pipeline, _say, *, user_rewrites):
        said.append(user_rewrites)
        return CLEAN

    monkeypatch.setattr(repair, "plan_repair", plan)
    assert run_command(["repair", str(file)]) == run_command(["repair", str(file), "--given-again"]) == 0
    assert said == [False, True]


def test_a_plan_is_not_done_at_the_same_time(file, capsys):
    assert run_command(["repair", str(file), "--plan", "--apply"]) == 2
    assert "contradict" in capsys.readouterr().err
