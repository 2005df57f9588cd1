"""What the ledger knows of how far tables have come: positions that are settled, and what of them has not arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import and_, case, func, or_, select

from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import BatchStatus, EpochKind, LetterKind
from oncehouse.ledger.tables import batches, dead_letter_files, epochs, parts, positions

_NOT_ARRIVED = (BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    positions: Mapping[tuple[str, int], int]
    """Topic and partition, and the offset after the last that is settled."""
    next_epoch: int
    """All that is settled stands in epochs before this one."""
    missing: Mapping[str, int]
    """Table and the first epoch of which rows are not in ClickHouse; 0 where rows of older records are among them."""
    waiting: int | None
    """The first epoch with records that wait for their schema."""


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
            batches.c.status.in_([str(status) for status in _NOT_ARRIVED]),
        )
        # Rows of an epoch that tries records again belong to records that were read long before it.
        since = func.min(case((epochs.c.kind == str(EpochKind.KAFKA), parts.c.epoch), else_=0))
        missing = connection.execute(
            select(parts.c.table_name, since)
            .select_from(
                parts.outerjoin(
                    epochs, and_(epochs.c.pipeline == parts.c.pipeline, epochs.c.epoch == parts.c.epoch)
                )
            )
            .where(parts.c.pipeline == catalog.pipeline, parts.c.rows_live > 0)
            .where(or_(parts.c.batch_id.is_(None), parts.c.batch_id.in_(unsent)))
            .group_by(parts.c.table_name)
        ).all()
        waiting = connection.execute(
            select(func.min(dead_letter_files.c.epoch)).where(
                dead_letter_files.c.pipeline == catalog.pipeline,
                dead_letter_files.c.kind == str(LetterKind.WAITING),
                dead_letter_files.c.tried_in_epoch.is_(None),
            )
        ).scalar()
    return Arrival(
        positions={(row.topic, row.partition_id): row.next_offset for row in settled},
        next_epoch=int(newest or 0) + 1,
        missing={str(table): int(epoch) for table, epoch in missing},
        waiting=None if waiting is None else int(waiting),
    )
