"""What was settled and loaded lately, and pages of epochs and batches, newest first.

Read from the newest on, as far as is asked for and no further, so that looking stays cheap however long the
history is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Subquery, Table, select, tuple_

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.batches import batch_of, part_of, select_batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import epoch_of, offset_range_of
from oncehouse.ledger.catalog.schema import attempts, batches, epochs, parts, ranges
from oncehouse.ledger.models import BatchStatus, EpochRow, LedgerBatch, OffsetRange, Part

# Hardly more than one epoch and one batch a second can be; two hours of them are read in some milliseconds.
_MOST_ROWS = 7200


@dataclass(frozen=True, kw_only=True)
class Load:
    """An insert that ClickHouse has confirmed."""

    table: str
    rows: int
    loaded_at: float
    seconds: float | None
    """How long its last attempt took; none where that is not written down."""


class Settled(NamedTuple):
    """What an epoch read; of an hour there may be thousands."""

    registered_at: float
    kind: str
    read: int


def list_recent_epochs(catalog: Catalog, *, since: float) -> tuple[Settled, ...]:
    """Newest first; those that were registered since this time."""
    newest = _newest(catalog, epochs, epochs.c.epoch)
    query = (
        select(newest.c.registered_at, newest.c.kind, newest.c.rows_read)
        .where(newest.c.registered_at >= since)
        .order_by(newest.c.epoch.desc())
    )
    with catalog.read() as connection:
        return tuple(Settled(*row) for row in connection.execute(query).all())


def list_recent_loads(catalog: Catalog, *, since: float) -> tuple[Load, ...]:
    """Newest first by when the batch was made; those that were loaded since this time."""
    newest = _newest(catalog, batches, batches.c.sequence)
    last = (
        (attempts.c.pipeline == newest.c.pipeline)
        & (attempts.c.batch_id == newest.c.batch_id)
        & (attempts.c.attempt == newest.c.attempts)
    )
    seconds = (attempts.c.finished_at - attempts.c.started_at).label("seconds")
    query = (
        select(newest.c.table_name, newest.c.rows_total, newest.c.loaded_at, seconds)
        .join(attempts, last, isouter=True)
        .where(newest.c.loaded_at >= since)
        .order_by(newest.c.sequence.desc())
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        Load(table=row.table_name, rows=row.rows_total, loaded_at=row.loaded_at, seconds=row.seconds)
        for row in rows
    )


def _newest(catalog: Catalog, table: Table, number: Any) -> Subquery:
    """The newest rows by their number, which an index knows; their times it does not."""
    mine = select(table).where(table.c.pipeline == catalog.pipeline)
    return mine.order_by(number.desc()).limit(_MOST_ROWS).subquery("newest")


def page_epochs(catalog: Catalog, *, before: int | None, limit: int) -> tuple[EpochRow, ...]:
    """Newest first; those before an epoch, or from the newest on."""
    query = select(epochs).where(epochs.c.pipeline == catalog.pipeline)
    if before is not None:
        query = query.where(epochs.c.epoch < before)
    with catalog.read() as connection:
        rows = connection.execute(query.order_by(epochs.c.epoch.desc()).limit(limit)).all()
    return tuple(epoch_of(row) for row in rows)


def find_epoch(catalog: Catalog, epoch: int) -> EpochRow:
    """ConfigurationError when there is none, or it was rolled up into its hour."""
    query = select(epochs).where(epochs.c.pipeline == catalog.pipeline, epochs.c.epoch == epoch)
    with catalog.read() as connection:
        row = connection.execute(query).one_or_none()
    if row is None:
        raise ConfigurationError(f"Pipeline {catalog.pipeline} has no epoch {epoch} (any more).")
    return epoch_of(row)


def list_epoch_parts(catalog: Catalog, epoch: int) -> tuple[Part, ...]:
    """What the epoch wrote, in the order in which it read; parts past the window are gone."""
    query = select(parts).where(parts.c.pipeline == catalog.pipeline, parts.c.epoch == epoch)
    with catalog.read() as connection:
        rows = connection.execute(query.order_by(parts.c.ordinal, parts.c.part)).all()
    return tuple(part_of(row) for row in rows)


def list_epoch_ranges(catalog: Catalog, epoch: int) -> tuple[OffsetRange, ...]:
    """What of Kafka the epoch settled, by topic and partition."""
    query = select(ranges).where(ranges.c.pipeline == catalog.pipeline, ranges.c.epoch == epoch)
    with catalog.read() as connection:
        rows = connection.execute(query.order_by(ranges.c.topic, ranges.c.partition_id)).all()
    return tuple(offset_range_of(row) for row in rows)


def page_batches(
    catalog: Catalog,
    *,
    statuses: Iterable[BatchStatus] | None = None,
    table: str | None = None,
    after: str | None = None,
    limit: int,
) -> tuple[LedgerBatch, ...]:
    """Newest first; those made before the batch `after`. Raises ConfigurationError when there is no such batch."""
    query = select_batches(catalog, statuses, table)
    # Batches that were adopted from a table share a number.
    place = tuple_(batches.c.sequence, batches.c.batch_id)
    with catalog.read() as connection:
        if after is not None:
            mine = (batches.c.pipeline == catalog.pipeline, batches.c.batch_id == after)
            sequence = connection.execute(select(batches.c.sequence).where(*mine)).scalar()
            if sequence is None:
                raise ConfigurationError(f"Pipeline {catalog.pipeline} has no batch {after} (any more).")
            query = query.where(place < (sequence, after))
        newest = (batches.c.sequence.desc(), batches.c.batch_id.desc())
        rows = connection.execute(query.order_by(*newest).limit(limit)).all()
    return tuple(batch_of(row) for row in rows)
