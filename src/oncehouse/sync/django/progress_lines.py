"""Progress of a management command through a model's keys: a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from oncehouse.sync.backfill.progress import KeyProgress

_INTERVAL_SECONDS = 5.0


class ProgressLines:
    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._printed_at: float | None = None

    def __call__(self, progress: KeyProgress) -> None:
        now = time.monotonic()
        if self._printed_at is None or now - self._printed_at >= _INTERVAL_SECONDS:
            self._printed_at = now
            self._write(
                f"{progress.sync}: {progress.doing}: {progress.keys:,} of about {progress.estimate:,} keys"
            )
