"""The view of a running pipeline: spaced lines without a terminal, the last value always, JSON when asked."""

import io
import json

import pytest
from rich.console import Console

from oncehouse.cli.progress_view import ProgressView, plain_line, render
from oncehouse.pipeline.progress import Progress

SOME = Progress(
    read=1_000_000,
    new=900_000,
    duplicate=99_990,
    rejected=10,
    batches_waiting=2,
    rows_in_clickhouse=800_000,
    lag=5,
    events_per_second=123_456.7,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_line_tells_everything():
    assert plain_line(SOME) == (
        "read 1,000,000 (123,457/s), new 900,000, duplicate 99,990, dead letters 10, "
        "batches waiting 2, in ClickHouse 800,000, lag 5"
    )


def test_counts_that_are_seldom_are_told_where_there_are_any():
    some = Progress(read=9, new=2, skipped=3, waiting=4)
    assert "dead letters 0, skipped 3, waiting for a schema 4, batches waiting 0" in plain_line(some)
    console = Console(file=io.StringIO(), width=80)
    console.print(render(some, pipeline="events"))
    shown = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["skipped", "3"] in shown
    assert ["waiting", "for", "a", "schema", "4"] in shown


def test_a_lag_that_is_not_known_is_not_told_as_none():
    assert plain_line(Progress()).endswith("lag ?")


def test_the_live_view_tells_the_same_and_reads_no_markup():
    console = Console(file=io.StringIO(), width=80)
    console.print(render(SOME, pipeline="[red]events"))
    text = console.file.getvalue()
    for word in ("[red]events", "1,000,000", "900,000", "99,990", "10", "800,000", "123,457"):
        assert word in text


def test_lines_keep_their_interval_and_the_last_value_is_always_told(capsys):
    clock = Clock()
    with ProgressView(pipeline="events", clock=clock) as view:
        for second in range(8):
            clock.now = float(second)
            view(Progress(read=second))
    told = [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["read 0", "read 5", "read 7"]


def test_a_pipeline_that_stands_still_is_told_once_a_minute(capsys):
    clock = Clock()
    with ProgressView(pipeline="events", clock=clock) as view:
        for second in range(0, 130, 5):
            clock.now = float(second)
            view(Progress(read=1, events_per_second=float(second)))
    rates = [line.partition("(")[2].partition("/s")[0] for line in capsys.readouterr().out.splitlines()]
    assert rates == ["0", "60", "120", "125"]


def test_a_value_that_was_told_is_not_told_again_at_the_end(capsys):
    with ProgressView(pipeline="events", clock=Clock()) as view:
        view(Progress(read=1))
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_last_value_is_told_when_the_run_fails(capsys):
    clock = Clock()
    with pytest.raises(ZeroDivisionError), ProgressView(pipeline="events", clock=clock) as view:  # noqa: PT012
        view(Progress(read=1))
        view(Progress(read=2))
        raise ZeroDivisionError
    assert capsys.readouterr().out.splitlines()[-1].startswith("read 2 ")


def test_json_lines_hold_the_same_words(capsys):
    with ProgressView(pipeline="events", as_json=True, clock=Clock()) as view:
        view(SOME)
    assert json.loads(capsys.readouterr().out)["rows_in_clickhouse"] == 800_000


def test_a_terminal_gets_a_live_view(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView(pipeline="events") as view:
        assert "events: starting" in screen.getvalue()
        view(SOME)
    assert "rows in ClickHouse" in screen.getvalue()
    assert "900,000" in screen.getvalue()


def test_no_color_is_respected_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with ProgressView(pipeline="events") as view:
        view(SOME)
    assert "\x1b[31m" not in screen.getvalue()
