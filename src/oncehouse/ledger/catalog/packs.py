"""Packs: the files of many small key files put together, each an unchanged range of rows of the pack.

A pipeline with little traffic settles many small epochs; without packs its files would grow with the number
of epochs. Only what is loaded is packed. The catalog changes in one transaction; the files that it no longer
names are left as garbage for a while, because another process may be reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.batches import part_of
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import list_duplicates
from oncehouse.ledger.catalog.retention import registered_paths
from oncehouse.ledger.catalog.row_mappers import file_values, key_file_of
from oncehouse.ledger.catalog.schema import batches, duplicate_files, garbage, key_files, parts
from oncehouse.ledger.models import BatchStatus, DuplicateFile, FileRef, KeyFile, Part, Stage

_LOADED = (BatchStatus.IN_CLICKHOUSE, BatchStatus.REPLACED)


@dataclass(frozen=True, kw_only=True)
class PackBundle:
    """All files of one epoch: it is packed whole or not at all."""

    epoch: int
    registered_at: float
    key_files: tuple[KeyFile, ...]
    parts: tuple[Part, ...]
    duplicate_files: tuple[DuplicateFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(found.raw.size_bytes for found in self.key_files)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A range of rows that has a new place."""

    old: FileRef
    new: FileRef


def is_pack(path: str) -> bool:
    return "/packs/" in path


def list_bundles(catalog: Catalog, *, limit: int = 20_000) -> tuple[PackBundle, ...]:
    """Epochs whose rows are all loaded and whose files are still their own, oldest first."""
    by_epoch: dict[int, list[tuple[float, KeyFile]]] = {}
    for epoch, registered_at, key_file in _own_key_files(catalog, limit):
        by_epoch.setdefault(epoch, []).append((registered_at, key_file))
    if not by_epoch:
        return ()
    held: dict[str, list[tuple[Part, bool]]] = {}
    for part, is_loaded in _parts(catalog):
        held.setdefault(part.key_file, []).append((part, is_loaded))
    duplicates = list_duplicates(catalog, epochs_between=(min(by_epoch), max(by_epoch)))
    found = []
    for epoch, members in sorted(by_epoch.items()):
        parts_of = [entry for _, key_file in members for entry in held.get(key_file.key_file, [])]
        if all(is_loaded for _, is_loaded in parts_of):
            found.append(
                PackBundle(
                    epoch=epoch,
                    registered_at=members[0][0],
                    key_files=tuple(key_file for _, key_file in members),
                    parts=tuple(part for part, _ in parts_of),
                    duplicate_files=duplicates.get(epoch, ()),
                )
            )
    return tuple(found)


def _own_key_files(catalog: Catalog, limit: int) -> list[tuple[int, float, KeyFile]]:
    query = (
        select(key_files)
        .where(key_files.c.pipeline == catalog.pipeline, key_files.c.raw_path.not_like("%/packs/%"))
        .order_by(key_files.c.epoch, key_files.c.ordinal)
        .limit(limit)
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    # The last epoch may have been cut in two by the limit.
    whole = rows if len(rows) < limit else [row for row in rows if row.epoch != rows[-1].epoch]
    return [(row.epoch, row.registered_at, key_file_of(row)) for row in whole]


def _parts(catalog: Catalog) -> list[tuple[Part, bool]]:
    """Parts with files of their own, and whether their rows are all loaded."""
    query = (
        select(parts, batches.c.status)
        .select_from(
            parts.outerjoin(
                batches,
                (parts.c.pipeline == batches.c.pipeline) & (parts.c.batch_id == batches.c.batch_id),
            )
        )
        .where(parts.c.pipeline == catalog.pipeline, parts.c.file_path.not_like("%/packs/%"))
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return [(part_of(row), row.rows_live == 0 or row.status in _LOADED) for row in rows]


def move_files(catalog: Catalog, token: int, moves: Sequence[Move]) -> None:
    """Give ranges their new places, in one transaction; the old files become garbage."""

    def run(connection: Connection) -> None:
        now = catalog.latest_in(connection)
        for move in moves:
            moved = sum(
                _move(connection, catalog, table, prefix, move)
                for table, prefix in (
                    (key_files, "keys"),
                    (key_files, "raw"),
                    (parts, "file"),
                    (duplicate_files, "file"),
                )
            )
            if not moved:
                raise PermanentError(
                    f"Pipeline {catalog.pipeline}: {move.old.path} has gone while it was packed; nothing changed."
                )
        for path in sorted({move.old.path for move in moves}):
            connection.execute(insert(garbage).values(pipeline=catalog.pipeline, file_path=path, since=now))

    catalog.write(Stage.RETENTION, token, run)


def _move(connection: Connection, catalog: Catalog, table: Table, prefix: str, move: Move) -> int:
    moved = connection.execute(
        update(table)
        .where(
            table.c.pipeline == catalog.pipeline,
            table.c[f"{prefix}_path"] == move.old.path,
            table.c[f"{prefix}_row"] == move.old.row,
        )
        .values(**file_values(prefix, move.new))
    )
    return int(moved.rowcount)


def old_garbage(catalog: Catalog, *, before: float) -> tuple[str, ...]:
    """Files that nothing has named since this time."""
    query = select(garbage.c.file_path).where(
        garbage.c.pipeline == catalog.pipeline, garbage.c.since < before
    )
    with catalog.read() as connection:
        found = set(connection.execute(query).scalars())
    return tuple(sorted(found - registered_paths(catalog)))


def forget_garbage(catalog: Catalog, token: int, paths: Sequence[str]) -> None:
    def run(connection: Connection) -> None:
        for path in paths:
            connection.execute(
                delete(garbage).where(garbage.c.pipeline == catalog.pipeline, garbage.c.file_path == path)
            )

    catalog.write(Stage.RETENTION, token, run)


def kept_garbage(catalog: Catalog) -> set[str]:
    """Files that must outlive their readers and are not to be swept yet."""
    query = select(garbage.c.file_path).where(garbage.c.pipeline == catalog.pipeline)
    with catalog.read() as connection:
        return set(connection.execute(query).scalars())
