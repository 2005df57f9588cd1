"""Fields that a pipeline has learnt while it ran: what the pipeline file does not say, and holds from then on.

A field may be learnt again with a wider type; the order in which fields came stays. What becomes of them
together with the pipeline file is decided in `pipeline/schema/evolution.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select, update

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import fields
from oncehouse.ledger.models import LearnedField, Stage


def list_fields(catalog: Catalog) -> tuple[LearnedField, ...]:
    """In the order in which they became known."""
    query = select(fields).where(fields.c.pipeline == catalog.pipeline).order_by(fields.c.position)
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        LearnedField(field=row.field, type=row.type, instead_of=row.instead_of, learned_at=row.learned_at)
        for row in rows
    )


def learn_fields(catalog: Catalog, found: Sequence[LearnedField], *, token: int | None = None) -> None:
    """Write fields down: by the holder of the ingest lease, or without a token because a person asked."""

    def run(connection: Connection) -> None:
        for field in found:
            _learn(connection, catalog, field)

    if token is None:
        catalog.change(run)
    else:
        catalog.write(Stage.INGEST, token, run)


def _learn(connection: Connection, catalog: Catalog, field: LearnedField) -> None:
    mine = fields.c.pipeline == catalog.pipeline
    values = {"type": field.type, "instead_of": field.instead_of, "learned_at": catalog.clock}
    known = connection.execute(update(fields).where(mine, fields.c.field == field.field).values(**values))
    if known.rowcount:
        return
    last = connection.execute(select(func.coalesce(func.max(fields.c.position), 0)).where(mine)).scalar_one()
    connection.execute(
        insert(fields).values(pipeline=catalog.pipeline, field=field.field, position=last + 1, **values)
    )
