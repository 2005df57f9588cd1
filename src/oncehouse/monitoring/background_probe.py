"""Questions to servers that may be slow or away, asked beside whoever looks.

Part of the read model (`insights.py`). A looker gets what was last heard and never waits longer than it wants to; a
server that does not answer holds up nothing but its own question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from oncehouse.errors import OncehouseError
from oncehouse.monitoring.message_trace import NoAnswer

Answer = TypeVar("Answer")

_NOT_YET = NoAnswer(why="it has not answered yet", failed=False)


class Hearing(Generic[Answer]):
    """One question, asked anew when its answer is older than `every_seconds` and somebody wants to know."""

    def __init__(
        self,
        question: Callable[[], Answer],
        *,
        every_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._question = question
        self._every_seconds = every_seconds
        self._monotonic = monotonic
        self._lock = threading.Condition()
        self._asking = False
        self._again = False
        self._heard: Answer | NoAnswer | None = None
        self._heard_at = 0.0

    def hear(self, *, wait_seconds: float) -> Answer | NoAnswer:
        """What was last heard; the first time, and after `forget`, the answer is waited for this long."""
        with self._lock:
            fresh = self._heard is not None and self._monotonic() - self._heard_at < self._every_seconds
            if not fresh and not self._asking:
                self._start()
            self._lock.wait_for(lambda: self._heard is not None, timeout=wait_seconds)
            return _NOT_YET if self._heard is None else self._heard

    def forget(self) -> None:
        """What was heard no longer holds, for somebody has changed something."""
        with self._lock:
            self._heard = None
            self._again = self._asking

    def _start(self) -> None:
        self._asking = True
        # A daemon, so that a server which does not answer never keeps the process from ending.
        threading.Thread(target=self._ask, name="oncehouse-question", daemon=True).start()

    def _ask(self) -> None:
        try:
            heard: Answer | NoAnswer = self._question()
        except OncehouseError as error:
            heard = NoAnswer(why=str(error), failed=True)
        except Exception as error:  # noqa: BLE001 - a thread's edge: whoever looks has to be told something
            heard = NoAnswer(why=f"unexpected {type(error).__name__}: {error}", failed=True)
        with self._lock:
            if self._again:
                # Asked before the change: what it says may be from before, too.
                self._again = False
                self._start()
                return
            self._heard, self._heard_at, self._asking = heard, self._monotonic(), False
            self._lock.notify_all()
