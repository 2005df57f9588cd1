"""Files that were made again take the place of damaged ones: name, size and checksum change, nothing else does.

Each change is one transaction under the ingest lease. What the catalog stops to name is left as garbage for a while,
and a batch that was parked because of the damage may go on in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_values
from oncehouse.ledger.catalog.schema import (
    batches,
    dead_letter_files,
    duplicate_files,
    garbage,
    key_files,
    parts,
)
from oncehouse.ledger.models import BatchStatus, FileRef, Stage


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A file, or a range of one, that has a new place."""

    column: str
    """Which file of the row: `keys`, `raw`, `part`, or `letters`."""
    old: FileRef
    new: FileRef


_COLUMNS = {
    "keys": (key_files, "keys"),
    "raw": (key_files, "raw"),
    "part": (parts, "file"),
    "letters": (dead_letter_files, "file"),
}


def enter_files(catalog: Catalog, token: int, restored: Sequence[Restored]) -> tuple[str, ...]:
    """Returns the batches that were parked because of these files and are tried again now."""

    def run(connection: Connection) -> tuple[str, ...]:
        for found in restored:
            table, prefix = _COLUMNS[found.column]
            changed = connection.execute(
                update(table)
                .where(
                    table.c.pipeline == catalog.pipeline,
                    table.c[f"{prefix}_path"] == found.old.path,
                    table.c[f"{prefix}_row"] == found.old.row,
                )
                .values(**file_values(prefix, found.new))
            )
            if not changed.rowcount:
                raise _gone(catalog, found.old)
        return _leave(connection, catalog, [found.old.path for found in restored])

    return catalog.write(Stage.INGEST, token, run)


def enter_duplicates(
    catalog: Catalog, token: int, epoch: int, *, old: Sequence[FileRef], new: FileRef, rows: int
) -> tuple[str, ...]:
    """One file of positions for those of an epoch that were damaged."""

    def run(connection: Connection) -> tuple[str, ...]:
        mine = (duplicate_files.c.pipeline == catalog.pipeline, duplicate_files.c.epoch == epoch)
        for file in old:
            gone = connection.execute(
                delete(duplicate_files).where(
                    *mine, duplicate_files.c.file_path == file.path, duplicate_files.c.file_row == file.row
                )
            )
            if gone.rowcount != 1:
                raise _gone(catalog, file)
        connection.execute(
            insert(duplicate_files).values(
                pipeline=catalog.pipeline, epoch=epoch, rows_total=rows, **file_values("file", new)
            )
        )
        return _leave(connection, catalog, [file.path for file in old])

    return catalog.write(Stage.INGEST, token, run)


def _leave(connection: Connection, catalog: Catalog, paths: Sequence[str]) -> tuple[str, ...]:
    now = catalog.now_in(connection)
    known = set(
        connection.execute(
            select(garbage.c.file_path).where(garbage.c.pipeline == catalog.pipeline)
        ).scalars()
    )
    for path in sorted(set(paths) - known):
        connection.execute(insert(garbage).values(pipeline=catalog.pipeline, file_path=path, since=now))
    return _release(connection, catalog, paths)


def _release(connection: Connection, catalog: Catalog, paths: Sequence[str]) -> tuple[str, ...]:
    """A batch says in its reason which file it could not read."""
    parked = connection.execute(
        select(batches.c.batch_id, batches.c.reason).where(
            batches.c.pipeline == catalog.pipeline, batches.c.status == BatchStatus.PARKED
        )
    ).all()
    released = tuple(row.batch_id for row in parked if any(path in (row.reason or "") for path in paths))
    for batch_id in released:
        connection.execute(
            update(batches)
            .where(batches.c.pipeline == catalog.pipeline, batches.c.batch_id == batch_id)
            .values(status=BatchStatus.RETRY, next_attempt_at=0.0)
        )
    return released


def _gone(catalog: Catalog, file: FileRef) -> PermanentError:
    return PermanentError(
        f"Pipeline {catalog.pipeline}: {file.path} is not named by the ledger any more; nothing was changed. Look at "
        "`oncehouse repair --plan` once more."
    )
