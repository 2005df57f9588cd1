"""`oncehouse plan-capacity`: what it prints, where defaults come from, and that the docs show what it prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from oncehouse.cli.app import run_command
from oncehouse.cli.pipeline.plan_capacity import parse_count

PAGE = Path(__file__).parents[3] / "docs" / "capacity.md"
LOAD = ["--events-a-day", "35M", "--event-size", "213"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no pipeline file is."""
    monkeypatch.chdir(tmp_path)


def read_blocks() -> list[str]:
    """What stands between fences, in order."""
    return PAGE.read_text(encoding="utf-8").split("```")[1::2]


def trim(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def run_json(capsys, *arguments: str) -> dict:
    assert run_command(["plan-capacity", *LOAD, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_page_shows_what_the_command_prints(capsys):
    command, shown, refusal = read_blocks()
    words = shlex.split(command.removeprefix("sh\n").replace("\\\n", " "))
    assert words[0] == "oncehouse"
    assert run_command(words[1:]) == 0
    assert trim(capsys.readouterr().out) == trim(shown)
    asked, _, refusal = refusal.strip().partition("\n")
    assert run_command(shlex.split(asked.removeprefix("$ oncehouse "))) == 2
    assert " ".join(capsys.readouterr().err.split()) == " ".join(refusal.split())


def test_json_holds_the_same_plan(capsys):
    found = run_json(capsys)
    assert found["machines"] == 1
    assert found["events_a_second"] == pytest.approx(35e6 / 86_400)
    assert found["key_index"]["bytes"] == pytest.approx(24 * found["key_index"]["keys"])
    parts = ("raw", "part", "key_file", "index", "catalog", "snapshot")
    together = sum(found["disk"][f"{part}_bytes"] for part in parts)
    assert found["disk"]["total_bytes"] == pytest.approx(together, abs=10)
    assert found["cost_a_month"] is None
    assert isinstance(found["notes"], list)


def test_a_pipeline_file_gives_what_is_not_said(capsys, tmp_path):
    file = tmp_path / "other.yaml"
    assert run_command(["init", str(file)]) == 0
    text = file.read_text()
    assert "window: 60d" in text
    file.write_text(text.replace("window: 60d", "window: 7d\n  buckets: 64"))
    capsys.readouterr()
    by_file = run_json(capsys, str(file))
    assert by_file["buckets"] == 64
    assert by_file["key_index"]["keys"] == pytest.approx(35e6 * 7 * 13 / 12)
    said = run_json(capsys, str(file), "--window", "14d", "--buckets", "128")
    assert said["buckets"] == 128
    assert said["key_index"]["keys"] == pytest.approx(35e6 * 14 * 13 / 12)


def test_the_pipeline_file_of_the_folder_is_taken(capsys):
    assert run_command(["init"]) == 0
    file = Path("pipeline.yaml")
    file.write_text(file.read_text().replace("window: 60d", "window: 1d"))
    capsys.readouterr()
    assert run_json(capsys)["key_index"]["keys"] == pytest.approx(35e6 * 13 / 12)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--events-a-day", "many", "--event-size", "213"], "write it like 50000"),
        (["--events-a-day", "1M", "--event-size", "big"], "is not a size"),
        ([*LOAD, "--window", "soon"], "is not a duration"),
        ([*LOAD, "--window", "60"], "is not a duration"),
        ([*LOAD, "--duplicates", "1.5"], "share of duplicates must be from 0 to below 1"),
        ([*LOAD, "--buckets", "100"], "power of two"),
        ([*LOAD, "--buckets", "0"], "the number of buckets must be a power of two up to 4096, not 0"),
        ([*LOAD, "--tables", "0"], "the number of tables must be 1 or more, not 0"),
        ([*LOAD, "--partitions", "0"], "the number of partitions must be 1 or more, not 0"),
        ([*LOAD, "--machines", "0"], "the number of machines must be 1 or more, not 0"),
        (["--event-size", "213"], "--events-a-day"),
    ],
)
def test_a_wish_that_means_nothing_ends_with_exit_2(capsys, arguments, told):
    assert run_command(["plan-capacity", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_where_no_machines_are_enough_the_obstacles_are_those_of_the_ones_that_come_closest(capsys):
    """A thousand machines have as many more files, which a driver of theirs would list."""
    assert run_command(["plan-capacity", "--events-a-day", "5B", "--event-size", "300"]) == 2
    told = capsys.readouterr().err
    assert "look-ups in the key index" in told
    assert "for its processes" not in told


@pytest.mark.parametrize(
    ("text", "count"),
    [("50000", 50_000), ("1_000", 1000), ("1,000", 1000), ("200k", 2e5), ("35M", 35e6), ("1.5B", 1.5e9)],
)
def test_counts_are_read_as_people_write_them(text, count):
    assert parse_count(text) == count
