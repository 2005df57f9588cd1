"""Schedules that failed once, shrunk to few steps, as they are kept in `kept_schedules.json`: one a line.

Each has the seed that made it, and the planted bug that it found where it was one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from simulation import Step

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, kw_only=True)
class Kept:
    seed: int
    bug: str = ""
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"seed {self.seed}{f', {self.bug}' if self.bug else ''}"


def load_kept() -> list[Kept]:
    return [read(line) for line in FILE.read_text(encoding="utf-8").splitlines() if line.strip("[]")]


def read(line: str) -> Kept:
    found = json.loads(line.rstrip(","))
    steps = (Step(kind=kind, numbers=tuple(numbers), dies_at=at) for kind, numbers, at in found["steps"])
    return Kept(seed=found["seed"], bug=found["bug"], steps=tuple(steps))


def spell(kept: Kept) -> str:
    """A line of the file."""
    steps = [(step.kind, step.numbers, step.dies_at) for step in kept.steps]
    return json.dumps({"seed": kept.seed, "bug": kept.bug, "steps": steps})
