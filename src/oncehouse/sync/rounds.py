"""A round, and a run: rounds under the sync's lease until nothing waits.

The order of a round's steps is what keeps older state from overwriting newer (docs/decisions/0019-model-sync.md): take
the reading number and list operations under the lease; read; check the lease again; insert; remove exactly what was
listed. Whoever dies in between leaves operations that are listed again, and a lease that runs out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Engine

from oncehouse import crash
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError
from oncehouse.messaging.bucket_leases import BucketLeases
from oncehouse.messaging.database import transact
from oncehouse.sync import states
from oncehouse.sync.batches import KeptBatch, find_batch, forget_batch, keep_batch
from oncehouse.sync.blocks import make_block
from oncehouse.sync.declaration import Declaration
from oncehouse.sync.engines import Reading, Row, Rows
from oncehouse.sync.held_rows import read_held_rows
from oncehouse.sync.model_sync import ModelSync
from oncehouse.sync.operations import Operation, distinct_keys, spell_key
from oncehouse.sync.tables import ABSENT, lease_tables

_ONLY_BUCKET = 0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run did."""

    sync: str
    held_elsewhere: bool = False
    """Another process is at it; nothing was done here."""
    rounds: int = 0
    operations: int = 0
    rows: int = 0


@dataclass(kw_only=True)
class _Hold:
    """A sync's lease, held by this run."""

    engine: Engine
    leases: BucketLeases
    tokens: Mapping[int, int]
    renew_at: float

    def renew(self) -> bool:
        """Whether the lease is still ours; asks the database only when a third of its time has passed."""
        if time.monotonic() < self.renew_at:
            return True
        begun_at = time.monotonic()
        self.tokens = self.leases.tend().tokens
        self.renew_at = begun_at + self.leases.lease_seconds / 3
        return _ONLY_BUCKET in self.tokens


def run_sync(sync: type[ModelSync]) -> RunResult:
    """Rounds until fewer operations wait than a round lists. A failure is noted and raised."""
    declared = sync.declaration()
    if declared.pipeline is not None:
        raise ConfigurationError(
            f"Sync {declared.name} is fed by CDC: run `oncehouse run {declared.pipeline}.yaml`, the pipeline file that "
            "`oncehouse sync pipeline` writes"
        )
    engine = sync.open_source()
    rounds = operations = rows = 0
    with _hold(engine, declared) as hold:
        if hold is None:
            return RunResult(sync=declared.name, held_elsewhere=True)
        states.note_start(engine, declared.name)
        while hold.renew():
            listed, sent = _try_round(sync, declared, hold)
            rounds, operations, rows = rounds + 1, operations + listed, rows + sent
            if listed < declared.batch_size:
                break
    return RunResult(sync=declared.name, rounds=rounds, operations=operations, rows=rows)


@contextmanager
def _hold(engine: Engine, declared: Declaration) -> Iterator[_Hold | None]:
    leases = BucketLeases(
        engine,
        name=f"sync:{declared.name}",
        buckets=1,
        # New for each run: two threads of a process must not pass for one holder.
        holder=f"sync-{uuid.uuid4()}",
        lease_seconds=declared.lease_seconds,
        tables=lease_tables,
    )
    begun_at = time.monotonic()
    share = leases.tend()
    hold = _Hold(
        engine=engine,
        leases=leases,
        tokens=share.tokens,
        renew_at=begun_at + declared.lease_seconds / 3,
    )
    try:
        yield hold if _ONLY_BUCKET in share.tokens else None
    finally:
        with suppress(OncehouseError):  # it runs out by itself
            leases.leave(hold.tokens)


def _try_round(sync: type[ModelSync], declared: Declaration, hold: _Hold) -> tuple[int, int]:
    try:
        sync.check_table()
        sync.pre_sync()
        listed, sent = _perform_round(sync, declared, hold)
    except Exception as error:
        with suppress(OncehouseError):  # the failure itself counts, not that it could not be noted
            states.note_failure(hold.engine, declared.name, f"{type(error).__name__}: {error}")
        sync.post_sync_failed(error)
        raise
    if listed:
        states.note_success(hold.engine, declared.name, sent)
        sync.post_sync(sent)
    return listed, sent


def _perform_round(sync: type[ModelSync], declared: Declaration, hold: _Hold) -> tuple[int, int]:
    """How many operations were listed, and how many rows were sent for them."""
    kept = None if declared.engine.is_idempotent else find_batch(hold.engine, declared.name)
    if kept is not None:
        _send_kept(sync, declared, hold, kept)
        # Reported as a full round, so that the run goes on to what waits behind it.
        return max(declared.batch_size, len(kept.operations)), kept.block.num_rows
    listing = _list_operations(sync, declared, hold)
    if listing is None:
        return 0, 0
    number, operations = listing
    crash.reach("sync.listed")
    chosen = declared.engine.choose_rows(_read(sync, declared, number, operations))
    batch = KeptBatch(
        batch_id=str(uuid.uuid4()),
        block=_make_block(declared, chosen),
        operations=tuple(operation.id for operation in operations),
    )
    crash.reach("sync.read")
    _confirm(declared, hold, number, batch)
    crash.reach("sync.confirmed")
    if declared.engine.is_idempotent:
        _send(sync, declared, hold, batch)
    else:
        _send_kept(sync, declared, hold, batch)
    return len(operations), batch.block.num_rows


def _list_operations(
    sync: type[ModelSync], declared: Declaration, hold: _Hold
) -> tuple[int, list[Operation]] | None:
    with transact(hold.engine, f"Sync {declared.name}: listing operations", absent=ABSENT) as connection:
        hold.leases.fence(connection, hold.tokens)
        operations = sync.get_storage().list_operations(connection, declared.name, declared.batch_size)
        if not operations:
            return None
        return states.take_reading(connection, declared.name), operations


def _read(sync: type[ModelSync], declared: Declaration, number: int, operations: list[Operation]) -> Reading:
    present = _by_key(declared, sync.get_insert_batch(sync.get_sync_objects(operations)))
    keys = distinct_keys(operations)
    absent = {key: declared.deleted_row(sync.parse_key(key)) for key in keys if key not in present}
    held: Mapping[str, Row] = {}
    if declared.engine.cancels:
        held = read_held_rows(sync.open_clickhouse(), declared, [*present.values(), *absent.values()])
    return Reading(number=number, present=present, absent=absent, held=held)


def _by_key(declared: Declaration, rows: Iterable[Row]) -> dict[str, Row]:
    places, width = declared.key_places, len(declared.columns)
    found: dict[str, Row] = {}
    for row in rows:
        if len(row) != width:
            raise PermanentError(
                f"Sync {declared.name}: get_insert_batch gave a row of {len(row)} values for {width} columns "
                f"({', '.join(declared.columns)})"
            )
        found[spell_key([row[place] for place in places])] = tuple(row)
    return found


def _make_block(declared: Declaration, chosen: Rows) -> pa.RecordBatch:
    columns = list(zip(*chosen.rows, strict=True)) if chosen.rows else [()] * len(declared.columns)
    return make_block(declared.all_columns, [*columns, *chosen.own.values()])


def _confirm(declared: Declaration, hold: _Hold, number: int, batch: KeptBatch) -> None:
    """That the lease was ours until here, so that no later number has read before us."""
    with transact(hold.engine, f"Sync {declared.name}: checking its lease", absent=ABSENT) as connection:
        hold.leases.fence(connection, hold.tokens)
        if not declared.engine.is_idempotent:
            keep_batch(connection, declared.name, number, batch)


def _send(sync: type[ModelSync], declared: Declaration, hold: _Hold, batch: KeptBatch) -> None:
    if batch.block.num_rows:
        sync.insert_batch(batch.block, token=batch.batch_id)
    crash.reach("sync.inserted")
    sync.get_storage().remove(hold.engine, declared.name, batch.operations)
    crash.reach("sync.removed")


def _send_kept(sync: type[ModelSync], declared: Declaration, hold: _Hold, batch: KeptBatch) -> None:
    _send(sync, declared, hold, batch)
    forget_batch(hold.engine, declared.name, batch.batch_id)
