"""Batches in the catalog: ordered, immutable lists of parts, and every attempt to insert them.

A part is put into a batch once. An attempt's query id is written down before its first byte may leave, so
that a later attempt can end it; the outcome of an attempt without one is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from oncehouse.common.query_ids import attempt_query_id
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_ref
from oncehouse.ledger.catalog.schema import attempts, batches, duplicate_files, key_files, parts
from oncehouse.ledger.models import (
    Attempt,
    AttemptOutcome,
    BatchStatus,
    FileRef,
    LedgerBatch,
    LoadPart,
    Part,
    Stage,
)

WAITING = (BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.RETRY)


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    batch_id: str
    table: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.live_rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def open_parts(catalog: Catalog) -> tuple[Part, ...]:
    """Parts with live rows that no batch holds yet, oldest first: the seed's new_events."""
    query = (
        select(parts)
        .where(parts.c.pipeline == catalog.pipeline, parts.c.batch_id.is_(None), parts.c.rows_live > 0)
        .order_by(parts.c.epoch, parts.c.ordinal, parts.c.part)
    )
    with catalog.read() as connection:
        return tuple(part_of(row) for row in connection.execute(query).all())


def list_parts(catalog: Catalog, *, table: str | None = None) -> tuple[Part, ...]:
    query = select(parts).where(parts.c.pipeline == catalog.pipeline)
    if table is not None:
        query = query.where(parts.c.table_name == table)
    with catalog.read() as connection:
        rows = connection.execute(query.order_by(parts.c.epoch, parts.c.ordinal, parts.c.part)).all()
    return tuple(part_of(row) for row in rows)


def create_batches(catalog: Catalog, token: int, planned: Sequence[NewBatch]) -> None:
    """Write batches and set each part's batch, in one transaction; a part already taken refuses all of it."""

    def run(connection: Connection) -> None:
        sequence = connection.execute(
            select(func.coalesce(func.max(batches.c.sequence), 0)).where(
                batches.c.pipeline == catalog.pipeline
            )
        ).scalar_one()
        for offset, batch in enumerate(planned, start=1):
            connection.execute(
                insert(batches).values(
                    pipeline=catalog.pipeline,
                    batch_id=batch.batch_id,
                    table_name=batch.table,
                    status=BatchStatus.NEW,
                    rows_total=batch.rows,
                    live_bytes=batch.size_bytes,
                    created_at=catalog.clock,
                    sequence=sequence + offset,
                    attempts=0,
                    next_attempt_at=0.0,
                )
            )
            for position, part in enumerate(batch.parts):
                _take(connection, catalog, part, batch, position)

    if planned:
        catalog.write(Stage.LOAD, token, run)


def _take(connection: Connection, catalog: Catalog, part: Part, batch: NewBatch, position: int) -> None:
    taken = connection.execute(
        update(parts)
        .where(
            parts.c.pipeline == catalog.pipeline,
            parts.c.part == part.part,
            parts.c.table_name == batch.table,
            parts.c.batch_id.is_(None),
        )
        .values(batch_id=batch.batch_id, batch_position=position)
    )
    if taken.rowcount != 1:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: part {part.part} is not open for a batch of {batch.table} (it is in "
            "a batch already, unknown, or of another table); no batch was made."
        )


def waiting_batches(catalog: Catalog) -> tuple[LedgerBatch, ...]:
    """Batches that still have to reach ClickHouse, oldest first; parked ones are not among them."""
    return list_batches(catalog, statuses=WAITING)


def list_batches(
    catalog: Catalog, *, statuses: Iterable[BatchStatus] | None = None, table: str | None = None
) -> tuple[LedgerBatch, ...]:
    query = select_batches(catalog, statuses, table).order_by(batches.c.sequence)
    with catalog.read() as connection:
        return tuple(batch_of(row) for row in connection.execute(query).all())


def select_batches(
    catalog: Catalog, statuses: Iterable[BatchStatus] | None, table: str | None
) -> Select[Any]:
    query = select(batches).where(batches.c.pipeline == catalog.pipeline)
    if statuses is not None:
        query = query.where(batches.c.status.in_([str(status) for status in statuses]))
    return query if table is None else query.where(batches.c.table_name == table)


def find_batch(catalog: Catalog, batch_id: str) -> LedgerBatch:
    query = select(batches).where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
    with catalog.read() as connection:
        row = connection.execute(query).first()
    if row is None:
        raise ConfigurationError(
            f"Pipeline {catalog.pipeline} has no batch {batch_id}. `oncehouse batches list` shows those it has."
        )
    return batch_of(row)


def load_parts(catalog: Catalog, batch_id: str) -> tuple[LoadPart, ...]:
    """The parts of a batch in their order, with all that is needed to send them."""
    with catalog.read() as connection:
        rows = connection.execute(
            select(parts)
            .where(parts.c.pipeline == catalog.pipeline, parts.c.batch_id == batch_id)
            .order_by(parts.c.batch_position)
        ).all()
        return tuple(_load_part(connection, catalog, part_of(row)) for row in rows)


def load_open_parts(catalog: Catalog) -> tuple[LoadPart, ...]:
    """Parts that no batch holds yet, with all that is needed to know their live rows."""
    parts = open_parts(catalog)
    with catalog.read() as connection:
        return tuple(_load_part(connection, catalog, part) for part in parts)


def _load_part(connection: Connection, catalog: Catalog, part: Part) -> LoadPart:
    events, source_epoch = connection.execute(
        select(key_files.c.events, key_files.c.epoch).where(
            key_files.c.pipeline == catalog.pipeline, key_files.c.key_file == part.key_file
        )
    ).one()
    return LoadPart(
        part=part, events=events, duplicate_files=_duplicates_of(connection, catalog, source_epoch)
    )


def _duplicates_of(connection: Connection, catalog: Catalog, epoch: int) -> tuple[FileRef, ...]:
    rows = connection.execute(
        select(duplicate_files)
        .where(duplicate_files.c.pipeline == catalog.pipeline, duplicate_files.c.epoch == epoch)
        .order_by(duplicate_files.c.file_path)
    ).all()
    return tuple(file_ref(row, "file", rows=row.rows_total) for row in rows)


def start_attempt(catalog: Catalog, token: int, batch_id: str, *, block_count: str | None = None) -> Attempt:
    """Write down that an insert is about to leave; its query id is batch id and attempt number."""

    def run(connection: Connection) -> Attempt:
        mine = (batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
        known = connection.execute(select(batches.c.attempts, batches.c.status).where(*mine)).first()
        if known is None or known.status not in WAITING:
            raise PermanentError(
                f"Pipeline {catalog.pipeline}: batch {batch_id} is {known.status if known else 'unknown'} "
                "and must not be sent; nothing was started."
            )
        number = known.attempts + 1
        now = catalog.latest_in(connection)
        query_id = attempt_query_id(batch_id, number)
        connection.execute(
            update(batches).where(*mine).values(status=BatchStatus.IN_PROCESS, attempts=number)
        )
        connection.execute(
            insert(attempts).values(
                pipeline=catalog.pipeline,
                batch_id=batch_id,
                attempt=number,
                query_id=query_id,
                started_at=now,
                block_count=block_count,
            )
        )
        return Attempt(
            batch_id=batch_id,
            attempt=number,
            query_id=query_id,
            started_at=now,
            finished_at=None,
            outcome=None,
            detail=None,
            block_count=block_count,
        )

    return catalog.write(Stage.LOAD, token, run)


def finish_attempt(
    catalog: Catalog,
    token: int,
    attempt: Attempt,
    *,
    status: BatchStatus,
    outcome: AttemptOutcome,
    detail: str | None = None,
    wait_seconds: float = 0.0,
) -> None:
    """Write down how an attempt ended and what becomes of its batch."""

    def run(connection: Connection) -> None:
        now = catalog.latest_in(connection)
        connection.execute(
            update(attempts)
            .where(
                attempts.c.pipeline == catalog.pipeline,
                attempts.c.batch_id == attempt.batch_id,
                attempts.c.attempt == attempt.attempt,
            )
            .values(finished_at=now, outcome=outcome, detail=detail)
        )
        loaded = status is BatchStatus.IN_CLICKHOUSE
        connection.execute(
            update(batches)
            .where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == attempt.batch_id)
            .values(
                status=status,
                next_attempt_at=now + wait_seconds,
                # A batch that is loaded has one only where something is left to be looked at: its views.
                reason=detail,
                loaded_at=now if loaded else None,
            )
        )

    catalog.write(Stage.LOAD, token, run)


def list_attempts(catalog: Catalog, batch_id: str) -> tuple[Attempt, ...]:
    query = (
        select(attempts)
        .where(attempts.c.pipeline == catalog.pipeline, attempts.c.batch_id == batch_id)
        .order_by(attempts.c.attempt)
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        Attempt(
            batch_id=row.batch_id,
            attempt=row.attempt,
            query_id=row.query_id,
            started_at=row.started_at,
            finished_at=row.finished_at,
            outcome=None if row.outcome is None else AttemptOutcome(row.outcome),
            detail=row.detail,
            block_count=row.block_count,
        )
        for row in rows
    )


def count_attempts(catalog: Catalog, table: str, *, since: float) -> int:
    """How many inserts into a table have started since this time, by any pipeline of this catalog."""
    query = (
        select(func.count())
        .select_from(attempts)
        .join(
            batches,
            (batches.c.pipeline == attempts.c.pipeline) & (batches.c.batch_id == attempts.c.batch_id),
        )
        .where(batches.c.table_name == table, attempts.c.started_at >= since)
    )
    with catalog.read() as connection:
        return int(connection.execute(query).scalar_one())


def unproven_batches(catalog: Catalog) -> tuple[LedgerBatch, ...]:
    """Loaded batches of which nothing shows that materialized views have their rows, oldest first."""
    query = select_batches(catalog, [BatchStatus.IN_CLICKHOUSE], None).where(batches.c.reason.is_not(None))
    with catalog.read() as connection:
        rows = connection.execute(query.order_by(batches.c.sequence)).all()
    return tuple(batch_of(row) for row in rows)


def settle_views(catalog: Catalog, batch_ids: Iterable[str]) -> None:
    """A person says so: the views of these loaded batches were rebuilt."""

    def run(connection: Connection) -> None:
        connection.execute(
            update(batches)
            .where(
                batches.c.pipeline == catalog.pipeline,
                batches.c.batch_id.in_(list(batch_ids)),
                batches.c.status == BatchStatus.IN_CLICKHOUSE,
            )
            .values(reason=None)
        )

    catalog.change(run)


def retry_parked(catalog: Catalog, batch_id: str) -> None:
    """Asked for by a person: let a parked batch be tried again at once."""

    def run(connection: Connection) -> bool:
        changed = connection.execute(
            update(batches)
            .where(
                batches.c.pipeline == catalog.pipeline,
                batches.c.batch_id == batch_id,
                batches.c.status.in_([BatchStatus.PARKED, BatchStatus.RETRY]),
            )
            .values(status=BatchStatus.RETRY, next_attempt_at=0.0)
        )
        return changed.rowcount == 1

    if not catalog.change(run):
        batch = find_batch(catalog, batch_id)
        raise ConfigurationError(
            f"Batch {batch_id} is {batch.status}; only PARKED and RETRY batches can be tried again."
        )


def part_of(row: Row[tuple[object, ...]]) -> Part:
    return Part(
        part=row.part,
        epoch=row.epoch,
        table=row.table_name,
        key_file=row.key_file,
        ordinal=row.ordinal,
        rows=row.rows_total,
        live_rows=row.rows_live,
        size_bytes=row.live_bytes,
        shape=row.shape,
        file=file_ref(row, "file", rows=row.rows_total),
        registered_at=row.registered_at,
        batch_id=row.batch_id,
    )


def batch_of(row: Row[tuple[object, ...]]) -> LedgerBatch:
    return LedgerBatch(
        batch_id=row.batch_id,
        table=row.table_name,
        status=BatchStatus(row.status),
        rows=row.rows_total,
        size_bytes=row.live_bytes,
        created_at=row.created_at,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        reason=row.reason,
        loaded_at=row.loaded_at,
    )
