"""Queries: whose batches are settled, so that a batch that runs again is known.

A batch of a query is settled once, in the transaction that registers its epoch. Numbers mean something only as
long as the same counter gives them, so a query belongs to the origin that settled its first batch.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from oncehouse.errors import BatchSettledError, ConfigurationError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import queries, query_batches
from oncehouse.ledger.models import QueryBatch


def is_settled(catalog: Catalog, batch: QueryBatch) -> bool:
    """Raises ConfigurationError when batches under this name are counted by another origin."""
    with catalog.read() as connection:
        _require_origin(connection, catalog, batch)
        return _is_settled_in(connection, catalog, batch)


def list_queries(catalog: Catalog) -> tuple[str, ...]:
    """In the order in which they began."""
    query = (
        select(queries.c.query)
        .where(queries.c.pipeline == catalog.pipeline)
        .order_by(queries.c.created_at, queries.c.query)
    )
    with catalog.read() as connection:
        return tuple(connection.execute(query).scalars())


def list_settled(catalog: Catalog) -> dict[str, tuple[tuple[int, int, int], ...]]:
    """By query: (first batch, last batch, epoch), in order."""
    rows = (
        select(query_batches)
        .where(query_batches.c.pipeline == catalog.pipeline)
        .order_by(query_batches.c.query, query_batches.c.first_batch)
    )
    found: dict[str, list[tuple[int, int, int]]] = {}
    with catalog.read() as connection:
        for row in connection.execute(rows).all():
            found.setdefault(row.query, []).append((row.first_batch, row.last_batch, row.epoch))
    return {query: tuple(spans) for query, spans in found.items()}


def settle_batch_in(connection: Connection, catalog: Catalog, batch: QueryBatch, epoch: int) -> None:
    """Inside the transaction that registers the epoch."""
    if not _require_origin(connection, catalog, batch):
        connection.execute(
            insert(queries).values(
                pipeline=catalog.pipeline, query=batch.query, origin=batch.origin, created_at=catalog.clock
            )
        )
    if _is_settled_in(connection, catalog, batch):
        raise BatchSettledError(
            f"Pipeline {catalog.pipeline}: batch {batch.batch} of query {batch.query} is settled already; "
            "nothing was registered."
        )
    connection.execute(
        insert(query_batches).values(
            pipeline=catalog.pipeline,
            query=batch.query,
            first_batch=batch.batch,
            last_batch=batch.batch,
            epoch=epoch,
        )
    )


def _require_origin(connection: Connection, catalog: Catalog, batch: QueryBatch) -> bool:
    """Whether the query is known; raises when it is another one of the same name."""
    known = connection.execute(
        select(queries.c.origin).where(queries.c.pipeline == catalog.pipeline, queries.c.query == batch.query)
    ).scalar()
    if known is not None and known != batch.origin:
        raise ConfigurationError(
            f"Pipeline {catalog.pipeline}: the batches of query {batch.query} are counted by {known}, and these "
            f"by {batch.origin}. Their numbers begin at 0 again, so new rows would be taken for settled ones. Put the "
            "old checkpoint back, or give the query a new name: rows that were seen before are then found as "
            "duplicates."
        )
    return known is not None


def _is_settled_in(connection: Connection, catalog: Catalog, batch: QueryBatch) -> bool:
    return (
        connection.execute(
            select(query_batches.c.epoch).where(
                query_batches.c.pipeline == catalog.pipeline,
                query_batches.c.query == batch.query,
                query_batches.c.first_batch <= batch.batch,
                query_batches.c.last_batch >= batch.batch,
            )
        ).first()
        is not None
    )
