"""Many syncs in one process: each in a thread of its own when it is due, and no failure touches another.

What is due is asked of the database (`need_sync`), so several processes share the syncs without knowing of each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from oncehouse.sync.model.model_sync import ModelSync, SyncRunResult
from oncehouse.sync.rounds.round import run_sync

DEFAULT_THREADS = 4
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    sync: str
    error: Exception

    @property
    def text(self) -> str:
        """With the sync's name once: most errors begin with it."""
        message = str(self.error)
        return message if message.startswith(f"Sync {self.sync}: ") else f"{self.sync}: {message}"


RunOutcome = SyncRunResult | FailedRun


def run_once(syncs: Iterable[type[ModelSync]], *, threads: int = DEFAULT_THREADS) -> list[RunOutcome]:
    """Each of them until nothing of it waits, due or not."""
    with ThreadPoolExecutor(threads, thread_name_prefix="sync") as pool:
        return list(pool.map(_run, syncs))


def run_until_stopped(
    syncs: Sequence[type[ModelSync]],
    stop: threading.Event,
    *,
    report: Callable[[RunOutcome], None],
    threads: int = DEFAULT_THREADS,
) -> None:
    """Look what is due and run it; a stop lets what has begun finish."""
    running: dict[type[ModelSync], Future[RunOutcome | None]] = {}
    with ThreadPoolExecutor(threads, thread_name_prefix="sync") as pool:
        while not stop.is_set():
            for sync in syncs:
                if sync not in running:
                    running[sync] = pool.submit(_run_if_due, sync)
            stop.wait(_POLL_SECONDS)
            for sync in [sync for sync, future in running.items() if future.done()]:
                outcome = running.pop(sync).result()
                if outcome is not None:
                    report(outcome)


def _run_if_due(sync: type[ModelSync]) -> RunOutcome | None:
    try:
        if not sync.need_sync():
            return None
    except Exception as error:  # noqa: BLE001 - the edge of a sync: whatever it is must leave the others alone
        return FailedRun(sync=_name(sync), error=error)
    return _run(sync)


def _run(sync: type[ModelSync]) -> RunOutcome:
    try:
        return run_sync(sync)
    except Exception as error:  # noqa: BLE001 - as above; the user's own steps may raise anything
        return FailedRun(sync=_name(sync), error=error)
    finally:
        sync.release_connections()


def _name(sync: type[ModelSync]) -> str:
    return sync.sync_name or sync.__name__
