"""Snapshots: a pipeline's catalog rows at one moment, kept as a SQLite file next to the ledger's files.

Retention writes one before it deletes files, so that what the newest snapshot names is still there; only where there
is no room for a snapshot, files go first. A name carries the ingest lease's token, the last epoch, the time, and the
file's own checksum. Works alike for every database that a catalog may be in; a restored snapshot is older than the
tables, so it is entered only together with what ClickHouse has since got (`ledger/catalog/table_adoption.py`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, Table, func, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from oncehouse.common.database import is_damage
from oncehouse.common.process_folder import process_folder
from oncehouse.errors import CorruptFileError, FullDiskError, TransientError
from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Stage

if TYPE_CHECKING:
    from oncehouse.ledger.storage.file_store import FileStore

KEPT = 3
_NAME = re.compile(r"/catalog/snapshot-(\d{12})-(\d{10})-(\d{13})-([0-9a-f]{32})\.db$")
_ROWS_AT_ONCE = 5000
# What SQLite needs next to a file to open it: the index of its log.
_BESIDE_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True, order=True)
class SnapshotFile:
    token: int
    """The ingest lease's: it grows from holder to holder, and jumps where a catalog is brought back."""
    epoch: int
    """The last one it knows."""
    taken_ms: int
    path: str
    digest: str

    @property
    def taken_at(self) -> float:
        return self.taken_ms / 1000


def write_snapshot(catalog: Catalog, store: FileStore) -> SnapshotFile:
    """Put the catalog as it is now next to the files; the oldest beyond KEPT go."""
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=process_folder()) as folder:
        copy = Path(folder) / "snapshot.db"
        try:
            with catalog.snapshot() as view, view.read() as source:
                now = view.now_in(source)
                token, last = _last_token(source, catalog.pipeline), _last_epoch(source, catalog.pipeline)
                _copy_out(source, copy, catalog.pipeline)
        except (sqlite3.Error, OSError) as error:
            raise TransientError(f"No snapshot of the catalog could be written: {error}") from error
        content = copy.read_bytes()
        digest, taken_ms = hashlib.sha256(content).hexdigest()[:32], int(now * 1000)
        name = f"snapshot-{token:012d}-{last:010d}-{taken_ms:013d}-{digest}.db"
        path = f"{catalog.pipeline}/catalog/{name}"
        store.put(path, lambda target: Path(target).write_bytes(content))
    for old in list_snapshots(store, catalog.pipeline)[KEPT:]:
        store.delete(old.path)
    return SnapshotFile(token=token, epoch=last, taken_ms=taken_ms, path=path, digest=digest)


def _last_token(source: Connection, pipeline: str) -> int:
    mine = schema.leases.c.pipeline == pipeline, schema.leases.c.stage == Stage.INGEST
    return int(source.execute(select(schema.leases.c.token).where(*mine)).scalar() or 0)


def _last_epoch(source: Connection, pipeline: str) -> int:
    mine = schema.epochs.c.pipeline == pipeline
    return int(source.execute(select(func.max(schema.epochs.c.epoch)).where(mine)).scalar() or 0)


def _copy_out(source: Connection, copy: Path, pipeline: str) -> None:
    """Without SQLAlchemy on the writing side: an engine of its own would compile every statement again."""
    with closing(sqlite3.connect(copy, isolation_level=None)) as target:
        # A copy that is not whole has no name yet, so nothing is waited for until it is put among the files.
        target.execute("PRAGMA synchronous=OFF")
        target.execute("PRAGMA journal_mode=OFF")
        target.execute("BEGIN")
        for statement in _definitions():
            target.execute(statement)
        target.execute(f"INSERT INTO {schema.ledger_version.name} VALUES ('ledger', {schema.VERSION})")  # noqa: S608 - constants
        for table in _own_tables():
            rows = source.execute(select(table).where(table.c.pipeline == pipeline))
            values = ", ".join("?" * len(table.c))
            target.executemany(
                f"INSERT INTO {table.name} VALUES ({values})",  # noqa: S608 - constants
                (tuple(row) for row in rows),
            )
        target.execute("COMMIT")


@cache
def _definitions() -> tuple[str, ...]:
    """The catalog's tables in SQLite's words."""
    words, made = sqlite.dialect(), []
    for table in schema.metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=words)))
        made += [str(CreateIndex(index).compile(dialect=words)) for index in table.indexes]
    return tuple(made)


def _own_tables() -> list[Table]:
    return [table for table in schema.metadata.sorted_tables if "pipeline" in table.c]


def copy_rows(source: Connection, target: Connection, pipeline: str) -> None:
    """Every row of the pipeline, table by table."""
    for table in _own_tables():
        rows = source.execute(select(table).where(table.c.pipeline == pipeline))
        for some in rows.mappings().partitions(_ROWS_AT_ONCE):
            target.execute(insert(table), [dict(row) for row in some])


def list_snapshots(store: FileStore, pipeline: str) -> tuple[SnapshotFile, ...]:
    """Newest first: by token, so that what came before a restore is older than what came after, then by epoch."""
    found = (
        SnapshotFile(
            token=int(match[1]), epoch=int(match[2]), taken_ms=int(match[3]), path=path, digest=match[4]
        )
        for path in store.walk(f"{pipeline}/catalog")
        if (match := _NAME.search(f"/{path}"))
    )
    return tuple(sorted(found, reverse=True))


def renew_snapshots(catalog: Catalog, store: FileStore) -> None:
    """After a catalog was brought back: those of epochs beyond it belong to a time that was given up."""
    newest = write_snapshot(catalog, store)
    for old in list_snapshots(store, catalog.pipeline):
        if old.epoch > newest.epoch:
            store.delete(old.path)


@contextmanager
def open_snapshot(store: FileStore, snapshot: SnapshotFile, pipeline: str) -> Iterator[Catalog]:
    """A snapshot as a catalog to read from, in today's tables; raises CorruptFileError where its bytes have changed."""
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=process_folder()) as folder:
        copy = Path(folder) / "snapshot.db"
        copy.write_bytes(store.read_bytes(snapshot.path))
        if hashlib.sha256(copy.read_bytes()).hexdigest()[:32] != snapshot.digest:
            raise CorruptFileError(f"The catalog's snapshot {snapshot.path} does not match its checksum.")
        catalog = Catalog(f"sqlite:///{copy}", pipeline, retry_seconds=())
        try:
            catalog.prepare()  # it may be an older oncehouse's; only this copy is upgraded
            yield catalog
        finally:
            catalog.close()


def find_snapshot(store: FileStore, pipeline: str) -> SnapshotFile | None:
    """The newest whose bytes are what they were."""
    for found in list_snapshots(store, pipeline):
        try:
            with open_snapshot(store, found, pipeline):
                return found
        except CorruptFileError:
            continue
    return None


def examine(engine: Engine) -> str | None:
    """What is wrong with a SQLite file that is there; None where SQLite finds nothing, and for other databases.

    A file that cannot be looked at just now, because it is locked or its disk is full, is not damaged for that:
    TransientError or FullDiskError.
    """
    path = engine.url.database
    if engine.dialect.name != "sqlite" or not path or not Path(path).is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{Path(path).absolute()}?mode=ro", uri=True)) as connection:
            problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return str(error)
        raise _describe_unread(Path(path), error) from error
    return None if problems == ["ok"] else "; ".join(problems)


def _describe_unread(path: Path, error: sqlite3.DatabaseError) -> TransientError:
    # SQLite has to write next to a file even to read it, and calls a disk that has no space for that a failing one.
    if shutil.disk_usage(path.parent).free < _BESIDE_BYTES:
        return FullDiskError(
            f"The disk of the catalog {path} is full, so SQLite cannot open it ({error}). Free some space, then start "
            "again."
        )
    return TransientError(
        f"The catalog {path} cannot be read just now ({error}): another process may hold it, or its disk fails."
    )
