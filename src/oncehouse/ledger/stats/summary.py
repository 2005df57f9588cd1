"""The ledger in a few numbers, added up by the database, so that looking often stays cheap."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import total_counts
from oncehouse.ledger.catalog.schema import batches, epoch_hours, epochs, parts, segments
from oncehouse.ledger.models import NOT_ARRIVED, BatchStatus, Counts, EpochKind


@dataclass(frozen=True, kw_only=True)
class EpochTotals:
    kind: EpochKind
    epochs: int
    last_epoch: int | None
    """None when all of them are only known in sum."""
    last_registered_at: float | None
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    table: str
    status: BatchStatus
    batches: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class OpenParts:
    """Parts with live rows that no batch holds yet."""

    table: str
    parts: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class IndexTotals:
    segments: int
    keys: int
    first_seen_from: float | None
    first_seen_to: float | None


def sum_epochs(catalog: Catalog) -> tuple[EpochTotals, ...]:
    """By kind, with those that are only known in sum."""
    query = (
        select(
            epochs.c.kind,
            func.count().label("epochs"),
            func.max(epochs.c.epoch).label("last_epoch"),
            func.max(epochs.c.registered_at).label("last_registered_at"),
        )
        .where(epochs.c.pipeline == catalog.pipeline)
        .group_by(epochs.c.kind)
        .order_by(epochs.c.kind)
    )
    rolled_up = (
        select(epoch_hours.c.kind, func.sum(epoch_hours.c.epochs).label("epochs"))
        .where(epoch_hours.c.pipeline == catalog.pipeline)
        .group_by(epoch_hours.c.kind)
    )
    with catalog.read() as connection:
        newer = {str(row.kind): row for row in connection.execute(query).all()}
        older = {str(row.kind): int(row.epochs) for row in connection.execute(rolled_up).all()}
    return tuple(
        EpochTotals(
            kind=EpochKind(kind),
            epochs=(newer[kind].epochs if kind in newer else 0) + older.get(kind, 0),
            last_epoch=newer[kind].last_epoch if kind in newer else None,
            last_registered_at=newer[kind].last_registered_at if kind in newer else None,
            counts=total_counts(catalog, kind=EpochKind(kind)),
        )
        for kind in sorted({*newer, *older})
    )


def count_unproven(catalog: Catalog) -> dict[str, int]:
    """By table: loaded batches of which nothing shows that materialized views have their rows."""
    query = (
        select(batches.c.table_name, func.count())
        .where(
            batches.c.pipeline == catalog.pipeline,
            batches.c.status == BatchStatus.IN_CLICKHOUSE,
            batches.c.reason.is_not(None),
        )
        .group_by(batches.c.table_name)
        .order_by(batches.c.table_name)
    )
    with catalog.read() as connection:
        return {str(table): int(number) for table, number in connection.execute(query).all()}


def sum_batches(catalog: Catalog) -> tuple[BatchTotals, ...]:
    query = (
        select(
            batches.c.table_name,
            batches.c.status,
            func.count().label("batches"),
            _total(batches.c.rows_total),
            _total(batches.c.live_bytes),
        )
        .where(batches.c.pipeline == catalog.pipeline)
        .group_by(batches.c.table_name, batches.c.status)
        .order_by(batches.c.table_name, batches.c.status)
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        BatchTotals(
            table=row.table_name,
            status=BatchStatus(row.status),
            batches=row.batches,
            rows=int(row.rows_total),
            size_bytes=int(row.live_bytes),
        )
        for row in rows
    )


def sum_replaced_rows(catalog: Catalog, *, loaded_since: float) -> int:
    """Rows of batches that were in ClickHouse, loaded at this time or later, and whose rows were sent again since."""
    query = select(_total(batches.c.rows_total)).where(
        batches.c.pipeline == catalog.pipeline,
        batches.c.status == BatchStatus.REPLACED,
        batches.c.loaded_at >= loaded_since,
    )
    with catalog.read() as connection:
        return int(connection.execute(query).scalar_one())


def sum_open_parts(catalog: Catalog) -> tuple[OpenParts, ...]:
    query = (
        select(parts.c.table_name, func.count().label("parts"), _total(parts.c.rows_live))
        .where(parts.c.pipeline == catalog.pipeline, parts.c.batch_id.is_(None), parts.c.rows_live > 0)
        .group_by(parts.c.table_name)
        .order_by(parts.c.table_name)
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(OpenParts(table=row.table_name, parts=row.parts, rows=int(row.rows_live)) for row in rows)


def find_oldest_waiting(catalog: Catalog) -> float | None:
    """Since when the oldest row that is not in ClickHouse has waited there, in a part or in a batch."""
    open_part = select(func.min(parts.c.registered_at)).where(
        parts.c.pipeline == catalog.pipeline, parts.c.batch_id.is_(None), parts.c.rows_live > 0
    )
    batch = select(func.min(batches.c.created_at)).where(
        batches.c.pipeline == catalog.pipeline, batches.c.status.in_(NOT_ARRIVED)
    )
    with catalog.read() as connection:
        found = [connection.execute(query).scalar() for query in (open_part, batch)]
    return min((float(at) for at in found if at is not None), default=None)


def sum_index(catalog: Catalog) -> IndexTotals:
    query = select(
        func.count().label("segments"),
        _total(segments.c.keys_total),
        func.min(segments.c.first_seen_from).label("first_seen_from"),
        func.max(segments.c.first_seen_to).label("first_seen_to"),
    ).where(segments.c.pipeline == catalog.pipeline, segments.c.replaced_at.is_(None))
    with catalog.read() as connection:
        row = connection.execute(query).one()
    return IndexTotals(
        segments=row.segments,
        keys=int(row.keys_total),
        first_seen_from=row.first_seen_from,
        first_seen_to=row.first_seen_to,
    )


def _total(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0).label(str(column.key))
