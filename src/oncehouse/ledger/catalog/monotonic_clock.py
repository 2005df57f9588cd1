"""A clock that never jumps: what the catalog's clock said first, plus how long this process has run since.

A clock that is set forth or back while a process runs must not make an id leave the window early. So what is written
down carries the later of both times, and what is deleted by its age is judged by the earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def read_uptime() -> float:
    """Seconds since some moment, through a sleep of the machine too where the system counts it."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class SteadyClock:
    """Starts with the first time that it gets; all later ones are only compared with it."""

    def __init__(self, read_passed: Callable[[], float] = read_uptime) -> None:
        self._read_passed = read_passed
        self._offset_seconds: float | None = None

    def correct(self, catalog_time: float) -> float:
        """What the time should be when the catalog's clock shows this."""
        if self._offset_seconds is None:
            self._offset_seconds = catalog_time - self._read_passed()
        return self._offset_seconds + self._read_passed()
