"""When an idle relay looks again: soon after there was something, ever more seldom while there is nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Immutable: each look gives the next pace."""

    shortest_seconds: float = 0.05
    longest_seconds: float = 5.0
    wait_seconds: float = 0.05

    def after(self, *, found: bool) -> Pace:
        wait = self.shortest_seconds if found else min(self.longest_seconds, self.wait_seconds * 2)
        return Pace(
            shortest_seconds=self.shortest_seconds, longest_seconds=self.longest_seconds, wait_seconds=wait
        )
