"""What the ledger knows of how far tables have come: positions that are settled, and what of them has not arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import FromClause, Table, and_, case, func, or_, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import batches, dead_letter_files, epochs, parts, positions
from oncehouse.ledger.models import NOT_ARRIVED, DeadLetterKind, EpochKind


@dataclass(frozen=True, kw_only=True)
class Arrival:
    positions: Mapping[tuple[str, int], int]
    """Topic and partition, and the offset after the last that is settled."""
    next_epoch: int
    """All that is settled stands in epochs before this one."""
    missing: Mapping[str, int]
    """Table and the first epoch of which rows are not in ClickHouse; 0 where rows of older records are among them."""
    waiting: int | None
    """The first epoch with records that wait for their schema; 0 where some were tried before and wait on."""


def read_arrival(catalog: Catalog) -> Arrival:
    """In this order: what is settled by then, and after that what of it has not arrived."""
    of_pipeline = positions.c.pipeline == catalog.pipeline
    with catalog.read() as connection:
        settled = connection.execute(
            select(positions.c.topic, positions.c.partition_id, positions.c.next_offset).where(of_pipeline)
        ).all()
        newest = connection.execute(
            select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
        ).scalar()
        unsent = select(batches.c.batch_id).where(
            batches.c.pipeline == catalog.pipeline,
            batches.c.status.in_([str(status) for status in NOT_ARRIVED]),
        )
        # What an epoch has of records that were tried again was read long before it.
        first = case((epochs.c.kind == str(EpochKind.KAFKA), epochs.c.epoch), else_=0)
        # Before the parts: a record that is tried meanwhile turns from one that waits into a row, never back.
        waiting = connection.execute(
            select(func.min(first))
            .select_from(_with_epochs(dead_letter_files))
            .where(
                dead_letter_files.c.pipeline == catalog.pipeline,
                dead_letter_files.c.kind == str(DeadLetterKind.WAITING),
                dead_letter_files.c.tried_in_epoch.is_(None),
            )
        ).scalar()
        missing = connection.execute(
            select(parts.c.table_name, func.min(first))
            .select_from(_with_epochs(parts))
            .where(parts.c.pipeline == catalog.pipeline, parts.c.rows_live > 0)
            .where(or_(parts.c.batch_id.is_(None), parts.c.batch_id.in_(unsent)))
            .group_by(parts.c.table_name)
        ).all()
    return Arrival(
        positions={(row.topic, row.partition_id): row.next_offset for row in settled},
        next_epoch=int(newest or 0) + 1,
        missing={str(table): int(epoch) for table, epoch in missing},
        waiting=None if waiting is None else int(waiting),
    )


def _with_epochs(table: Table) -> FromClause:
    return table.outerjoin(
        epochs, and_(epochs.c.pipeline == table.c.pipeline, epochs.c.epoch == table.c.epoch)
    )
