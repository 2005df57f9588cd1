"""How far a relay has come: the totals since its process started, and its current rate."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from oncehouse.messaging.outbox.relay.worker import RelayRound

_WINDOW_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class RelayProgress:
    sent: int = 0
    parked: int = 0
    """Rows parked since the process started, including those that wait for another."""
    failures: int = 0
    """Rounds that failed because of Kafka or the database."""
    buckets: int = 0
    """Buckets that this relay holds now."""
    relays: int = 0
    """Relays of this outbox, including this one."""
    rows_per_second: float = 0.0
    last_error: str | None = None


class Throughput:
    """Sums over the rounds of all workers; thread-safe."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._started_at = monotonic()
        self._lock = threading.Lock()
        self._done = RelayProgress()
        self._rounds: deque[tuple[float, int]] = deque()

    def add(self, done: RelayRound) -> None:
        now = self._monotonic()
        with self._lock:
            before = self._done
            self._done = replace(
                before,
                sent=before.sent + done.sent,
                parked=before.parked + done.parked,
                failures=before.failures + (done.error is not None),
                last_error=done.error or before.last_error,
            )
            self._rounds.append((now, done.sent))
            self._forget(now)

    def progress(self, *, buckets: int, relays: int) -> RelayProgress:
        now = self._monotonic()
        with self._lock:
            self._forget(now)
            span = max(0.001, min(_WINDOW_SECONDS, now - self._started_at))
            rate = sum(sent for _, sent in self._rounds) / span
            return replace(self._done, buckets=buckets, relays=relays, rows_per_second=rate)

    def _forget(self, now: float) -> None:
        while self._rounds and self._rounds[0][0] < now - _WINDOW_SECONDS:
            self._rounds.popleft()
