"""Background probes of servers that may be slow or unavailable.

A reader gets the last answer and waits at most as long as it asks for. A server that does not answer delays only its
own probe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from oncehouse.errors import OncehouseError
from oncehouse.monitoring.unavailable import NoAnswer

Answer = TypeVar("Answer")

_NOT_YET = NoAnswer(why="it has not answered yet", failed=False)


class BackgroundProbe(Generic[Answer]):
    """One question to a server, repeated on a thread when a reader finds the answer older than `refresh_seconds`."""

    def __init__(
        self,
        question: Callable[[], Answer],
        *,
        refresh_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._question = question
        self._refresh_seconds = refresh_seconds
        self._monotonic = monotonic
        self._lock = threading.Condition()
        self._asking = False
        self._is_outdated = False
        self._answer: Answer | NoAnswer | None = None
        self._answered_at = 0.0

    def read(self, *, wait_seconds: float) -> Answer | NoAnswer:
        """The last answer; waits this long for the first one, also after `forget`."""
        with self._lock:
            fresh = self._answer is not None and self._monotonic() - self._answered_at < self._refresh_seconds
            if not fresh and not self._asking:
                self._start()
            self._lock.wait_for(lambda: self._answer is not None, timeout=wait_seconds)
            return _NOT_YET if self._answer is None else self._answer

    def forget(self) -> None:
        """Drop the last answer, after a change."""
        with self._lock:
            self._answer = None
            self._is_outdated = self._asking

    def _start(self) -> None:
        self._asking = True
        # A daemon, so that a server which does not answer never keeps the process from ending.
        threading.Thread(target=self._ask, name="oncehouse-question", daemon=True).start()

    def _ask(self) -> None:
        try:
            answer: Answer | NoAnswer = self._question()
        except OncehouseError as error:
            answer = NoAnswer(why=str(error), failed=True)
        except Exception as error:  # noqa: BLE001 - a thread's edge: readers have to see the failure
            answer = NoAnswer(why=f"unexpected {type(error).__name__}: {error}", failed=True)
        with self._lock:
            if self._is_outdated:
                # The question was asked before the change, so its answer may be outdated.
                self._is_outdated = False
                self._start()
                return
            self._answer, self._answered_at, self._asking = answer, self._monotonic(), False
            self._lock.notify_all()
