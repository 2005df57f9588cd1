"""The gate before each epoch: waits while there is no room for one, says so once, and lets others see it.

`judge_room` decides. Leases are kept meanwhile, loading and retention go on, and so does the ingest as soon as there
is room. A catalog that cannot be written has no room for the note either; people are told all the same.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.pipeline.ingest.backpressure import Pause, judge_room, read_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import Lease

_LOOK_SECONDS = 0.5


class Gate:
    """Of one holder of the ingest lease, whose threads share it."""

    def __init__(
        self, pipeline: Pipeline, catalog: Catalog, lease: Lease, *, say: Callable[[str], None]
    ) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._lease = lease
        self._say = say
        self._lock = threading.Lock()
        self._paused = False

    def wait(self, is_over: Callable[[], bool]) -> bool:
        """True as soon as there is room for an epoch, False when it is over before that."""
        while not is_over():
            found = judge_room(
                read_room(self._pipeline, self._catalog),
                self._pipeline.ledger,
                window_seconds=self._pipeline.identity.window,
                paused=self._paused,
            )
            if not isinstance(found, Pause):
                self._go_on()
                return True
            self._pause(found)
            time.sleep(_LOOK_SECONDS)
        return False

    def _pause(self, found: Pause) -> None:
        if not self._change(paused=True):
            return
        self._say(f"Pipeline {self._pipeline.pipeline}: reading pauses: {found.reason}. {found.advice}")
        self._note(found.reason)

    def _go_on(self) -> None:
        if not self._change(paused=False):
            return
        self._say(f"Pipeline {self._pipeline.pipeline}: there is room again, reading goes on.")
        self._note(None)

    def _change(self, *, paused: bool) -> bool:
        with self._lock:
            changed, self._paused = self._paused != paused, paused
        return changed

    def _note(self, pause: str | None) -> None:
        with suppress(TransientError):
            leases.note_pause(self._catalog, self._lease, pause)
