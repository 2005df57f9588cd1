"""What differs is synced again: its keys become operations, rounds send what the database has now; then a last look."""

from __future__ import annotations

import time
from collections.abc import Iterable

from oncehouse.sync.backfill.progress import ReportProgress, ignore_progress
from oncehouse.sync.backfill.replay import reregister_keys
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.rounds.round import check_captured, run_sync
from oncehouse.sync.verify.verify import RANGE, SyncVerifyReport, find_waiting_keys, verify

_POLL_SECONDS = 0.5


def verify_and_repair(
    sync: type[ModelSync],
    *,
    keys_a_range: int = RANGE,
    report: ReportProgress = ignore_progress,
) -> tuple[SyncVerifyReport, int]:
    """How the table stands in the end, and how many keys were synced again."""
    check_captured(sync.declaration())
    repaired: set[str] = set()
    while True:
        found = verify(sync, keys_a_range=keys_a_range, report=report)
        # What differs after it was synced again would do so once more.
        keys = [key for key in found.keys_to_repair() if key not in repaired]
        if not keys:
            return found, len(repaired)
        reregister_keys(sync, keys)
        _sync_until_gone(sync, keys)
        repaired.update(keys)


def _sync_until_gone(sync: type[ModelSync], keys: Iterable[str]) -> None:
    """Rounds, here or by the holder of the lease, until none of these keys has an operation waiting."""
    wanted = set(keys)
    try:
        while wanted & find_waiting_keys(sync):
            if run_sync(sync).held_elsewhere:
                time.sleep(_POLL_SECONDS)
    finally:
        sync.release_connections()
