"""How each sync stands: what waits and for how long, when it last ran and how that ended, who is at it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from oncehouse.errors import OncehouseError
from oncehouse.messaging.bucket_leases import read_leases
from oncehouse.messaging.database import transact
from oncehouse.sync.backfill.checkpoint import BackfillCheckpoint, find_checkpoint
from oncehouse.sync.changes.storage import OperationBacklog
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.state import SyncState, read_state
from oncehouse.sync.tables import ABSENT, lease_tables


@dataclass(frozen=True, kw_only=True)
class SyncStatus:
    sync: str
    model: str
    table: str
    enabled: bool
    waiting: int | None
    """Operations that no round has synced yet; None where the storage does not answer."""
    lag_seconds: float | None
    """How long the oldest of them has waited: how far ClickHouse may be behind."""
    running: bool
    """A process holds its lease."""
    backfilled: float | None
    """About which share of its keys an unfinished backfill has gone through; None where there is none."""
    rows_synced: int | None
    synced_seconds_ago: float | None
    failures: int
    """Since the last success."""
    failed_seconds_ago: float | None
    last_error: str | None
    pipeline_file: str | None = None
    """By CDC: how it stands is what `oncehouse status` says of this pipeline."""


def read_status(syncs: Iterable[type[ModelSync]]) -> list[SyncStatus]:
    return [status_of(sync) for sync in syncs]


def status_of(sync: type[ModelSync]) -> SyncStatus:
    declared = sync.declaration()
    if declared.pipeline_file is not None:
        return _describe_pipeline(sync, declared.pipeline_file)
    with transact(
        sync.open_source(), f"Sync {declared.name}: reading its state", absent=ABSENT
    ) as connection:
        state = read_state(connection, declared.name)
        leases = read_leases(connection, lease_tables, f"sync:{declared.name}")
        position = find_checkpoint(connection, declared.name)
        waiting, trouble = _measure(sync, connection)
    return _put_together(
        sync, state, waiting, trouble, running=any(lease.live for lease in leases), position=position
    )


def _measure(sync: type[ModelSync], connection: Connection) -> tuple[OperationBacklog | None, str | None]:
    try:
        return sync.get_storage().measure(connection, sync.declaration().name), None
    except OncehouseError as error:
        # A storage that is away is part of how it stands.
        return None, str(error)


def _describe_pipeline(sync: type[ModelSync], file: str) -> SyncStatus:
    """Without a look at the database, which needs no tables of model sync then."""
    declared = sync.declaration()
    return SyncStatus(
        sync=declared.name,
        model=declared.label,
        table=declared.table,
        enabled=sync.sync_enabled,
        waiting=None,
        lag_seconds=None,
        running=False,
        backfilled=None,
        rows_synced=None,
        synced_seconds_ago=None,
        failures=0,
        failed_seconds_ago=None,
        last_error=None,
        pipeline_file=file,
    )


def _put_together(
    sync: type[ModelSync],
    state: SyncState,
    waiting: OperationBacklog | None,
    trouble: str | None,
    *,
    running: bool,
    position: BackfillCheckpoint | None,
) -> SyncStatus:
    declared = sync.declaration()
    return SyncStatus(
        sync=declared.name,
        model=declared.label,
        table=declared.table,
        enabled=sync.sync_enabled,
        waiting=None if waiting is None else waiting.count,
        lag_seconds=None if waiting is None else (waiting.oldest_seconds or 0.0),
        running=running,
        backfilled=None if position is None else position.share,
        rows_synced=state.rows_synced,
        synced_seconds_ago=state.synced_seconds_ago,
        failures=state.failures,
        failed_seconds_ago=state.failed_seconds_ago,
        last_error=trouble or (state.last_error if state.failures else None),
    )
