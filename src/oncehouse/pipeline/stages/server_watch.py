"""Whether a server of a stage answers: said when it is away and when it is back, and noted in the stage's lease.

Spark's Kafka client waits for minutes before it raises, and ClickHouse is called only when there is something to
insert; so both are asked meanwhile. `oncehouse status`, the dashboard and the metrics show what the lease says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog.leases import LeasePauses

PROBE_SECONDS = 1.0
_FAILURES = 2
# Of a probe: with the pause between two of them and as many failures it makes the eight seconds that `docs/` promise.
TIMEOUT_SECONDS = 2.5


@dataclass(frozen=True, kw_only=True)
class WatchedServer:
    name: str
    """With its address, as messages name it."""
    find_trouble: Callable[[], str | None]
    """Why it cannot be used now, after `TIMEOUT_SECONDS` at the latest; None where it can."""
    meanwhile: str
    """What becomes of the pipeline's work while it is away."""


class ServerWatch:
    def __init__(
        self,
        server: WatchedServer,
        pauses: LeasePauses,
        *,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._pauses = pauses
        self._say = say
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._probed_at = float("-inf")
        self._away_since: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask the server on a thread of its own for as long as the block lasts."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), name="oncehouse-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def is_away(self) -> bool:
        """For callers that decide by it: asked now, unless it was away a moment ago."""
        if self._away_since is not None and self._now() - self._probed_at < PROBE_SECONDS:
            return True
        return self.ask(patient=False)

    def ask(self, *, patient: bool = True) -> bool:
        """Whether the server is away. A patient asker takes no single failure for an outage."""
        trouble = self._server.find_trouble()
        with self._lock:
            self._probed_at = self._now()
            self._failures = 0 if trouble is None else self._failures + 1
            if trouble is None:
                self._report_back()
            elif self._away_since is None and (not patient or self._failures >= _FAILURES):
                self._report_away(trouble)
            return trouble is not None

    def _watch(self, over: threading.Event) -> None:
        reported = ""
        while not over.wait(PROBE_SECONDS):
            try:
                self.ask()
                self._pauses.write()
            except OncehouseError:
                # The threads that write more than notes to the catalog end the run for what is wrong with it.
                continue
            except Exception as error:  # noqa: BLE001 - without this thread an outage would stay unnoticed
                if (text := f"{type(error).__name__}: {error}") != reported:
                    reported = text
                    self._say(
                        f"It is unknown whether {self._server.name} answers ({text}). It is asked again."
                    )

    def _report_away(self, trouble: str) -> None:
        self._away_since = self._now()
        self._say(f"{self._server.name} does not answer ({trouble}). {self._server.meanwhile}")
        self._pauses.set(self._server.name, f"{self._server.name} does not answer ({trouble})")

    def _report_back(self) -> None:
        if self._away_since is None:
            return
        seconds, self._away_since = self._now() - self._away_since, None
        self._say(f"{self._server.name} answers again, after {seconds:.0f} s.")
        self._pauses.set(self._server.name, None)
