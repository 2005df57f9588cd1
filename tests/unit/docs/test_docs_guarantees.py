"""The page of guarantees names every scenario that is played, and none that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scenarios import SCENARIOS

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"


def shown_by() -> Iterator[tuple[str, list[str]]]:
    """(promise, its scenarios) of the table whose last column says what shows a promise."""
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[-1] == "shown by":
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not cells[0].startswith("---"):
            yield cells[0], [name.strip() for name in cells[-1].split("·") if name.strip()]


def test_the_page_names_exactly_the_scenarios_that_are_played():
    named = {name for _, names in shown_by() for name in names}
    assert named == {scenario.name for scenario in SCENARIOS}


def test_every_promise_is_shown_by_something():
    promises = dict(shown_by())
    assert promises
    assert not [promise for promise, names in promises.items() if not names]


def last_run() -> Iterator[str]:
    """The scenarios in the table of the last full run."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## The last full run\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    for line in rows[2:]:
        yield line.strip("|").split("|")[1].strip()


def test_the_last_full_run_names_only_scenarios_that_there_are():
    """Scenarios that are newer than the run may be missing from it."""
    named = list(last_run())
    assert named
    assert len(named) == len(set(named))
    assert not set(named) - {scenario.name for scenario in SCENARIOS}
