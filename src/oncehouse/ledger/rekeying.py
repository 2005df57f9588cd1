"""The change of an identity rule in the catalog: key files, index and fingerprint together, or nothing.

Parts, batches and positions of duplicates stay as they were registered. The files that are no longer named are
left as garbage for a while, because somebody may be reading them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.packs import Move
from oncehouse.ledger.records import Identity, Segment, Stage
from oncehouse.ledger.rows import file_values, finish_request_in
from oncehouse.ledger.segments import replace_segments_in
from oncehouse.ledger.tables import garbage, key_files, pipelines


def change_identity(
    catalog: Catalog,
    token: int,
    identity: Identity,
    *,
    moves: Sequence[Move] | None,
    old: Sequence[str],
    new: Sequence[Segment],
    request: tuple[int, str],
) -> None:
    """Put new key files (None: the ids stay) and segments in the place of all old ones, with the new rule."""

    def run(connection: Connection) -> None:
        if moves is not None:
            _replace_keys(connection, catalog, moves)
        replace_segments_in(connection, catalog, old, new)
        connection.execute(
            update(pipelines)
            .where(pipelines.c.pipeline == catalog.pipeline)
            .values(fingerprint=identity.fingerprint, buckets=identity.buckets)
        )
        finish_request_in(connection, catalog, *request)

    catalog.write(Stage.INGEST, token, run)


def _replace_keys(connection: Connection, catalog: Catalog, moves: Sequence[Move]) -> None:
    mine = key_files.c.pipeline == catalog.pipeline
    moved = 0
    for move in moves:
        moved += connection.execute(
            update(key_files)
            .where(mine, key_files.c.keys_path == move.old.path, key_files.c.keys_row == move.old.row)
            .values(**file_values("keys", move.new))
        ).rowcount
    registered = connection.execute(select(func.count()).select_from(key_files).where(mine)).scalar_one()
    if not moved == registered == len(moves):
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: key files have come or gone while their ids were made anew; nothing "
            "changed. Ask once more."
        )
    now = catalog.latest_in(connection)
    for path in sorted({move.old.path for move in moves}):
        connection.execute(insert(garbage).values(pipeline=catalog.pipeline, file_path=path, since=now))
