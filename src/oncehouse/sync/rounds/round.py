"""A round, and a run: rounds under the sync's lease until nothing waits.

The order of a round's steps is what keeps older state from overwriting newer (docs/decisions/0019-model-sync.md): take
the reading number and list operations under the lease; read; check the lease again; insert; remove exactly what was
listed. A process that dies in between leaves operations that are listed again, and a lease that runs out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from oncehouse.common import failpoints
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError
from oncehouse.messaging.database import transact
from oncehouse.sync import state
from oncehouse.sync.changes.change import Operation, distinct_keys, format_key, list_ids
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.model.arrow_rows import make_block
from oncehouse.sync.model.declaration import Declaration
from oncehouse.sync.model.engines import KeyReading, Replacing, Row
from oncehouse.sync.model.model_sync import ModelSync, SyncRunResult
from oncehouse.sync.rounds.batch_arrival import needs_no_resend, read_count
from oncehouse.sync.rounds.lease import SyncLease, hold_lease
from oncehouse.sync.rounds.pending_batch import PendingBatch, delete_batch, find_pending_batch, store_batch
from oncehouse.sync.table.ddl import check_sync_table
from oncehouse.sync.table.table_rows import read_existing_rows
from oncehouse.sync.tables import ABSENT

Perform = Callable[[type[ModelSync], SyncLease], tuple[int, int]]
ListSome = Callable[[Connection], Sequence[Operation]]


def run_sync(sync: type[ModelSync]) -> SyncRunResult:
    """Rounds until few enough operations wait, or a backfill takes over. A failure is noted and raised."""
    declared = sync.declaration()
    check_captured(declared)
    engine = sync.open_source()
    rounds = operations = rows = 0
    with hold_lease(engine, declared) as lease:
        if lease is None:
            return SyncRunResult(sync=declared.name, held_elsewhere=True)
        state.note_start(engine, declared.name)
        while lease.renew() and not lease.is_wanted:
            listed, sent = try_round(sync, lease)
            rounds, operations, rows = rounds + 1, operations + listed, rows + sent
            if listed < declared.batch_size:
                break
            if may_overlap(sync, lease):
                for listed, sent in overlap_rounds(sync, lease):
                    rounds, operations, rows = rounds + 1, operations + listed, rows + sent
    return SyncRunResult(sync=declared.name, rounds=rounds, operations=operations, rows=rows)


def check_captured(declared: Declaration) -> None:
    """Refuse a sync that has no operations and whose table another writes to, under numbers of its own."""
    if declared.pipeline_file is not None:
        raise ConfigurationError(
            f"Sync {declared.name} is fed by CDC: run `oncehouse run {declared.pipeline_file}`, the pipeline file that "
            "`oncehouse sync pipeline` writes"
        )


def try_round(sync: type[ModelSync], lease: SyncLease) -> tuple[int, int]:
    """How many operations were listed, and how many rows were sent for them."""
    return attempt(sync, lease, _perform_round)


def attempt(sync: type[ModelSync], lease: SyncLease, perform: Perform) -> tuple[int, int]:
    """A round, or what is like one, between the user's steps, its outcome noted."""
    with record_failure(sync, lease):
        check_sync_table(sync)
        sync.pre_sync()
        listed, sent = perform(sync, lease)
    if listed:
        state.note_success(lease.engine, sync.declaration().name, sent)
        sync.post_sync(sent)
    return listed, sent


@contextmanager
def record_failure(sync: type[ModelSync], lease: SyncLease) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        with suppress(OncehouseError):  # the failure itself counts, not that it could not be noted
            state.note_failure(lease.engine, sync.declaration().name, f"{type(error).__name__}: {error}")
        sync.post_sync_failed(error)
        raise


def may_overlap(sync: type[ModelSync], lease: SyncLease) -> bool:
    """Whether a batch may be sent during the next reading: no step of the user's in between, and nothing kept."""
    return (
        lease.engine.dialect.name == "postgresql"
        and sync.declaration().engine.is_idempotent
        and type(sync.get_storage()) is OutboxStorage
        and sync.has_own(ModelSync, "insert_batch", "pre_sync", "post_sync", "post_sync_failed")
    )


def overlap_rounds(sync: type[ModelSync], lease: SyncLease) -> Iterator[tuple[int, int]]:
    """Rounds of a backlog, each sent while the next is read, until few enough operations wait behind the last.

    What waits before it came out of order, or is being sent: the caller's next round begins at the first again.
    """
    name, after = sync.declaration().name, 0
    storage, size = OutboxStorage(), sync.declaration().batch_size

    def list_behind(connection: Connection) -> Sequence[Operation]:
        return storage.list_operations(connection, name, size, after=after)

    def send_and_note(batch: PendingBatch) -> tuple[int, int]:
        send(sync, lease, batch)
        state.note_success(lease.engine, name, batch.block.num_rows)
        return len(batch.operations), batch.block.num_rows

    sending: Future[tuple[int, int]] | None = None
    with record_failure(sync, lease), ThreadPoolExecutor(1, thread_name_prefix=f"sync {name}") as sender_pool:
        while lease.renew() and not lease.is_wanted:
            batch = read_batch(sync, lease, list_behind)
            if sending is not None:
                yield sending.result()
            sending = None if batch is None else sender_pool.submit(send_and_note, batch)
            if batch is None or len(batch.operations) < size:
                break
            after = int(batch.operations[-1])
        if sending is not None:
            yield sending.result()


def _perform_round(sync: type[ModelSync], lease: SyncLease) -> tuple[int, int]:
    declared = sync.declaration()
    kept = send_pending(sync, lease)
    if kept is not None:
        # Reported as a full round, so that the run goes on to what waits behind it.
        return max(declared.batch_size, len(kept.operations)), kept.block.num_rows
    batch = read_batch(
        sync,
        lease,
        lambda connection: sync.get_storage().list_operations(connection, declared.name, declared.batch_size),
    )
    if batch is None:
        return 0, 0
    send(sync, lease, batch)
    return len(batch.operations), batch.block.num_rows


def read_batch(sync: type[ModelSync], lease: SyncLease, list_some: ListSome) -> PendingBatch | None:
    """What a round sends; None where nothing is listed. The lease was ours until its reading had ended."""
    declared = sync.declaration()
    listing = _list_operations(declared, lease, list_some)
    if listing is None:
        return None
    number, operations = listing
    failpoints.reach("sync.listed")
    ids = list_ids(operations)
    block = read_copied_block(sync, number, distinct_keys(operations))
    if block is None:
        batch = make_batch(declared, read_rows(sync, number, operations), ids)
    else:
        batch = PendingBatch(batch_id=str(uuid.uuid4()), block=block, operations=ids)
    failpoints.reach("sync.read")
    _confirm(sync, lease, number, batch)
    failpoints.reach("sync.confirmed")
    return batch


def send_pending(sync: type[ModelSync], lease: SyncLease) -> PendingBatch | None:
    """What was kept and not known to be in ClickHouse; nothing may be read for an engine like that before it is."""
    declared = sync.declaration()
    kept = None if declared.engine.is_idempotent else find_pending_batch(lease.engine, declared.name)
    if kept is not None:
        send(sync, lease, kept, is_there=kept.block.num_rows > 0 and needs_no_resend(sync, kept))
    return kept


def _list_operations(
    declared: Declaration, lease: SyncLease, list_some: ListSome
) -> tuple[int, Sequence[Operation]] | None:
    with transact(lease.engine, f"Sync {declared.name}: listing operations", absent=ABSENT) as connection:
        lease.fence(connection)
        operations = list_some(connection)
        if not operations:
            return None
        return state.take_reading(connection, declared.name), operations


def read_rows(sync: type[ModelSync], number: int, operations: Sequence[Operation]) -> KeyReading:
    declared = sync.declaration()
    present = read_present(sync, operations)
    keys = distinct_keys(operations)
    absent = {key: declared.deleted_row(sync.parse_key(key)) for key in keys if key not in present}
    existing: Mapping[str, Row] = {}
    if declared.engine.cancels:
        existing = read_existing_rows(sync.open_clickhouse(), declared, [*present.values(), *absent.values()])
    return KeyReading(number=number, present=present, absent=absent, existing=existing)


def read_present(sync: type[ModelSync], operations: Sequence[Operation]) -> dict[str, Row]:
    """What the database has for the keys of these operations, by key."""
    return _by_key(sync.declaration(), sync.get_insert_batch(sync.get_sync_objects(operations)))


def _by_key(declared: Declaration, rows: Iterable[Row]) -> dict[str, Row]:
    places, width = declared.key_places, len(declared.columns)
    found: dict[str, Row] = {}
    for row in rows:
        if len(row) != width:
            raise PermanentError(
                f"Sync {declared.name}: get_insert_batch gave a row of {len(row)} values for {width} columns "
                f"({', '.join(declared.columns)})"
            )
        found[format_key([row[place] for place in places])] = tuple(row)
    return found


def make_batch(declared: Declaration, reading: KeyReading, operations: tuple[str, ...]) -> PendingBatch:
    chosen = declared.engine.choose_rows(reading)
    columns = list(zip(*chosen.rows, strict=True)) if chosen.rows else [()] * len(declared.columns)
    return PendingBatch(
        batch_id=str(uuid.uuid4()),
        block=make_block(declared.all_columns, [*columns, *chosen.own.values()]),
        operations=operations,
    )


def _confirm(sync: type[ModelSync], lease: SyncLease, number: int, batch: PendingBatch) -> None:
    """That the lease was ours until here, so that no later number has read before us."""
    declared = sync.declaration()
    if not declared.engine.is_idempotent:
        batch = replace(batch, block_count=read_count(sync))
    with transact(lease.engine, f"Sync {declared.name}: checking its lease", absent=ABSENT) as connection:
        lease.fence(connection)
        if not declared.engine.is_idempotent:
            store_batch(connection, declared.name, number, batch)


def send(sync: type[ModelSync], lease: SyncLease, batch: PendingBatch, *, is_there: bool = False) -> None:
    """Insert unless it is there, remove its operations, and forget it where it was kept."""
    name = sync.declaration().name
    if batch.block.num_rows and not is_there:
        sync.insert_batch(batch.block, token=batch.batch_id)
    failpoints.reach("sync.inserted")
    if batch.operations:
        sync.get_storage().remove(lease.engine, name, batch.operations)
    failpoints.reach("sync.removed")
    if not sync.declaration().engine.is_idempotent:
        delete_batch(lease.engine, name, batch.batch_id)


def read_copied_block(sync: type[ModelSync], number: int, keys: Sequence[str]) -> pa.RecordBatch | None:
    """The rows of these keys under this number, deleted where there is none; None where they have to be looked at."""
    declared = sync.declaration()
    copied = sync.read_block(keys) if type(declared.engine) is Replacing else None
    if copied is None:
        return None
    wanted = pa.array(keys, pa.string())
    missing = wanted.filter(pc.invert(pc.is_in(wanted, value_set=copied.keys))).to_pylist()
    rows = [declared.deleted_row(sync.parse_key(key)) for key in missing]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(declared.columns)
    absent = make_block(declared.columns, columns).cast(copied.block.schema)
    present = copied.block.num_rows
    whole = pa.concat_batches([copied.block, absent])
    own = [
        pa.array(np.full(whole.num_rows, number, np.uint64)),
        pa.array((np.arange(whole.num_rows) >= present).astype(np.uint8)),
    ]
    return pa.RecordBatch.from_arrays([*whole.columns, *own], names=list(declared.all_columns))
