"""The demo on a cluster: it ends well only when all three kills happened and nothing is lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import cluster_demo
from cluster_demo import ClusterResult
from demo_results import Comparison

ROOT = Path(__file__).parents[2]

WELL = ClusterResult(
    produced=110,
    expected_rows=100,
    found=Comparison(rows=100, lost=0, doubled=0, foreign=0),
    executors_killed=1,
    machines_killed=1,
    drivers_followed=1,
    verified=True,
)


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        ({}, 0),
        ({"found": replace(WELL.found, lost=1)}, 1),
        ({"found": replace(WELL.found, rows=101, doubled=1)}, 1),
        ({"found": replace(WELL.found, foreign=1)}, 1),
        ({"machines_killed": 0}, 1),
        ({"drivers_followed": 0}, 1),
        ({"verified": False}, 1),
    ],
)
def test_it_ends_well_only_when_all_went_as_promised(monkeypatch, capsys, spoilt, code):
    monkeypatch.setattr(cluster_demo, "run_cluster_demo", lambda **_: replace(WELL, **spoilt))
    assert cluster_demo.main(["--events", "110"]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith("doubled ")


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(900)
def test_the_whole_demo_ends_well_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo/cluster_demo.py")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0\ndoubled 0\n" in done.stdout
    assert not list((tmp_path / "tmp").glob("oncehouse-cluster-*"))
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]
    assert not left
