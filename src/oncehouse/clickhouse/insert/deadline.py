"""Until when the first byte of an INSERT may leave: a time that a frozen process cannot outlive.

Pure but for `read_moment`. On the machine where the attempt began it is counted by CLOCK_BOOTTIME, which goes on while
a process is stopped and while the machine sleeps. On another machine the wall clocks are compared once, when the work
arrives there, and boot time counts from then on: wall clocks may differ by `max_clock_difference`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SEND_WITHIN_SECONDS = 180.0
"""How long an attempt may wait before its first byte leaves: for a free executor, for reading and encoding its rows."""
LOOKUP_TIMEOUT_SECONDS = 600.0
"""How long the check before a doubtful retry may take, so that its attempt gets its full time to send after it."""
ANSWER_SLACK_SECONDS = 10.0
"""How long after the server ends a query a client may receive the answer."""
_LEAST_REMEMBERED_SECONDS = 600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Moment:
    boot: str
    """Which start of which machine; empty where the system does not say."""
    boot_seconds: float
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class Deadline:
    began: Moment
    seconds: float
    came_from_elsewhere: bool = False
    """It began by the clock of another machine."""

    def elapsed(self, now: Moment) -> float:
        """Seconds since it began."""
        if now.boot and now.boot == self.began.boot:
            return now.boot_seconds - self.began.boot_seconds
        return max(0.0, now.wall_seconds - self.began.wall_seconds)

    def is_over(self, now: Moment, *, grace_seconds: float = 0.0) -> bool:
        return self.elapsed(now) > self.seconds + grace_seconds

    def counted_here(self, now: Moment) -> Deadline:
        """The same deadline, from now on by the boot time of the machine where `now` was read."""
        if not now.boot or now.boot == self.began.boot:
            return self
        begun = now.boot_seconds - self.elapsed(now)
        return Deadline(
            began=Moment(boot=now.boot, boot_seconds=begun, wall_seconds=self.began.wall_seconds),
            seconds=self.seconds,
            came_from_elsewhere=True,
        )


def remembered_seconds(*, insert_timeout: float, clock_difference: float) -> float:
    """For how long after an attempt began its token may be relied on, if few enough blocks came since.

    Longer than the attempt's own INSERT can be under way: so none arrives after the pipeline has stopped expecting it.
    """
    under_way = under_way_seconds(insert_timeout=insert_timeout, clock_difference=clock_difference)
    return max(_LEAST_REMEMBERED_SECONDS, under_way)


def under_way_seconds(*, insert_timeout: float, clock_difference: float) -> float:
    """For how long after an attempt began to send, or after its look, its INSERT may be on its way or run."""
    return SEND_WITHIN_SECONDS + clock_difference + insert_timeout + ANSWER_SLACK_SECONDS


def read_moment() -> Moment:
    # Systems without this clock have no boot id either: there the wall clock counts.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return Moment(boot=_boot_id(), boot_seconds=time.clock_gettime(clock), wall_seconds=time.time())


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() if hasattr(time, "CLOCK_BOOTTIME") else ""
    except OSError:
        return ""
