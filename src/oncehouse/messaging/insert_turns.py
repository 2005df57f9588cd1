"""How often the handlers of a process insert into a table: they take turns, whatever partitions their batches are of.

A table remembers a number of inserts, not a time. So what it must remember is known only if its inserts are bounded.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from oncehouse.errors import ConfigurationError


class InsertTurns:
    """Of one table: a turn begins `interval` seconds after the one before."""

    def __init__(
        self,
        interval_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._now, self._sleep = now, sleep
        self._next = float("-inf")
        self._lock = threading.Lock()

    def wait(self, longest_seconds: float) -> bool:
        """Wait for a turn; False, and no turn, if it would come later than that."""
        with self._lock:
            now = self._now()
            begins = max(now, self._next)
            if begins - now > longest_seconds:
                return False
            self._next = begins + self.interval_seconds
        if begins > now:
            self._sleep(begins - now)
        return True


_turns: weakref.WeakValueDictionary[tuple[str, str], InsertTurns] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def turns_of(server: str, table: str, interval_seconds: float) -> InsertTurns:
    """One for all handlers of the table that this process has."""
    with _lock:
        turns = _turns.get((server, table))
        if turns is None:
            turns = _turns[server, table] = InsertTurns(interval_seconds)
    if turns.interval_seconds != interval_seconds:
        raise ConfigurationError(
            f"ClickHouseHandler: another handler of this process inserts into {table} with another "
            "inserts_per_second or processes; they are of the table, so give all of its handlers the same"
        )
    return turns
