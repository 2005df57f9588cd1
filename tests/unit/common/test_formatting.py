"""Durations, sizes and texts as a person reads them."""

from __future__ import annotations

import pytest

from oncehouse.common.formatting import escape_unprintable, format_bytes, format_elapsed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (-5, "-5.0s"),
        (59, "59s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (3605, "1h"),
        (3725.4, "1h 2m"),
        (12315, "3h 25m"),
        (273600, "3d 4h"),
        (-7260, "-2h 1m"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0B"), (999, "999B"), (1000, "0.977KB"), (3 << 20, "3MB"), (5 << 40, "5TB")]
)
def test_sizes_have_three_digits_and_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_control_characters_are_escaped_unless_they_are_kept() -> None:
    assert escape_unprintable("a\x1b\n\u202e") == "a\\x1b\\n\\u202e"
    assert escape_unprintable("a\x1b\n", keep="\n") == "a\\x1b\n"


@pytest.mark.parametrize(
    ("text", "shown"), [("abc", "abc"), ("abcd", "abc…"), ("a\x1b", "a\\x…"), ("ü\ud800" * 9, "ü\\u…")]
)
def test_long_texts_are_cut_after_they_are_escaped(text, shown):
    assert escape_unprintable(text, longest=3) == shown
