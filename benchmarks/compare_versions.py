"""Speed and processor time of this checkout compared with an earlier revision, in turns on one machine.

    python benchmarks/compare_versions.py REVISION [--events 2000000] [--turns 3]

Each turn runs `benchmarks/end_to_end.py` without peers in both checkouts, one after the other, each with its own code
and its own benchmark programs. The revision is checked out under build/before/. Medians of the turns are compared.
Both run on the packages that are installed here, so a revision that needs other packages cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import OUT, Figure, figure, say, show_and_save

ROOT = Path(__file__).resolve().parent.parent
EVENTS = 2_000_000
TURNS = 3
SPEED = "end_to_end_events_per_s"
PROCESSOR_TIME = "cpu_s_per_million"


def check_out(revision: str) -> Path:
    """A work tree of the revision, below build/."""
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    folder = ROOT / "build" / "before" / commit
    if not folder.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--force", "--detach", str(folder), commit)
    return folder


def _git(*arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def run_once(checkout: Path, events: int) -> dict[str, float]:
    """The figures of one run of a checkout's own `end_to_end.py`."""
    with tempfile.TemporaryDirectory(prefix="oncehouse-bench-") as folder:
        out = Path(folder) / "bench.json"
        subprocess.run(
            # Peers are not compared: the smallest one is run because the program wants one.
            [
                *(sys.executable, checkout / "benchmarks/end_to_end.py", "--events", str(events)),
                *("--no-kills", "--peer", "raw_tuned", "--out", str(out)),
            ],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout / "src")},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return {one["name"]: one["value"] for one in json.loads(out.read_text())}


def compare(now: list[dict[str, float]], before: list[dict[str, float]]) -> list[Figure]:
    """Medians of both, and how this checkout compares with the revision."""
    found = []
    for name, ratio, unit in (
        (SPEED, "speed_over_before", "events/s"),
        (PROCESSOR_TIME, "cpu_over_before", "s"),
    ):
        this, other = (median(turn[name] for turn in turns) for turns in (now, before))
        found += [
            figure(f"{ratio}_now", this, unit),
            figure(f"{ratio}_then", other, unit),
            figure(ratio, this / other, "1"),
        ]
    return found


def measure(revision: str, events: int, turns: int) -> list[Figure]:
    checkouts = {"before": check_out(revision), "now": ROOT}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    try:
        for turn in range(turns):
            # The order alternates, so that a machine that slows down or warms up favours neither.
            for name in sorted(checkouts, reverse=bool(turn % 2)):
                say(f"turn {turn + 1} of {turns}: {name}")
                figures = run_once(checkouts[name], events)
                say(f"  {figures[SPEED]:,.0f} events/s, {figures[PROCESSOR_TIME]:.2f} processor s a million")
                taken[name].append(figures)
    finally:
        shutil.rmtree(checkouts["before"], ignore_errors=True)
        _git("worktree", "prune")
    return compare(taken["now"], taken["before"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision", help="the earlier commit, tag or branch")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go")
    options = parser.parse_args()
    found = measure(options.revision, options.events, options.turns)
    show_and_save(found, out=options.out, length=f"compare-versions-{options.events}")


if __name__ == "__main__":
    main()
