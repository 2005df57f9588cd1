"""How long something takes, as a person reads it."""

from __future__ import annotations

import pytest

from oncehouse.common.formatting import spell_duration


@pytest.mark.parametrize(
    ("seconds", "spelt"),
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
def test_durations_have_two_units_at_most(seconds: float, spelt: str) -> None:
    assert spell_duration(seconds) == spelt
