"""Keeps the leases of the topics that are worked on alive, at a third of their length, from one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from oncehouse.errors import OncehouseError
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.state.transitions import OffsetStore, beat

# However short the lease: each beat moves the row's time on by a millisecond at least, so that beats without a pause
# would carry it into the future.
_LEAST_SECONDS = 0.05


class TopicHeartbeat:
    def __init__(self, store: OffsetStore, worker: TopicWorker) -> None:
        self._store = store
        self._worker = worker
        self._held: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncehouse-etl-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def hold(self, topic: str) -> Iterator[threading.Lock]:
        """The lock keeps the heartbeat off the topic's row while the step itself changes it."""
        lock = threading.Lock()
        with self._guard:
            self._held[topic] = lock
        try:
            yield lock
        finally:
            with self._guard:
                del self._held[topic]

    def _run(self) -> None:
        while not self._stop.wait(max(_LEAST_SECONDS, self._worker.lease_seconds / 3)):
            with self._guard:
                held = tuple(self._held.items())
            for topic, lock in held:
                with lock:
                    self._beat(topic)

    def _beat(self, topic: str) -> None:
        try:
            beat(self._store, self._worker, topic)
        except OncehouseError:
            # Not begun yet, finished just now, or taken over: then the step's own next write is refused.
            return
