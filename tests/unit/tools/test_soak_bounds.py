"""What the soak calls bounded: a planted leak is caught, whatever its kind, and ordinary life is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import soak_modules  # noqa: F401 - makes the next one importable
from soak_bounds import Allowed, Bound, Phases, Sample, evaluate, grow

PHASES = Phases(kills_from=0.0, kills_until=1200.0, calm_from=1200.0, calm_until=1380.0)
BOUNDS = {"loader": Bound(megabytes=1000, files=500)}


def live(
    megabytes: Callable[[float, float], float],
    files: Callable[[float, float], float] = lambda _now, _age: 50,
    *,
    life_seconds: float = 60.0,
    kind: str = "loader",
) -> list[Sample]:
    """Lives one after the other until the calm, then a single one; sizes by time and age."""
    samples = []
    for step in range(690):
        now = step * 2.0
        born = now - now % life_seconds if now < PHASES.calm_from else PHASES.calm_from
        age = now - born
        samples.append(
            Sample(
                seconds=now,
                kind=kind,
                pid=int(born),
                age_seconds=age,
                megabytes=megabytes(now, age),
                files=int(files(now, age)),
            )
        )
    return samples


def problems(samples: list[Sample], bounds=BOUNDS) -> list[str]:
    return [problem for one in evaluate(samples, bounds, PHASES) for problem in one.problems]


def test_processes_that_warm_up_in_every_life_are_bounded():
    assert not problems(live(lambda _now, age: 150 + min(age, 30) * 2))


def test_every_kind_is_judged_by_memory_and_by_open_files():
    judged = evaluate(
        live(lambda *_: 100) + live(lambda *_: 100, kind="broker"),
        BOUNDS | {"broker": BOUNDS["loader"]},
        PHASES,
    )
    assert [(one.kind, one.measure) for one in judged] == [
        ("broker", "megabytes"),
        ("broker", "files"),
        ("loader", "megabytes"),
        ("loader", "files"),
    ]


def test_memory_that_every_life_starts_with_more_of_is_caught():
    found = problems(live(lambda now, _age: 100 + now / 4))
    assert any("grew while killed" in problem for problem in found), found


def test_a_leak_within_a_life_is_caught_in_the_calm():
    found = problems(live(lambda _now, age: 100 + age * 2))
    assert [problem.split(" grew ")[0] for problem in found] == ["loader: megabytes"]
    assert "in the calm" in found[0]


def test_open_files_that_leak_are_caught():
    found = problems(live(lambda *_: 100, lambda _now, age: 50 + age))
    assert found
    assert all("files grew in the calm" in problem for problem in found)


def test_one_process_above_its_ceiling_is_caught():
    found = problems(live(lambda now, _age: 1200 if now == 600.0 else 100))
    assert found == ["loader: megabytes reached 1200, above 1000"]


def test_a_heap_that_fills_is_no_growth_but_what_lies_above_it_is():
    bounds = {"loader": Bound(megabytes=2000, files=500, heap_megabytes=700)}
    assert not problems(live(lambda _now, age: min(650, 100 + age * 4)), bounds)
    assert problems(live(lambda _now, age: 650 + age * 4), bounds)


def test_a_kind_without_a_stated_bound_is_a_mistake():
    with pytest.raises(KeyError):
        problems(live(lambda *_: 1, kind="somebody"))


def test_too_little_to_compare_says_nothing():
    assert grow([(1.0, 5.0), (2.0, 500.0)], 0.0, 3.0, Allowed(1.1, 0.0)) is None
