"""Log lines: their fields, whose they are, what they never hold, and that every long-running command can write them."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from oncehouse.cli import app as command_line
from oncehouse.cli.app import run_command
from oncehouse.cli.etl.run import Report
from oncehouse.cli.messaging.outbox_relay import RelayView
from oncehouse.cli.output import print_note, show_error
from oncehouse.cli.pipeline import run as run_module
from oncehouse.cli.progress_view import ProgressView
from oncehouse.cli.sync.app import _print_outcome as print_sync_outcome
from oncehouse.common import redaction, structured_logging
from oncehouse.common.structured_logging import LogFormat
from oncehouse.errors import TransientError
from oncehouse.messaging.outbox.relay.progress import RelayProgress
from oncehouse.pipeline.progress import Progress
from oncehouse.sync.rounds.runner import FailedRun

OWN = logging.getLogger("oncehouse.test")
SECRET = 'hunter2-is-no-password\n"quoted"'
LONG_RUNNING = (
    "run",
    "import",
    "dashboard",
    "etl run",
    "outbox relay",
    "inbox work",
    "inbox serve",
    "sync run",
)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    structured_logging.start(LogFormat.JSON, stream)
    yield stream
    structured_logging.stop()


@pytest.fixture
def written_as_text() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    structured_logging.start(LogFormat.TEXT, stream)
    yield stream
    structured_logging.stop()


@pytest.fixture
def secret() -> Iterator[str]:
    before = set(redaction._known)
    redaction.remember(SECRET)
    yield SECRET
    redaction._known.clear()
    redaction._known.update(before)


def read(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_its_own_fields_and_those_bound_around_it(written):
    structured_logging.add_process_fields(pipeline="shop")
    with structured_logging.bound(epoch=7):
        with structured_logging.bound(batch="b-1"):
            structured_logging.write(OWN, logging.WARNING, "slow", rows=10)
        structured_logging.write(OWN, logging.INFO, "done")
    structured_logging.write(OWN, logging.INFO, "idle")
    slow, done, idle = read(written)
    assert (slow["level"], slow["logger"], slow["message"]) == ("warning", "oncehouse.test", "slow")
    assert (slow["pipeline"], slow["epoch"], slow["batch"], slow["rows"]) == ("shop", 7, "b-1", 10)
    assert slow["process"] == os.getpid()
    assert slow["time"].endswith("Z")
    assert "batch" not in done
    assert done["epoch"] == 7
    assert {"epoch", "batch"}.isdisjoint(idle)
    assert idle["pipeline"] == "shop"


def test_fields_bound_in_one_thread_are_not_those_of_another(written):
    structured_logging.add_process_fields(pipeline="shop")
    with structured_logging.bound(epoch=7):
        other = threading.Thread(target=lambda: structured_logging.write(OWN, logging.INFO, "elsewhere"))
        other.start()
        other.join()
    (line,) = read(written)
    assert line["pipeline"] == "shop"
    assert "epoch" not in line


def test_libraries_and_warnings_of_python_join_in_from_warning_on(written):
    library = logging.getLogger("some.library")
    with structured_logging.bound(epoch=7), warnings.catch_warnings():
        warnings.simplefilter("always")
        library.info("chatter")
        library.warning("look: %s", "here")
        warnings.warn("old", stacklevel=1)
    assert [(line["logger"], line["epoch"]) for line in read(written)] == [
        ("some.library", 7),
        ("py.warnings", 7),
    ]


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_no_line_holds_a_secret(log_format, secret):
    stream = io.StringIO()
    structured_logging.start(log_format, stream)
    try:
        with structured_logging.bound(url=f"http://{secret}"):
            structured_logging.write(
                OWN, logging.INFO, f"tried {secret}", told=[{"key": secret}], error=TransientError(secret)
            )
            OWN.error("failed", exc_info=TransientError(f"refused with {secret}"))
    finally:
        structured_logging.stop()
    shown = stream.getvalue()
    assert "failed" in shown
    for spelling in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], "hunter2"):
        assert spelling not in shown


def test_a_text_line_stays_one_line_and_says_its_fields(written_as_text):
    with structured_logging.bound(epoch=7):
        structured_logging.write(OWN, logging.WARNING, "bad\nline \x1b[31m", table="a b", rows=1)
    (line,) = written_as_text.getvalue().splitlines()
    assert line.endswith(r'warning oncehouse.test: bad\nline \x1b[31m epoch=7 table="a b" rows=1')


def test_a_field_cannot_take_the_place_of_ours(written):
    structured_logging.write(OWN, logging.INFO, "real", message="forged", level="none", trace="made up")
    (line,) = read(written)
    assert (line["message"], line["level"]) == ("real", "info")
    assert (line["field_message"], line["field_level"], line["field_trace"]) == ("forged", "none", "made up")
    assert "trace" not in line


def test_stopping_leaves_logging_as_it_was(monkeypatch):
    monkeypatch.setenv(structured_logging.FORMAT_VARIABLE, "text")
    root = logging.getLogger()
    before = (list(root.handlers), logging.getLogger("oncehouse").level)
    structured_logging.start(LogFormat.JSON, io.StringIO())
    structured_logging.start(LogFormat.JSON, io.StringIO())
    assert len(root.handlers) == len(before[0]) + 1
    assert os.environ[structured_logging.FORMAT_VARIABLE] == "json"
    structured_logging.add_process_fields(pipeline="shop")
    structured_logging.stop()
    assert (list(root.handlers), logging.getLogger("oncehouse").level) == before
    assert os.environ[structured_logging.FORMAT_VARIABLE] == "text"
    structured_logging.add_process_fields(pipeline="ignored")
    assert not structured_logging._process_fields


def test_workers_write_as_the_process_that_started_them(monkeypatch, capsys):
    monkeypatch.setenv(structured_logging.FORMAT_VARIABLE, "json")
    structured_logging.start_if_configured()
    try:
        structured_logging.write(OWN, logging.INFO, "in a worker")
    finally:
        structured_logging.stop()
    assert json.loads(capsys.readouterr().err)["message"] == "in a worker"
    monkeypatch.setenv(structured_logging.FORMAT_VARIABLE, "xml")
    structured_logging.start_if_configured()
    assert not structured_logging.is_started()


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_every_long_running_command_takes_a_log_format(name):
    command: click.Command = typer.main.get_command(command_line.app)
    for word in name.split():
        command = command.commands[word]
    assert "--log-format" in [option for parameter in command.params for option in parameter.opts]


def test_a_refused_command_ends_with_a_line_and_its_exit_code(tmp_path, capsys):
    assert run_command(["run", str(tmp_path / "none.yaml"), "--log-format", "json"]) == 2
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "error"
    assert "none.yaml" in line["message"]
    assert not structured_logging.is_started()


def test_the_environment_may_ask_for_log_lines_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(structured_logging.FORMAT_VARIABLE, "json")
    assert run_command(["run", str(tmp_path / "none.yaml")]) == 2
    assert json.loads(capsys.readouterr().err)["level"] == "error"


def test_a_defect_is_one_line_with_its_trace(tmp_path, capsys, monkeypatch):
    def fail(_file):
        raise RuntimeError("never thought of")

    monkeypatch.setattr(run_module, "load_pipeline", fail)
    assert run_command(["run", str(tmp_path / "any.yaml"), "--log-format", "json"]) == 70
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "critical"
    assert "never thought of" in line["trace"]


def test_a_thread_that_dies_is_told_in_a_line(written, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", command_line._report_thread_defect)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    (line,) = read(written)
    assert "ZeroDivisionError" in line["trace"]


def test_progress_and_messages_of_a_run_are_lines(written, capsys):
    with ProgressView(pipeline="shop") as view:
        view(Progress(read=10, new=9, duplicate=1))
        view.say("ClickHouse does not answer")
    progress, told = read(written)
    assert (progress["message"], progress["read"], progress["new"]) == ("progress", 10, 9)
    assert "lag" not in progress, "it is not known"
    assert (told["level"], told["message"]) == ("warning", "ClickHouse does not answer")
    assert capsys.readouterr() == ("", "")


def test_json_progress_stays_on_standard_output(written, capsys):
    with ProgressView(pipeline="shop", as_json=True) as view:
        view(Progress(read=10))
    assert json.loads(capsys.readouterr().out)["read"] == 10
    assert not read(written)


def test_relay_scheduler_and_syncs_write_lines(written, capsys):
    with RelayView(table="outbox", as_json=False) as view:
        view.end(RelayProgress(sent=5))
        view.say("stopping")
    Report(as_json=False).take(TransientError("ClickHouse is away"))
    print_sync_outcome(FailedRun(sync="UserSync", error=TransientError("no answer")), as_json=False)
    end, stopping, away, failure = read(written)
    assert (end["message"], end["table"], end["sent"]) == ("end", "outbox", 5)
    assert stopping["message"] == "stopping"
    assert (away["level"], away["event"]) == ("warning", "away")
    assert (failure["level"], failure["sync"]) == ("error", "UserSync")
    assert capsys.readouterr() == ("", "")


def test_without_log_lines_messages_are_plain_and_visible(capsys):
    print_note("well \x1b[31m", epoch=7)
    show_error("no")
    shown = capsys.readouterr()
    assert shown.err == "well \\x1b[31m\nerror: no\n"
    assert not shown.out


ROOT = Path(structured_logging.__file__).parents[1]
PAGE = Path(__file__).parents[3] / "docs" / "logging.md"


def written_messages() -> Iterator[tuple[str, set[str]]]:
    """Messages that the code spells out, each with the fields that it names."""
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="structured_logging"), attr="write"),
                    args=[_, _, ast.Constant(value=str(message))],
                    keywords=named,
                ):
                    yield message, {field.arg for field in named if field.arg is not None}


def test_the_page_on_log_lines_has_every_message_with_its_fields():
    table = PAGE.read_text(encoding="utf-8").partition("| message | fields | when |")[2].partition("\n\n")[0]
    told = {
        name: set(re.findall(r"`(\w+)`", fields))
        for name, fields in re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", table, re.MULTILINE)
    }
    written = dict(written_messages())
    assert len(written) >= 7
    # Text and fields of `progress` are those of the view.
    assert set(told) == {*written, "progress"}
    assert {message for message, fields in written.items() if fields - told[message]} == set()
