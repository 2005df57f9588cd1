"""Segments of the key index in the catalog: which there are, and how merged ones take the place of others."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_ref, file_values, finish_request_in, last_epoch_in
from oncehouse.ledger.catalog.schema import (
    segments,
)
from oncehouse.ledger.models import (
    Segment,
    Stage,
)

ADOPTED_PREFIX = "adopted-"
"""Begins the names of segments whose ids came out of tables: no key file holds them, so none is merged or rebuilt."""


def is_adopted(segment: Segment) -> bool:
    return segment.segment.startswith(ADOPTED_PREFIX)


def insert_segments(
    connection: Connection, catalog: Catalog, added: Sequence[Segment], now: float | None = None
) -> None:
    """Enter segments; with `now`, keys first seen by this very epoch, otherwise their own times."""
    for segment in added:
        connection.execute(
            insert(segments).values(
                pipeline=catalog.pipeline,
                segment=segment.segment,
                bucket_from=segment.bucket_from,
                bucket_to=segment.bucket_to,
                keys_total=segment.keys,
                first_seen_from=segment.first_seen_from if now is None else now,
                first_seen_to=segment.first_seen_to if now is None else now,
                **file_values("file", segment.file),
            )
        )


def list_segments(catalog: Catalog) -> tuple[Segment, ...]:
    """The live segments of the key index."""
    query = (
        select(segments)
        .where(segments.c.pipeline == catalog.pipeline, segments.c.replaced_at.is_(None))
        .order_by(segments.c.first_seen_from, segments.c.segment)
    )
    with catalog.read() as connection:
        return tuple(
            Segment(
                segment=row.segment,
                bucket_from=row.bucket_from,
                bucket_to=row.bucket_to,
                keys=row.keys_total,
                first_seen_from=row.first_seen_from,
                first_seen_to=row.first_seen_to,
                file=file_ref(row, "file"),
            )
            for row in connection.execute(query).all()
        )


def replace_segments(
    catalog: Catalog,
    token: int,
    *,
    old: Sequence[str],
    new: Sequence[Segment],
    request: tuple[int, str] | None = None,
) -> None:
    """Put merged segments in the place of others, in one transaction; refused when one has gone already."""

    def run(connection: Connection) -> None:
        replace_segments_in(connection, catalog, old, new)
        if request is not None:
            finish_request_in(connection, catalog, *request)

    catalog.write(Stage.INGEST, token, run)


def replace_segments_in(
    connection: Connection, catalog: Catalog, old: Sequence[str], new: Sequence[Segment]
) -> None:
    for name in old:
        replaced = connection.execute(
            update(segments)
            .where(
                segments.c.pipeline == catalog.pipeline,
                segments.c.segment == name,
                segments.c.replaced_at.is_(None),
            )
            .values(replaced_at=catalog.clock, replaced_after_epoch=last_epoch_in(connection, catalog))
        )
        if replaced.rowcount != 1:
            raise PermanentError(
                f"Pipeline {catalog.pipeline}: segment {name} is not in the key index any more; "
                "the merge was given up and nothing changed."
            )
    insert_segments(connection, catalog, new)
