"""`oncehouse status` tells where a pipeline stands, also when Kafka is away."""

import json

import pytest

from ledger_examples import TABLE, make_batch, make_registration, register_epochs, take_lease
from oncehouse.cli.app import run_command
from oncehouse.cli.pipeline import status
from oncehouse.common.formatting import format_bytes
from oncehouse.ledger.catalog.batches import create_batches, open_parts
from oncehouse.ledger.catalog.leases import list_leases, note_pause
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request
from oncehouse.ledger.models import EpochKind, QueryBatch, RequestKind, Stage, format_holder
from oncehouse.ledger.stats.backlog import sum_backlog


@pytest.fixture
def filled(catalog):
    """Two epochs, one of them in a batch, and a request that nobody has performed."""
    register_epochs(catalog, 2)
    token = take_lease(catalog, Stage.LOAD)
    create_batches(catalog, token, [make_batch(open_parts(catalog)[0])])
    add_request(catalog, RequestKind.REBUILD_INDEX, {})


@pytest.mark.usefixtures("filled")
def test_status_tells_counts_batches_leases_and_requests(file, capsys):
    assert run_command(["status", str(file), "--ledger-only"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lag", "-"] in lines
    assert ["kafka", "2", "20", "20", "0", "0", "0"] in [line[:7] for line in lines]
    assert [TABLE, "NEW", "1", "10"] in lines
    assert [TABLE, "not", "in", "a", "batch", "yet", "-", "10"] in lines
    assert ["ingest", "this", "test"] in [line[:3] for line in lines]
    assert ["request", "1,", "rebuild-index"] in [[*line[:2], *line[-1:]] for line in lines]
    assert lines[-1] == ["waits", "for", "a", "run"]


@pytest.mark.usefixtures("filled")
def test_the_lag_is_what_kafka_has_and_no_epoch_has_settled(file, capsys, monkeypatch):
    monkeypatch.setattr(status, "ask_kafka", lambda _: ({("orders", 0): 25, ("orders", 1): 4}, None))
    assert run_command(["status", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lag"] == 9
    assert told["kafka"] is None


@pytest.mark.usefixtures("filled")
def test_everything_else_is_told_when_kafka_is_away(file, capsys, monkeypatch):
    monkeypatch.setattr(status, "ask_kafka", lambda _: (None, "Kafka at [x] does not answer"))
    assert run_command(["status", str(file)]) == 0
    out = capsys.readouterr().out
    assert TABLE in out
    assert out.endswith("\nthe lag is not known: Kafka at [x] does not answer\n")


@pytest.mark.usefixtures("catalog")
def test_a_pipeline_that_has_read_nothing_says_so(file, capsys):
    assert run_command(["status", str(file), "--ledger-only"]) == 0
    out = capsys.readouterr().out
    assert "nothing was read yet" in out
    assert "no process runs it" in out


def test_a_request_is_told_in_words_and_fits_the_screen(file, catalog, capsys):
    add_request(
        catalog, RequestKind.EDIT_DEAD_LETTERS, {"edits": "2a2428e16ef04a17a0836921101b1d4b", "letters": 1}
    )
    add_request(catalog, RequestKind.REKEY, {"fingerprint": "x" * 90, "buckets": 16})
    assert run_command(["status", str(file), "--ledger-only"]) == 0
    told = capsys.readouterr().out
    assert "edit-dead-letters letters=1\n" in told
    assert "rekey buckets=16\n" in told
    assert "2a2428" not in told
    assert max(map(len, told.splitlines())) <= 80


def test_a_holder_is_told_by_machine_and_pid_alone():
    assert format_holder("vm #12bbcc pid 42 (40281ee8/pid:[4026531836] 591852)") == "vm #12bbcc pid 42"
    assert format_holder("this test") == "this test"


def test_queries_are_told_with_what_is_settled_of_them(file, catalog, capsys):
    token = take_lease(catalog)
    for epoch, number in enumerate([0, 1, 5], start=1):
        batch = QueryBatch(query="orders-join", batch=number, origin="a test")
        register(
            catalog,
            token,
            make_registration(epoch, kind=EpochKind.FRAME, ranges=(), topic_ids={}, query=batch),
        )
    assert run_command(["status", str(file), "--ledger-only"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["orders-join", "3", "5"] in lines
    assert ["frame", "3", "30", "30"] in [line[:4] for line in lines]


def test_how_full_the_ledger_is_and_why_reading_pauses_are_told(file, catalog, capsys):
    register_epochs(catalog, 2)
    told = file.read_text().replace("ledger:\n", "ledger:\n  max_backlog: 1KB\n")
    file.write_text(told)
    lease = next(found for found in list_leases(catalog) if found.stage is Stage.INGEST)
    note_pause(catalog, lease, "4KB wait for ClickHouse")
    assert run_command(["status", str(file), "--ledger-only"]) == 0
    out = capsys.readouterr().out
    backlog = sum_backlog(catalog)
    assert backlog
    assert f"{format_bytes(backlog)} of 1KB ({backlog / 1024:.0%})" in out
    assert "of it kept free" in out
    assert "\ningest pauses: 4KB wait for ClickHouse\n" in out
    assert run_command(["status", str(file), "--ledger-only", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["room"]["backlog_bytes"] == backlog
    assert plain["room"]["max_backlog"] == 1024
    assert plain["leases"][0]["pause"] == "4KB wait for ClickHouse"
