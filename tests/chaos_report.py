"""What came of the scenarios of a session: a table at its end, and `build/chaos.json`.

Each test says its scenario in its own report, so that the table is right in however many processes the tests ran.
A session of all scenarios fails when one of the list was not played, or not with its defect.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from scenarios import FAULTS, SCENARIOS

RESULTS = Path(__file__).parents[1] / "build" / "chaos.json"
_MARKS = ("scenario", "defect")


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


class ChaosReport:
    """Listens to all reports of a session in which every scenario is asked for."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._results = {known.name: Result(scenario=known.name, faults_row=known.row) for known in SCENARIOS}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """In the process that runs the tests: write down what each is about."""
        for item in items:
            for mark in _MARKS:
                for found in item.iter_markers(mark):
                    (name,) = found.args
                    if name not in self._results:
                        message = f"{item.nodeid}: {name!r} is not a scenario of tests/scenarios.py"
                        raise pytest.UsageError(message)
                    item.user_properties.append((mark, name))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        named = [(mark, str(name)) for mark, name in report.user_properties if mark in _MARKS]
        seed = next((int(str(value)) for key, value in report.user_properties if key == "seed"), None)
        for mark, name in named:
            result = self._results[name]
            result.seconds += report.duration
            result.seed = seed if result.seed is None else result.seed
            if report.when == "call" or not report.passed:
                result.add(mark, passed=report.passed)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or session.config.option.collectonly:
            return
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(result) for result in self._shown()], indent=2) + "\n")
        if self._whole and session.exitstatus == 0 and self._missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        table = Table("scenario", "fault", "held", "defect caught", "seed", "seconds", box=None)
        for result in self._shown():
            seed = "" if result.seed is None else str(result.seed)
            fault = f"{result.faults_row} {FAULTS[result.faults_row]}"
            marks = (_word(result.held), _word(result.defect_caught))
            table.add_row(result.scenario, fault, *marks, seed, f"{result.seconds:.1f}")
        Console(file=terminalreporter._tw._file, width=150).print(table)
        for result in self._missing() if self._whole else ():
            terminalreporter.write_line(f"not shown: {result.scenario}", red=True)

    def _shown(self) -> list[Result]:
        played = [
            found
            for found in self._results.values()
            if self._whole or found.held is not None or found.defect_caught is not None
        ]
        return [_rounded(found) for found in played]

    def _missing(self) -> list[Result]:
        return [found for found in self._results.values() if not (found.held and found.defect_caught)]


def _rounded(result: Result) -> Result:
    result.seconds = round(result.seconds, 1)
    return result


def _word(value: bool | None) -> str:
    return "not played" if value is None else "yes" if value else "NO"
