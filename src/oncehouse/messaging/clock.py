"""The clock of messaging code, and one that tests advance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970, for stored values and comparisons between machines."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease, for durations."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(kw_only=True)
class ManualClock:
    """A clock that changes only by `advance`."""

    seconds: float = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
