"""Figures of the benchmarks: how they are compared with the last run, kept, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_modules import load_benchmark

figures, plots = load_benchmark("figures"), load_benchmark("plots")
figure, read = figures.figure, figures.read


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, 3.0, "new"),
        (100.0, 100.0, "="),
        (100.0, 112.0, "+12 %"),
        (100.0, 88.0, "-12 %"),
        (100.0, 400.0, "x4"),
        (100.0, 10.0, "x0.1"),
        (0.0, 5.0, "was 0"),
        (-1.0, 2.0, "was -1"),
    ],
)
def test_a_change_is_told_as_a_person_would(before: float | None, now: float, told: str) -> None:
    assert figures.format_change(before, now) == told


def test_every_figure_stands_beside_its_change() -> None:
    lines = figures.lay_out(
        [figure("speed", 110, "events/s"), figure("fresh", 1.5, "s")], [figure("speed", 100, "1")]
    )
    assert [line.split() for line in lines] == [
        ["speed", "110", "events/s", "+10", "%"],
        ["fresh", "1.5", "s", "new"],
    ]


def test_one_benchmark_leaves_the_figures_of_others_alone(tmp_path: Path) -> None:
    out = tmp_path / "build" / "bench.json"
    figures.write([figure("one", 1, "s"), figure("two", 2, "s")], out)
    figures.write([figure("two", 3, "s")], out)
    assert _values(read(out)) == {"one": 1, "two": 3}


def test_runs_are_compared_with_the_last_one_of_their_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    for length, speed in (("usual", 100), ("quick", 10), ("usual", 150)):
        figures.show_and_save([figure("speed", speed, "1")], out=out, length=length)
    told = [line.split()[-2:] for line in capsys.readouterr().out.splitlines()]
    assert told == [["1", "new"], ["1", "new"], ["+50", "%"]]
    assert _values(read(out)) == {"speed": 150}


def test_a_run_of_all_parts_leaves_nothing_of_an_older_one(tmp_path: Path) -> None:
    last = figures.last_run("full", tmp_path / "bench.json")
    figures.write([figure("old", 1, "1"), figure("speed", 1, "1")], last)
    figures.show_and_save(
        [figure("speed", 2, "1")], out=tmp_path / "bench.json", length="full", replace_all=True
    )
    assert _values(read(last)) == {"speed": 2}
    assert all(one["commit"] for one in read(last))


def test_plots_are_written_as_png_and_svg_and_the_same_each_time(tmp_path: Path) -> None:
    def draw(folder: Path) -> list[Path]:
        points = [(1.0, 2.0), (10.0, 3.0)]
        return [
            *plots.draw_bars("bars", title="speeds", values={"ours": 3.0, "theirs": 1.0}, folder=folder),
            *plots.draw_lines(
                "lines",
                title="cost",
                across="keys",
                panels={"cost": {"a": points, "b": points}, "memory": {"own": points}},
                logarithmic=True,
                folder=folder,
            ),
            *plots.draw_stacks(
                "stacks", title="time", shares={"live": {"JVM": 1.0, "Python": 2.0}}, folder=folder
            ),
        ]

    first, second = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert {file.name for file in first} == {
        f"{name}.{ending}" for name in ("bars", "lines", "stacks") for ending in ("png", "svg")
    }
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def _values(found: list[dict[str, str | float]]) -> dict[str, float]:
    return {str(one["name"]): float(one["value"]) for one in found}
