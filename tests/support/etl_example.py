"""The scheduler's example as a user runs it, small, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "etl"
SOURCE = Path(__file__).resolve().parents[2] / "src"


def run_example(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "run.py", "--orders", "2000", "--hours", "18", "--pause", "0.02", *words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def read_table(output: str) -> dict[str, list[str]]:
    """Table and its counts: expected, found, missing, too many."""
    rows = [line.split() for line in output.splitlines() if line.startswith("dwh.")]
    return {row[0]: row[1:] for row in rows}
