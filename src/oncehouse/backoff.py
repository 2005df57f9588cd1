"""How long to wait before the next attempt: exponential, capped, spread over the whole wait (full jitter)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    base_seconds: float
    longest_seconds: float

    def wait_seconds(self, attempt: int, *, chance: float) -> float:
        """The wait after the `attempt`-th failure (from 1). `chance` (0 to 1) is the caller's die."""
        # Past 2**30 the cap has long been reached; the bound keeps the power from overflowing.
        return min(self.longest_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 30)) * chance
