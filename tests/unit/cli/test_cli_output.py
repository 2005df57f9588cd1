"""What is printed: safe text, whole values in pipes, JSON without secrets."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from oncehouse.cli.output import (
    format_time,
    format_value,
    plain,
    say,
    show_facts,
    show_json,
    show_table,
    visible,
)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    colour: Colour
    raw: bytes
    inner: tuple[int, ...]


def test_json_holds_every_kind_of_value_and_no_secret(capsys):
    show_json(
        {
            "thing": Thing(colour=Colour.RED, raw=b"\xff", inner=(1, 2)),
            "secret": SecretStr("hunter2"),
            "path": Path("/x"),
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "nan": float("nan"),
            "none": None,
            3: {True},
        }
    )
    assert json.loads(capsys.readouterr().out) == {
        "thing": {"colour": "red", "raw": "/w==", "inner": [1, 2]},
        "secret": "**********",
        "path": "/x",
        "at": "2026-01-01T00:00:00+00:00",
        "nan": None,
        "none": None,
        "3": [True],
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
def test_plain_values_stay_as_they_are(value):
    assert plain(value) == value


@given(st.text())
def test_visible_text_has_no_control_character(text):
    assert all(c.isprintable() or c == "\n" for c in visible(text))


def test_a_table_in_a_pipe_is_not_cut_and_reads_no_markup(capsys):
    show_table(["name", "rows"], [("[red]x[/red]" + "y" * 300, 1_234_567)], empty="nothing")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "rows"]
    assert lines[1].split() == ["[red]x[/red]" + "y" * 300, "1,234,567"]


def test_an_empty_table_says_so(capsys):
    show_table(["name"], [], empty="no batches yet")
    assert capsys.readouterr().out == "no batches yet\n"


def test_facts_stand_one_a_line(capsys):
    show_facts({"rows": 5, "reason": None})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["rows", "5"], ["reason", "-"]]


def test_what_is_said_reaches_the_terminal_without_escapes(capsys):
    say("\x1b]0;title\x07 hi")
    assert capsys.readouterr().out == "\\x1b]0;title\\x07 hi\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (1234567, "1,234,567"), (0.5, "0.50"), (Colour.RED, "red"), ("a", "a")],
)
def test_values_are_spelt_for_people(value, text):
    assert format_value(value) == text


def test_times_are_spelt_in_utc():
    assert format_time(0.0) == "-"
    assert format_time(1_767_225_600.0) == "2026-01-01 00:00:00"
