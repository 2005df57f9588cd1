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
