"""What came of the scenarios of a session: a table at its end, in `build/chaos.json` and in `build/chaos.md`.

Each test says its scenario in its own report, so that the table is right in however many processes the tests ran.
A session of all scenarios, which alone writes the files, fails when one of the list was not played, or not with its
defect. What a machine cannot play counts as not played: the table says so, and why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scenarios import FAULTS, SCENARIOS, Scenario

BUILD = Path(__file__).parents[2] / "build"
_MARKS = ("scenario", "defect")
_WIDTH = 110


@dataclass(kw_only=True)
class Result:
    """One line of the table; `None` is for what was not played."""

    scenario: str
    faults_row: int
    held: bool | None = None
    defect_caught: bool | None = None
    seed: int | None = None
    seconds: float = 0.0

    def add(self, mark: str, *, passed: bool) -> None:
        if mark == "scenario":
            self.held = passed and self.held is not False
        else:
            self.defect_caught = passed and self.defect_caught is not False

    def leave_out(self, mark: str) -> None:
        """A part of it was not played, so what was played shows nothing, unless it failed."""
        if mark == "scenario":
            self.held = self.held and None
        else:
            self.defect_caught = self.defect_caught and None

    @property
    def words(self) -> tuple[str, str]:
        return _word(self.held), _word(self.defect_caught)


class ChaosReport:
    """Listens to all reports of a session in which every scenario is asked for."""

    def __init__(
        self, *, whole: bool, scenarios: Sequence[Scenario] = SCENARIOS, folder: Path = BUILD
    ) -> None:
        self._whole = whole
        self._folder = folder
        ordered = sorted(scenarios, key=lambda known: known.row)
        self._results = {known.name: Result(scenario=known.name, faults_row=known.row) for known in ordered}
        self._skipped: dict[tuple[str, str], str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """In the process that runs the test: write down what it is about, or refuse a name that nobody knows."""
        for mark in _MARKS:
            for found in item.iter_markers(mark):
                (name,) = found.args
                if name not in self._results:
                    pytest.fail(f"{name!r} is not a scenario of tests/support/scenarios.py", pytrace=False)
                item.user_properties.append((mark, name))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        named = [(mark, str(name)) for mark, name in report.user_properties if mark in _MARKS]
        seed = next((int(str(value)) for key, value in report.user_properties if key == "seed"), None)
        for mark, name in named:
            result = self._results[name]
            result.seconds += report.duration
            result.seed = seed if result.seed is None else result.seed
            if report.skipped:
                self._skipped[mark, name] = _reason(report)
            elif report.when == "call" or report.failed:
                result.add(mark, passed=report.passed)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or session.config.option.collectonly:
            return
        for mark, name in self._skipped:
            self._results[name].leave_out(mark)
        if self._whole:
            self._write(self._shown())
        if session.exitstatus == 0 and self._missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self, results: Sequence[Result]) -> None:
        self._folder.mkdir(exist_ok=True)
        table = json.dumps([asdict(one) for one in results], indent=2)
        (self._folder / "chaos.json").write_text(f"{table}\n")
        (self._folder / "chaos.md").write_text("".join(f"{line}\n" for line in format_markdown(results)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        results = self._shown()
        if not results or terminalreporter.config.option.collectonly:
            return
        Console(file=terminalreporter._tw._file, width=_WIDTH).print(make_table(results))
        terminalreporter.write_line(format_sum(results))
        for message in self._missing():
            terminalreporter.write_line(message, red=True)

    def _shown(self) -> list[Result]:
        return [
            _rounded(found)
            for found in self._results.values()
            if self._whole or found.held is not None or found.defect_caught is not None
        ]

    def _missing(self) -> list[str]:
        """What a session of all scenarios should have played and did not."""
        played = (
            (name, mark, found.held if mark == "scenario" else found.defect_caught)
            for name, found in self._results.items()
            for mark in _MARKS
        )
        return [
            f"not played: {name}, {_PLAYED[mark]}: {self._skipped.get((mark, name), 'no test of it ran')}"
            for name, mark, outcome in played
            if self._whole and outcome is None
        ]


_PLAYED = {"scenario": "on the code as it is", "defect": "with its defect"}


def make_table(results: Iterable[Result]) -> Table:
    """As people see it: a heading for each fault, the scenarios that show it below."""
    table = Table("scenario", "held", "defect caught", box=None, pad_edge=False, header_style="bold")
    table.add_column("seed", justify="right")
    table.add_column("seconds", justify="right")
    before = 0
    for result in results:
        if result.faults_row != before:
            before = result.faults_row
            table.add_row(Text(f"{before}  {FAULTS[before]}", style="dim"))
        seed = "" if result.seed is None else str(result.seed)
        words = (Text(word, style=_STYLES[word]) for word in result.words)
        table.add_row(Text(f"   {result.scenario}"), *words, seed, f"{result.seconds:.1f}")
    return table


def format_sum(results: Sequence[Result]) -> str:
    held = sum(result.held is True for result in results)
    caught = sum(result.defect_caught is True for result in results)
    seconds = sum(result.seconds for result in results)
    return (
        f"{held} of {len(results)} scenarios held, {caught} of {len(results)} defects were caught, "
        f"in {seconds / 60:.1f} minutes of tests"
    )


def format_markdown(results: Sequence[Result]) -> list[str]:
    """The same table for the documentation."""
    head = "| fault | scenario | held | defect caught | seed | seconds |"
    lines = [head, "|---|---|---|---|---|---|"]
    for before, result in pairwise([None, *results]):
        row = result.faults_row
        fault = "" if before is not None and before.faults_row == row else f"{row}. {FAULTS[row]}"
        seed = "" if result.seed is None else str(result.seed)
        cells = (fault, result.scenario, *result.words, seed, f"{result.seconds:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"{format_sum(results)}."]


def _reason(report: pytest.TestReport) -> str:
    """Of a skipped test: its report has (file, line, reason)."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


def _rounded(result: Result) -> Result:
    result.seconds = round(result.seconds, 1)
    return result


_STYLES = {"yes": "green", "NO": "bold red", "not played": "yellow"}


def _word(value: bool | None) -> str:
    return "not played" if value is None else "yes" if value else "NO"
