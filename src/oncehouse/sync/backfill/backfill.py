"""A backfill: the rows that a model has already, in chunks of keys in key order, while writers and rounds go on.

A chunk is a reading like a round's: it is numbered under the sync's lease before anything is read, and confirmed under
it afterwards, so older state never overwrites newer (docs/decisions/0019-model-sync.md). The backfill holds the lease
as long as it runs and does the sync's rounds too, between chunks. Its position is in the source database: who comes
after one that was killed goes on there. Rows that only ClickHouse has are left to `verify/verify.py`.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, replace

from oncehouse.common import failpoints
from oncehouse.common.backoff import Backoff
from oncehouse.errors import FencedError, TransientError
from oncehouse.messaging.database import transact
from oncehouse.sync import state
from oncehouse.sync.backfill.checkpoint import (
    BackfillCheckpoint,
    begin_backfill,
    end_backfill,
    find_checkpoint,
    move_checkpoint,
)
from oncehouse.sync.backfill.progress import KeyProgress, ReportProgress, ignore_progress
from oncehouse.sync.changes.change import Operation, OperationKind
from oncehouse.sync.model.engines import KeyReading
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.rounds.batch_arrival import read_count
from oncehouse.sync.rounds.lease import SyncLease, hold_lease
from oncehouse.sync.rounds.pending_batch import PendingBatch, store_batch
from oncehouse.sync.rounds.round import (
    attempt,
    check_captured,
    make_batch,
    read_rows,
    send,
    send_pending,
    try_round,
)
from oncehouse.sync.table.ddl import check_sync_table
from oncehouse.sync.table.table_rows import find_existing_keys
from oncehouse.sync.tables import ABSENT

CHUNK = 50_000
"""Keys that a chunk has: large inserts are what ClickHouse likes."""
SMALLEST_CHUNK = 1_000

_KEYS_A_READ = 10_000
_ROUNDS_BETWEEN = 5
_TRIES = 8
_BACKOFF = Backoff(base_seconds=1.0, longest_seconds=60.0)
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class BackfillResult:
    sync: str
    finished: bool
    """Whether all keys are done; otherwise it was stopped, and the next backfill goes on where this one was."""
    resumed: bool
    """Whether it went on where a former one was."""
    keys: int
    """Gone through by this process."""
    rows: int
    """Sent to ClickHouse for them."""
    seconds: float


class _Backfill:
    """One process's work on the backfill of one sync."""

    def __init__(
        self, sync: type[ModelSync], *, chunk: int, stop: threading.Event, report: ReportProgress
    ) -> None:
        self.sync = sync
        self.declared = sync.declaration()
        self.engine = sync.open_source()
        self.chunk = chunk
        self.stop = stop
        self.report = report
        self.progress = KeyProgress(sync=self.declared.name, doing="backfill")
        self.keys = self.rows = self.failures = 0
        self.finished = self.resumed = False

    def run(self, *, restart: bool) -> None:
        while not self.finished and not self.stop.is_set():
            with hold_lease(self.engine, self.declared, wait=self._wait) as lease:
                if lease is None:
                    return
                state.note_start(self.engine, self.declared.name)
                self._begin(lease, restart=restart)
                restart = False
                self._go_on(lease)

    def _wait(self) -> bool:
        """Until the holder of the lease is done: rounds are short, and the lease of a dead process runs out."""
        self.report(replace(self.progress, doing="waiting for another process"))
        return not self.stop.wait(_POLL_SECONDS)

    def _begin(self, lease: SyncLease, *, restart: bool) -> None:
        name, estimate = self.declared.name, self.sync.estimate_rows()
        with transact(self.engine, f"Sync {name}: beginning a backfill", absent=ABSENT) as connection:
            lease.fence(connection)
            if restart:
                end_backfill(connection, name)
            begin_backfill(connection, name, estimate)
            position = find_checkpoint(connection, name)
        if position is not None:
            self.resumed = self.resumed or (self.keys == 0 and position.after is not None)
            self._report(position)

    def _go_on(self, lease: SyncLease) -> None:
        """Chunks, and rounds between them, until all keys are done or the lease is lost."""
        while not self.finished and not self.stop.is_set():
            begun_at = time.monotonic()
            try:
                if not lease.renew():
                    return
                attempt(self.sync, lease, self._perform_chunk)
                self.chunk = next_chunk(self.chunk, time.monotonic() - begun_at, self.declared.lease_seconds)
                self._perform_rounds(lease)
                self.failures = 0
            except FencedError:
                self.chunk = next_chunk(self.chunk, float("inf"), self.declared.lease_seconds)
                return
            except TransientError:
                self.failures += 1
                if self.failures >= _TRIES:
                    raise
                # The lease may run out meanwhile; then it is taken again.
                self.stop.wait(_BACKOFF.wait_seconds(self.failures, jitter=0.5 + random.random() / 2))  # noqa: S311

    def _perform_rounds(self, lease: SyncLease) -> None:
        """What writers changed meanwhile: no other process can sync it while this one holds the lease."""
        for _round in range(_ROUNDS_BETWEEN):
            if not lease.renew():
                return
            listed, _sent = try_round(self.sync, lease)
            if listed < self.declared.batch_size:
                return

    def _perform_chunk(self, sync: type[ModelSync], lease: SyncLease) -> tuple[int, int]:
        """How many keys were gone through, and how many rows were sent for them."""
        send_pending(sync, lease)
        number, position = self._take_number(lease)
        keys = sync.list_keys(position.after, self.chunk)
        if not keys:
            self._end(lease)
            return 0, 0
        failpoints.reach("sync.chunk_listed")
        batch = make_batch(self.declared, _read_chunk(sync, number, keys), ())
        failpoints.reach("sync.chunk_read")
        self._confirm(lease, number, batch, keys)
        failpoints.reach("sync.chunk_confirmed")
        send(sync, lease, batch)
        failpoints.reach("sync.chunk_sent")
        if self.declared.engine.is_idempotent:
            self._move(lease, keys)
        self.keys, self.rows = self.keys + len(keys), self.rows + batch.block.num_rows
        self._report(replace(position, after=keys[-1], keys=position.keys + len(keys)))
        return len(keys), batch.block.num_rows

    def _take_number(self, lease: SyncLease) -> tuple[int, BackfillCheckpoint]:
        name = self.declared.name
        with transact(self.engine, f"Sync {name}: numbering a chunk", absent=ABSENT) as connection:
            lease.fence(connection)
            position = find_checkpoint(connection, name)
            if position is None:
                raise FencedError(f"Sync {name}: another process has ended the backfill")
            return state.take_reading(connection, name), position

    def _confirm(self, lease: SyncLease, number: int, batch: PendingBatch, keys: list[str]) -> None:
        """That the lease was ours until here. What is stored now will be sent by some process: its keys are done."""
        name = self.declared.name
        if not self.declared.engine.is_idempotent:
            batch = replace(batch, block_count=read_count(self.sync))
        with transact(self.engine, f"Sync {name}: checking its lease", absent=ABSENT) as connection:
            lease.fence(connection)
            if not self.declared.engine.is_idempotent:
                store_batch(connection, name, number, batch)
                move_checkpoint(connection, name, keys[-1], len(keys))

    def _move(self, lease: SyncLease, keys: list[str]) -> None:
        name = self.declared.name
        with transact(self.engine, f"Sync {name}: noting its position", absent=ABSENT) as connection:
            lease.fence(connection)
            move_checkpoint(connection, name, keys[-1], len(keys))

    def _end(self, lease: SyncLease) -> None:
        name = self.declared.name
        with transact(self.engine, f"Sync {name}: ending its backfill", absent=ABSENT) as connection:
            lease.fence(connection)
            end_backfill(connection, name)
        self.finished = True

    def _report(self, position: BackfillCheckpoint) -> None:
        self.progress = replace(
            self.progress,
            keys=position.keys,
            estimate=max(position.estimate, position.keys),
            rows=self.rows,
        )
        self.report(self.progress)


def backfill(
    sync: type[ModelSync],
    *,
    chunk: int = CHUNK,
    restart: bool = False,
    stop: threading.Event | None = None,
    report: ReportProgress = ignore_progress,
) -> BackfillResult:
    """Go through all keys, from where an unfinished backfill was; `restart` begins with the first again."""
    begun_at = time.monotonic()
    check_captured(sync.declaration())
    check_sync_table(sync)
    work = _Backfill(sync, chunk=chunk, stop=stop or threading.Event(), report=report)
    try:
        work.run(restart=restart)
    finally:
        sync.release_connections()
    return BackfillResult(
        sync=work.declared.name,
        finished=work.finished,
        resumed=work.resumed,
        keys=work.keys,
        rows=work.rows,
        seconds=time.monotonic() - begun_at,
    )


def next_chunk(size: int, seconds: float, lease_seconds: float) -> int:
    """Smaller after a chunk that took so long that the lease could have run out meanwhile."""
    if seconds < lease_seconds / 3:
        return size
    return min(size, max(SMALLEST_CHUNK, size // 2))


def _read_chunk(sync: type[ModelSync], number: int, keys: list[str]) -> KeyReading:
    """What the database has now for these keys, in statements of a size that it takes."""
    declared = sync.declaration()
    size = max(1, _KEYS_A_READ // len(declared.key))
    reading = KeyReading(number=number, present={}, absent={})
    for start in range(0, len(keys), size):
        operations = [
            Operation(id="", key=key, kind=OperationKind.UPDATE) for key in keys[start : start + size]
        ]
        part = read_rows(sync, number, operations)
        reading = KeyReading(
            number=number,
            present={**reading.present, **part.present},
            absent={**reading.absent, **part.absent},
            existing={**reading.existing, **part.existing},
        )
    if declared.engine.fills_gaps:
        existing = find_existing_keys(sync.open_clickhouse(), declared, list(reading.present.values()))
        new = {key: row for key, row in reading.present.items() if key not in existing}
        return replace(reading, present=new, absent={})
    return reading
