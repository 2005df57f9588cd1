"""The table of scenarios: right in one process and in several, and nothing of the list may be left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos_report import ChaosReport, Result, format_markdown
from scenarios import SCENARIOS

TESTS = Path(__file__).parents[2] / "support"

CONFTEST = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from chaos_report import ChaosReport
from scenarios import Scenario

def pytest_configure(config):
    known = (Scenario("second", 2), Scenario("first", 1))
    config.pluginmanager.register(ChaosReport(whole=True, scenarios=known, folder=Path("build")))
"""
SETTINGS = "[pytest]\nmarkers =\n  scenario(name): played\n  defect(name): noticed\n"
PLAYED = """
import pytest

@pytest.mark.scenario("first")
def test_first(): pass

@pytest.mark.scenario("first")
def test_first_again(): pass

@pytest.mark.defect("first")
def test_first_defect(): pass

@pytest.mark.scenario("second")
def test_second(record_property): record_property("seed", 7)
"""
DEFECT = """
@pytest.mark.defect("second")
def test_second_defect(): pass
"""


@pytest.fixture
def session(tmp_path):
    """`session(tests, "-n", "2")`: (exit code, what was printed, build/chaos.json) of a session of these tests."""

    def run(tests: str, *options: str) -> tuple[int, str, list[dict[str, object]]]:
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text(SETTINGS)
        (tmp_path / "test_played.py").write_text(tests)
        quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        found = tmp_path / "build" / "chaos.json"
        return (
            done.returncode,
            done.stdout + done.stderr,
            json.loads(found.read_text()) if found.exists() else [],
        )

    return run


def test_what_processes_of_a_session_played_comes_together_in_one_table(session, tmp_path):
    code, printed, results = session(PLAYED + DEFECT, "-n", "2")
    assert code == 0, printed
    assert [{name: value for name, value in one.items() if name != "seconds"} for one in results] == [
        {"scenario": "first", "faults_row": 1, "held": True, "defect_caught": True, "seed": None},
        {"scenario": "second", "faults_row": 2, "held": True, "defect_caught": True, "seed": 7},
    ]
    assert all(isinstance(one["seconds"], float) for one in results)
    assert "2 of 2 scenarios held, 2 of 2 defects were caught" in printed
    assert re.search(r"second +yes +yes +7 +\d+\.\d", printed)
    assert "| second | yes | yes | 7 |" in (tmp_path / "build" / "chaos.md").read_text()


def test_a_scenario_without_its_defect_fails_a_session_of_all(session):
    code, printed, results = session(PLAYED)
    assert code == 1
    assert "not played: second, with its defect" in printed
    assert results[1]["defect_caught"] is None


def test_a_name_that_is_not_of_the_list_is_refused(session):
    code, printed, _ = session(PLAYED + DEFECT.replace("second", "secnod"))
    assert code == 1
    assert "'secnod' is not a scenario" in printed


def make_report(mark: str, outcome: str, *, when: str = "call") -> pytest.TestReport:
    longrepr = ("file", 1, "Skipped: no right to mount") if outcome == "skipped" else None
    return pytest.TestReport(
        nodeid="test",
        location=("file", 1, "test"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=longrepr,
        when=when,  # type: ignore[arg-type]
        duration=1.25,
        user_properties=[(mark, SCENARIOS[0].name)],
    )


def play(*reports: pytest.TestReport) -> Result:
    listener = ChaosReport(whole=False)
    for report in reports:
        listener.pytest_runtest_logreport(report)
    (result,) = listener._shown()
    return result


def test_one_test_that_failed_is_not_made_good_by_others():
    reports = [make_report("scenario", outcome) for outcome in ("passed", "failed", "passed")]
    result = play(*reports, make_report("defect", "failed", when="setup"))
    assert (result.held, result.defect_caught, result.seconds) == (False, False, 5.0)
    assert "| NO | NO |" in format_markdown([result])[2]


SKIPPED = """
@pytest.mark.scenario("first")
def test_first_elsewhere(): pytest.skip("no right to mount")
"""


def test_what_a_machine_cannot_play_in_full_does_not_count_as_held(session):
    code, printed, results = session(PLAYED + DEFECT + SKIPPED)
    assert code == 1
    assert "not played: first, on the code as it is: no right to mount" in printed
    assert (results[0]["held"], results[0]["defect_caught"]) == (None, True)


def test_a_session_of_some_scenarios_leaves_the_table_of_all_alone(session, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "CONFTEST", CONFTEST.replace("whole=True", "whole=False"))
    code, printed, results = session(PLAYED)
    assert code == 0, printed
    assert "2 of 2 scenarios held" in printed
    assert results == []
    assert not (tmp_path / "build").exists()
