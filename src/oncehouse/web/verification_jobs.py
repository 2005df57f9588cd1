"""Verifications that users start in the dashboard: at most one per pipeline, on a background thread.

A verification is `oncehouse verify` and changes nothing. The last result is kept until the next one or the end of the
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError, OncehouseError

if TYPE_CHECKING:
    from oncehouse.monitoring.monitor import Monitor, VerifyReport


@dataclass(frozen=True, kw_only=True)
class Verification:
    running_since: float | None = None
    """Seconds since 1970; none while none runs."""
    ended_at: float | None = None
    took_seconds: float = 0.0
    report: VerifyReport | None = None
    trouble: str | None = None
    """Why the last one failed."""
    scope: str = ""


class Verifications:
    def __init__(self, monitor: Monitor, *, clock: Callable[[], float] = time.time) -> None:
        self._monitor = monitor
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, Verification] = {}

    def state(self, name: str) -> Verification:
        with self._lock:
            return self._states.get(name, Verification())

    def start(self, name: str, *, files: bool, ledger_only: bool) -> None:
        """Raises ConfigurationError while one is running, and for an unknown pipeline."""
        self._monitor.pipeline(name)
        words = [
            *(["every byte of the files"] if files else []),
            *(["the ledger alone"] if ledger_only else []),
        ]
        with self._lock:
            state = self._states.get(name, Verification())
            if state.running_since is not None:
                raise ConfigurationError(f"A verification of {name} is already running.")
            self._states[name] = replace(
                state, running_since=self._clock(), scope=", ".join(words) or "ledger and tables"
            )
        threading.Thread(
            target=self._run, args=(name, files, ledger_only), name="oncehouse-verify", daemon=True
        ).start()

    def _run(self, name: str, files: bool, ledger_only: bool) -> None:
        report: VerifyReport | None = None
        trouble: str | None = None
        try:
            report = self._monitor.verify(name, files=files, ledger_only=ledger_only)
        except OncehouseError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001 - a thread's edge: the page has to show the failure
            trouble = f"unexpected {type(error).__name__}: {error}"
        with self._lock:
            state, now = self._states[name], self._clock()
            self._states[name] = Verification(
                ended_at=now,
                took_seconds=now - (state.running_since or now),
                report=report,
                trouble=trouble,
                scope=state.scope,
            )
