"""Epochs in the catalog, as they are read: what is settled, up to which offsets, and with which files."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.dead_letters import are_open
from oncehouse.ledger.catalog.row_mappers import (
    dead_letter_file_of,
    epoch_of,
    file_ref,
    key_file_of,
    offset_range_of,
)
from oncehouse.ledger.catalog.schema import (
    COUNTS,
    dead_letter_files,
    duplicate_files,
    epoch_hours,
    epochs,
    key_files,
    positions,
    ranges,
)
from oncehouse.ledger.models import (
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    DuplicateFile,
    EpochKind,
    EpochRow,
    FileRef,
    KeyFile,
    OffsetRange,
)


def next_epoch(catalog: Catalog) -> int:
    with catalog.read() as connection:
        last = connection.execute(
            select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
        ).scalar_one()
    return (last or 0) + 1


def read_positions(catalog: Catalog) -> dict[tuple[str, int], int]:
    """Where the next epoch starts, by topic and partition."""
    with catalog.read() as connection:
        rows = connection.execute(select(positions).where(positions.c.pipeline == catalog.pipeline)).all()
    return {(row.topic, row.partition_id): row.next_offset for row in rows}


def read_leader_epochs(catalog: Catalog) -> dict[tuple[str, int], int]:
    """Of what stands before the next offset, by topic and partition; those that are not known are left out."""
    found = {}
    with catalog.read() as connection:
        for row in connection.execute(
            select(positions).where(positions.c.pipeline == catalog.pipeline)
        ).all():
            # By the primary key: a window may hold millions of ranges.
            last = connection.execute(
                select(ranges.c.end_offset, ranges.c.leader_epoch)
                .where(
                    ranges.c.pipeline == catalog.pipeline,
                    ranges.c.topic == row.topic,
                    ranges.c.partition_id == row.partition_id,
                )
                .order_by(ranges.c.start_offset.desc())
                .limit(1)
            ).first()
            if last is not None and last.end_offset == row.next_offset and last.leader_epoch is not None:
                found[row.topic, row.partition_id] = int(last.leader_epoch)
    return found


def read_topic_ids(catalog: Catalog) -> dict[str, str]:
    with catalog.read() as connection:
        rows = connection.execute(
            select(positions.c.topic, positions.c.topic_id)
            .where(positions.c.pipeline == catalog.pipeline)
            .distinct()
        ).all()
    return {row.topic: row.topic_id for row in rows}


def list_epochs(catalog: Catalog, *, limit: int | None = None) -> tuple[EpochRow, ...]:
    """Newest first."""
    query = select(epochs).where(epochs.c.pipeline == catalog.pipeline).order_by(epochs.c.epoch.desc())
    with catalog.read() as connection:
        return tuple(epoch_of(row) for row in connection.execute(query.limit(limit)).all())


def total_counts(catalog: Catalog, *, kind: EpochKind = EpochKind.KAFKA) -> Counts:
    row = [0] * len(COUNTS)
    with catalog.read() as connection:
        for table in (epochs, epoch_hours):
            query = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in COUNTS)).where(
                table.c.pipeline == catalog.pipeline, table.c.kind == kind
            )
            row = [
                total + int(value) for total, value in zip(row, connection.execute(query).one(), strict=True)
            ]
    return Counts(
        read=row[0],
        new=row[1],
        duplicate=row[2],
        dead_letter=row[3],
        skipped=row[4],
        waiting=row[5],
        conflicts=row[6],
    )


def list_ranges(catalog: Catalog) -> tuple[tuple[int, OffsetRange], ...]:
    """(epoch, range), by topic, partition and offset."""
    query = (
        select(ranges)
        .where(ranges.c.pipeline == catalog.pipeline)
        .order_by(ranges.c.topic, ranges.c.partition_id, ranges.c.start_offset)
    )
    with catalog.read() as connection:
        return tuple(
            (
                row.epoch,
                offset_range_of(row),
            )
            for row in connection.execute(query).all()
        )


def list_key_files(catalog: Catalog) -> tuple[tuple[int, float, KeyFile], ...]:
    """(epoch, registered at, key file), in the order in which they were settled."""
    query = (
        select(key_files)
        .where(key_files.c.pipeline == catalog.pipeline)
        .order_by(key_files.c.epoch, key_files.c.ordinal)
    )
    with catalog.read() as connection:
        return tuple(
            (
                row.epoch,
                row.registered_at,
                key_file_of(row),
            )
            for row in connection.execute(query).all()
        )


def list_duplicates(
    catalog: Catalog, *, epochs_between: tuple[int, int] | None = None
) -> dict[int, tuple[DuplicateFile, ...]]:
    """By epoch, with how many positions each file holds; of all epochs, or of a first to a last one."""
    query = select(duplicate_files).where(duplicate_files.c.pipeline == catalog.pipeline)
    if epochs_between is not None:
        query = query.where(duplicate_files.c.epoch.between(*epochs_between))
    found: dict[int, list[DuplicateFile]] = {}
    with catalog.read() as connection:
        for row in connection.execute(
            query.order_by(duplicate_files.c.epoch, duplicate_files.c.file_path, duplicate_files.c.file_row)
        ).all():
            file = DuplicateFile(rows=row.rows_total, file=file_ref(row, "file", rows=row.rows_total))
            found.setdefault(row.epoch, []).append(file)
    return {epoch: tuple(files) for epoch, files in found.items()}


def list_duplicate_files(
    catalog: Catalog, *, epochs_between: tuple[int, int] | None = None
) -> dict[int, tuple[FileRef, ...]]:
    """By epoch; of all epochs, or of a first to a last one."""
    return {
        epoch: tuple(duplicates.file for duplicates in found)
        for epoch, found in list_duplicates(catalog, epochs_between=epochs_between).items()
    }


def list_dead_letter_files(
    catalog: Catalog, *, kind: DeadLetterKind = DeadLetterKind.DEAD
) -> tuple[DeadLetterFile, ...]:
    """Those that were not tried again."""
    return _read_dead_letter_files(
        catalog, _select_dead_letter_files(catalog).where(*are_open(catalog, kind))
    )


def list_all_dead_letter_files(catalog: Catalog) -> tuple[DeadLetterFile, ...]:
    """Of both kinds, those tried again included."""
    return _read_dead_letter_files(catalog, _select_dead_letter_files(catalog))


def _select_dead_letter_files(catalog: Catalog) -> Select[Any]:
    return (
        select(dead_letter_files)
        .where(dead_letter_files.c.pipeline == catalog.pipeline)
        .order_by(dead_letter_files.c.epoch, dead_letter_files.c.dead_letter_file)
    )


def _read_dead_letter_files(catalog: Catalog, query: Select[Any]) -> tuple[DeadLetterFile, ...]:
    with catalog.read() as connection:
        return tuple(dead_letter_file_of(row) for row in connection.execute(query).all())
