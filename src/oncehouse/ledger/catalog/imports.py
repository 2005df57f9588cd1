"""Imports: which files an import has seen, as they were then, and which piece of them each of its batches is.

Both are written down before the first row of a file is read and never change, so that a batch that runs again is
the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import import_files, import_pieces
from oncehouse.ledger.models import Stage


@dataclass(frozen=True, kw_only=True)
class ImportFile:
    number: int
    path: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Of a file the part from `first` to before `last`: row groups, bytes, or all of it."""

    batch: int
    piece: int
    number: int
    """The file's."""
    first: int
    last: int
    size_bytes: int


def list_import_files(catalog: Catalog, query: str) -> tuple[ImportFile, ...]:
    wanted = (
        select(import_files)
        .where(import_files.c.pipeline == catalog.pipeline, import_files.c.query == query)
        .order_by(import_files.c.number)
    )
    with catalog.read() as connection:
        return tuple(
            ImportFile(
                number=row.number, path=row.path, size_bytes=row.size_bytes, modified_ns=row.modified_ns
            )
            for row in connection.execute(wanted).all()
        )


def list_pieces(catalog: Catalog, query: str) -> tuple[Piece, ...]:
    """By batch, in order."""
    wanted = (
        select(import_pieces)
        .where(import_pieces.c.pipeline == catalog.pipeline, import_pieces.c.query == query)
        .order_by(import_pieces.c.batch, import_pieces.c.piece)
    )
    with catalog.read() as connection:
        return tuple(
            Piece(
                batch=row.batch,
                piece=row.piece,
                number=row.number,
                first=row.first,
                last=row.last,
                size_bytes=row.size_bytes,
            )
            for row in connection.execute(wanted).all()
        )


def pin_files(
    catalog: Catalog, token: int, query: str, files: Sequence[ImportFile], pieces: Sequence[Piece]
) -> None:
    """Write down files and the batches they are cut into, all or nothing."""
    own = {"pipeline": catalog.pipeline, "query": query}

    def run(connection: Connection) -> None:
        if files:
            connection.execute(insert(import_files), [own | vars(file) for file in files])
        if pieces:
            connection.execute(insert(import_pieces), [own | vars(piece) for piece in pieces])

    catalog.write(Stage.INGEST, token, run)
