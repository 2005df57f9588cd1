"""How long to wait before the next attempt: exponential, capped, spread over the whole wait (full jitter).

Where turns come by themselves, how many of them to let pass instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    base_seconds: float
    longest_seconds: float

    def wait_seconds(self, attempt: int, *, jitter: float) -> float:
        """The wait after the `attempt`-th failure (from 1). `chance` (0 to 1) is the caller's die."""
        # Past 2**30 the cap has long been reached; the bound keeps the power from overflowing.
        return min(self.longest_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 30)) * jitter


class Turns:
    """After a failure lets turns pass without a try: one, then three, seven, up to a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._passed_last = 0
        self._to_pass = 0

    def passes(self) -> bool:
        """Whether this turn is to go by."""
        if not self._to_pass:
            return False
        self._to_pass -= 1
        return True

    def fail(self) -> None:
        self._passed_last = self._to_pass = min(2 * self._passed_last + 1, self._most)

    def succeed(self) -> None:
        self._passed_last = 0
