"""What a relay has done so far, added up from its lanes' rounds. Safe from several threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from oncehouse.messaging.outbox.relay.types import RelayProgress
from oncehouse.messaging.outbox.relay.worker import Round

_WINDOW_SECONDS = 5.0


class Throughput:
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._started_at = monotonic()
        self._lock = threading.Lock()
        self._done = RelayProgress()
        self._rounds: deque[tuple[float, int]] = deque()

    def add(self, done: Round) -> None:
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
