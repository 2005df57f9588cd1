"""Parked messages: list them, retry them, or drop them.

A parked message holds back the later ones of its topic and key, which are parked behind it. A retry or a drop moves the
whole key in one transaction, under the locks of its buckets, so that no relay sees half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, select, update

from oncehouse.common.database import DatabaseClock, begin
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.bucket_leases import lock_buckets
from oncehouse.messaging.outbox.tables import OutboxTables


@dataclass(frozen=True, kw_only=True)
class ParkedMessage:
    id: str
    topic: str
    key: bytes | None
    error: str
    attempts: int
    age_seconds: float
    """Since it was written."""
    parked_seconds: float
    """Since it was parked."""
    behind: int
    """How many later messages of its key wait for it."""


@dataclass(frozen=True, kw_only=True)
class ParkedChange:
    messages: int
    """Parked messages that were retried or dropped."""
    freed: int
    """Messages that waited for them and were released."""


@dataclass(frozen=True, kw_only=True)
class ParkedSelection:
    """Selects parked messages: by id, by topic, or all. Exactly one of the three."""

    ids: Sequence[UUID] = ()
    topic: str | None = None
    all: bool = False

    def __post_init__(self) -> None:
        if sum([bool(self.ids), self.topic is not None, self.all]) != 1:
            raise ConfigurationError("Select parked messages: --id ID, --topic NAME, or --all.")


def list_parked(
    connection: Connection, tables: OutboxTables, *, limit: int | None = None
) -> tuple[ParkedMessage, ...]:
    """The oldest first; messages that wait for a parked one are counted with it."""
    outbox = tables.outbox
    later = outbox.alias("later")
    behind = select(func.count()).where(later.c.behind == outbox.c.id).scalar_subquery()
    now = DatabaseClock()
    rows = connection.execute(
        select(
            outbox.c.id,
            outbox.c.topic,
            outbox.c.key,
            outbox.c.last_error,
            outbox.c.attempts,
            (now - outbox.c.created_at).label("age_seconds"),
            (now - outbox.c.parked_at).label("parked_seconds"),
            behind.label("behind"),
        )
        .where(_is_parked(tables))
        .order_by(outbox.c.seq)
        .limit(limit)
    )
    return tuple(
        ParkedMessage(
            id=str(row.id),
            topic=row.topic,
            key=row.key,
            error=row.last_error or "",
            attempts=row.attempts,
            age_seconds=row.age_seconds,
            parked_seconds=row.parked_seconds,
            behind=row.behind,
        )
        for row in rows
    )


def retry(engine: Engine, tables: OutboxTables, selection: ParkedSelection) -> ParkedChange:
    """Have them sent again, with all messages that wait for them, in their order."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, selection)
        freed = _release_behind(connection, tables, ids)
        connection.execute(update(outbox).where(outbox.c.id.in_(ids)).values(parked_at=None))
        return ParkedChange(messages=len(ids), freed=freed)


def drop(engine: Engine, tables: OutboxTables, selection: ParkedSelection) -> ParkedChange:
    """Delete them unsent; the messages that waited for them are sent."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, selection)
        freed = _release_behind(connection, tables, ids)
        connection.execute(delete(outbox).where(outbox.c.id.in_(ids)))
        return ParkedChange(messages=len(ids), freed=freed)


def count(engine: Engine, tables: OutboxTables, selection: ParkedSelection) -> ParkedChange:
    """What a retry or a drop would change."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, selection)
        behind = select(func.count()).select_from(outbox).where(outbox.c.behind.in_(ids))
        return ParkedChange(messages=len(ids), freed=connection.execute(behind).scalar_one())


def _release_behind(connection: Connection, tables: OutboxTables, ids: list[UUID]) -> int:
    """Release the messages that waited for these; returns how many."""
    outbox = tables.outbox
    freed = update(outbox).where(outbox.c.behind.in_(ids)).values(parked_at=None, behind=None)
    return connection.execute(freed).rowcount


def _is_parked(tables: OutboxTables) -> ColumnElement[bool]:
    outbox = tables.outbox
    return and_(outbox.c.parked_at.is_not(None), outbox.c.behind.is_(None))


def _lock(connection: Connection, tables: OutboxTables, selection: ParkedSelection) -> list[UUID]:
    """The ids of the selected parked messages, after locking their buckets against relays."""
    outbox = tables.outbox
    query = select(outbox.c.id, outbox.c.bucket).where(_is_parked(tables))
    if selection.ids:
        query = query.where(outbox.c.id.in_(selection.ids))
    if selection.topic is not None:
        query = query.where(outbox.c.topic == selection.topic)
    buckets = {row.bucket for row in connection.execute(query)}
    lock_buckets(connection, tables.leases, tables.name, buckets)
    ids = [row.id for row in connection.execute(query) if row.bucket in buckets]
    if unknown := sorted(str(one) for one in set(selection.ids) - set(ids)):
        more = f", nor are {len(unknown) - 1} more of those" if len(unknown) > 1 else ""
        raise ConfigurationError(
            f"{unknown[0]} is not parked in {tables.name}{more}; nothing was changed. `oncehouse outbox status` lists "
            "parked messages; the messages behind a parked one move with it."
        )
    return ids
