"""The consumer's core has 100 % branch coverage by its own tests: a mistake there would be in every consumer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CORE = "state_machine", "events", "batch_sizing", "partition_state", "commit_plan", "records", "handler_rules"


def test_every_branch_of_the_core_is_taken(tmp_path):
    files = ",".join(f"*/messaging/consumer/{name}.py" for name in CORE)
    data, settings = f"--data-file={tmp_path / 'coverage'}", f"--rcfile={tmp_path / 'none'}"
    (tmp_path / "none").write_text("")
    measure = ["-m", "coverage", "run", "--branch", data, settings, f"--include={files}"]
    # Random tests run by themselves: under the tracer they cost much and show nothing more.
    tests = [
        "-m",
        "pytest",
        "--noconftest",
        "-k",
        "not comes_to_rest and not wherever",
        str(HERE / "test_consumer_core.py"),
    ]
    ran = subprocess.run([sys.executable, *measure, *tests], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = ["-m", "coverage", "report", "-m", "--fail-under=100", data, settings]
    shown = subprocess.run([sys.executable, *report], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout
    assert all(f"{name}.py" in shown.stdout for name in CORE)
