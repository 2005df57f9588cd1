"""A table of a page says each thing once: two rows about one key contradict each other sooner or later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    # Their tables have one row a case, and several cases of one kind.
    if path.name != "benchmarks.md" and path.parent.name != "decisions"
)


def doubled_rows(text: str) -> Iterator[str]:
    """First cells that two rows of one table share."""
    seen: set[str] = set()
    for line in text.splitlines():
        if not line.startswith("|"):
            seen.clear()
            continue
        cell = re.split(r"(?<!\\)\|", line)[1].strip()
        if cell in seen:
            yield cell
        if cell:
            seen.add(cell)


@pytest.mark.parametrize("page", PAGES)
def test_no_two_rows_of_a_table_are_about_the_same(page):
    assert not list(doubled_rows((ROOT / page).read_text(encoding="utf-8")))


def test_a_doubled_row_is_found_within_a_table_and_not_across_tables():
    table = "| key | meaning |\n|---|---|\n| `a` | one |\n| `b` | two |\n"
    assert not list(doubled_rows(f"{table}\n{table}"))
    assert list(doubled_rows(f"{table}| `a` | three |\n")) == ["`a`"]
