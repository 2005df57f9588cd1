"""Time as messaging code sees it, and a twin that tests turn by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970, for what is written down and compared with other machines."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for how long something takes."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(kw_only=True)
class ManualClock:
    """A clock that stands still until it is told otherwise."""

    seconds: float = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
