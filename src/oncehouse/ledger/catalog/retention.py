"""What falls out of the window: catalog rows first, then their files, never the other way round.

A crash between the two leaves files that nothing names; the sweep finds them. A key file goes only when every
row of it has reached ClickHouse, and a replaced segment only when no epoch can be reading it any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, func, or_, select, update

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_ref, last_epoch_in
from oncehouse.ledger.catalog.schema import (
    batches,
    dead_letter_files,
    duplicate_files,
    key_files,
    parts,
    rekeyed_files,
    rekeyed_segments,
    segments,
)
from oncehouse.ledger.models import BatchStatus, DeadLetterKind, Stage

_SETTLED = (BatchStatus.IN_CLICKHOUSE, BatchStatus.REPLACED)


def expire_segments(catalog: Catalog, token: int, *, before: float) -> int:
    """Take segments whose youngest key was first seen before this time out of the key index."""

    def run(connection: Connection) -> int:
        expired = connection.execute(
            update(segments)
            .where(
                segments.c.pipeline == catalog.pipeline,
                segments.c.replaced_at.is_(None),
                segments.c.first_seen_to < before,
            )
            .values(replaced_at=catalog.clock, replaced_after_epoch=last_epoch_in(connection, catalog))
        )
        return int(expired.rowcount)

    return catalog.write(Stage.RETENTION, token, run)


def drop_replaced_segments(catalog: Catalog, token: int) -> tuple[str, ...]:
    """Forget replaced segments that no running epoch can know; returns their files."""

    def run(connection: Connection) -> tuple[str, ...]:
        # Epochs run one after another: only the one after the last registered can have been reading. Once
        # it is registered too, no process knows the segment any more. Numbers, because clocks may be set back.
        gone = (
            segments.c.pipeline == catalog.pipeline,
            segments.c.replaced_at.is_not(None),
            segments.c.replaced_after_epoch < last_epoch_in(connection, catalog),
        )
        rows = connection.execute(select(segments).where(*gone)).all()
        connection.execute(delete(segments).where(*gone))
        return tuple(file_ref(row, "file").path for row in rows)

    return catalog.write(Stage.RETENTION, token, run)


def drop_key_files(catalog: Catalog, token: int, *, before: float) -> tuple[str, ...]:
    """Forget key files, raw bytes and parts older than this whose rows are all loaded; returns their files."""

    def run(connection: Connection) -> tuple[str, ...]:
        rows = connection.execute(
            select(key_files).where(
                key_files.c.pipeline == catalog.pipeline, key_files.c.registered_at < before
            )
        ).all()
        paths: list[str] = []
        for row in rows:
            paths += _drop_key_file(connection, catalog, row.key_file)
        paths += _drop_duplicates(connection, catalog, {row.epoch for row in rows})
        return tuple(paths)

    return catalog.write(Stage.RETENTION, token, run)


def _drop_key_file(connection: Connection, catalog: Catalog, key_file: str) -> list[str]:
    mine = (parts.c.pipeline == catalog.pipeline, parts.c.key_file == key_file)
    held = connection.execute(select(parts).where(*mine)).all()
    if not all(row.rows_live == 0 or _is_loaded(connection, catalog, row.batch_id) for row in held):
        return []
    paths = [file_ref(row, "file").path for row in held]
    here = (key_files.c.pipeline == catalog.pipeline, key_files.c.key_file == key_file)
    row = connection.execute(select(key_files).where(*here)).one()
    paths += [file_ref(row, "keys").path, file_ref(row, "raw").path]
    connection.execute(delete(parts).where(*mine))
    connection.execute(delete(key_files).where(*here))
    return paths


def _is_loaded(connection: Connection, catalog: Catalog, batch_id: str | None) -> bool:
    status = connection.execute(
        select(batches.c.status).where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
    ).scalar()
    return status in _SETTLED


def _drop_duplicates(connection: Connection, catalog: Catalog, epochs: Iterable[int]) -> list[str]:
    paths = []
    for epoch in epochs:
        left = connection.execute(
            select(func.count()).where(key_files.c.pipeline == catalog.pipeline, key_files.c.epoch == epoch)
        ).scalar_one()
        if left:
            continue
        mine = (duplicate_files.c.pipeline == catalog.pipeline, duplicate_files.c.epoch == epoch)
        paths += [
            file_ref(row, "file").path
            for row in connection.execute(select(duplicate_files).where(*mine)).all()
        ]
        connection.execute(delete(duplicate_files).where(*mine))
    return paths


def drop_tried_dead_letters(catalog: Catalog, token: int, *, before: float) -> tuple[str, ...]:
    """Forget dead letters older than this that were tried again since, and edits; open ones stay for ever."""

    def run(connection: Connection) -> tuple[str, ...]:
        gone = (
            dead_letter_files.c.pipeline == catalog.pipeline,
            or_(
                dead_letter_files.c.tried_in_epoch.is_not(None),
                dead_letter_files.c.kind == DeadLetterKind.EDIT,
            ),
            dead_letter_files.c.registered_at < before,
        )
        rows = connection.execute(select(dead_letter_files).where(*gone)).all()
        connection.execute(delete(dead_letter_files).where(*gone))
        return tuple(file_ref(row, "file").path for row in rows)

    return catalog.write(Stage.RETENTION, token, run)


def registered_paths(catalog: Catalog) -> set[str]:
    """Every file that the catalog names for this pipeline."""
    with catalog.read() as connection:
        found: set[str] = set()
        for table, columns in (
            (key_files, ("keys_path", "raw_path")),
            (parts, ("file_path",)),
            (duplicate_files, ("file_path",)),
            (dead_letter_files, ("file_path",)),
            (segments, ("file_path",)),
            (rekeyed_files, ("keys_path",)),
            (rekeyed_segments, ("file_path",)),
        ):
            for column in columns:
                named = select(table.c[column]).where(
                    table.c.pipeline == catalog.pipeline, table.c[column].is_not(None)
                )
                found.update(connection.execute(named).scalars())
    return found
