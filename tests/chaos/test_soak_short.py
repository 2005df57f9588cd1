"""`make soak` in a short form: the script itself, as it is started, with few kills in two minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from soak_modules import TOOLS

KILLS, DRIVER_KILLS = 6, 2


@pytest.mark.timeout(1800)
def test_a_short_soak_kills_what_it_was_asked_to_and_loses_and_doubles_nothing(tmp_path, record_property):
    asked = {
        "--minutes": "1",
        "--kills": str(KILLS),
        "--driver-kills": str(DRIVER_KILLS),
        "--calm-minutes": "0.3",
        "--backlog": "200000",
        "--epoch-rows": "40000",
        "--json": str(tmp_path / "soak.json"),
        "--plot": str(tmp_path / "soak.png"),
    }
    words = [word for pair in asked.items() for word in pair]
    folder = tmp_path / "tmp"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(TOOLS / "soak.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    told = json.loads((tmp_path / "soak.json").read_text())
    record_property("seed", told["seed"])
    # Two minutes are too short to say anything of growth; the rules have tests of their own.
    problems = [problem for problem in told["problems"] if " grew " not in problem]
    assert not problems, done.stdout + done.stderr
    assert (told["lost"], told["doubled"], told["verified"]) == (0, 0, True)
    kills = told["kills"]
    assert kills.pop("driver") == DRIVER_KILLS
    assert sum(kills.values()) == KILLS
    assert told["least_epochs_before_a_driver_kill"] >= 1
    assert told["events"]["records"] == sum(
        (told["delivered"]["rows"], told["events"]["duplicates"], told["events"]["broken"])
    )
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert "lost" in done.stdout
    assert "doubled" in done.stdout
