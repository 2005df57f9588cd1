"""This checkout and an earlier revision are compared by the medians of their turns."""

from __future__ import annotations

from bench_modules import load_benchmark

compare_versions = load_benchmark("compare_versions")


def _turn(speed: float, processor_time: float) -> dict[str, float]:
    return {compare_versions.SPEED: speed, compare_versions.PROCESSOR_TIME: processor_time}


def test_one_slow_turn_does_not_count() -> None:
    now = [_turn(300_000, 4.0), _turn(100_000, 9.0), _turn(330_000, 4.4)]
    before = [_turn(200_000, 5.0), _turn(220_000, 5.5), _turn(150_000, 8.0)]
    figures = {one["name"]: one["value"] for one in compare_versions.compare(now, before)}
    assert figures["speed_over_before"] == 1.5
    assert figures["cpu_over_before"] == 0.8
