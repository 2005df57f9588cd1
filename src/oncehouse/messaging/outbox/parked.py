"""Parked messages: found, let go again, or dropped by a person.

A parked message holds back the later ones of its topic and key, which are parked behind it. Letting go or dropping
moves the whole key in one transaction, under the locks of its buckets, so that no relay sees half of it.
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
    """Since it was put aside."""
    behind: int
    """How many later messages of its key wait for it."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    messages: int
    """Parked messages that were let go or dropped."""
    freed: int
    """Messages that waited behind them and wait no longer."""


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which parked messages are meant: these ids, all of a topic, or all. Exactly one of them."""

    ids: Sequence[UUID] = ()
    topic: str | None = None
    all: bool = False

    def __post_init__(self) -> None:
        if sum([bool(self.ids), self.topic is not None, self.all]) != 1:
            raise ConfigurationError("Say which parked messages are meant: --id ID, --topic NAME, or --all.")


def list_parked(
    connection: Connection, tables: OutboxTables, *, limit: int | None = None
) -> tuple[ParkedMessage, ...]:
    """The oldest first; those that merely wait behind another are counted with it."""
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


def retry(engine: Engine, tables: OutboxTables, which: Which) -> Moved:
    """Let them be sent again, with all that waits behind them, in their order."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, which)
        freed = _let_go_behind(connection, tables, ids)
        connection.execute(update(outbox).where(outbox.c.id.in_(ids)).values(parked_at=None))
        return Moved(messages=len(ids), freed=freed)


def drop(engine: Engine, tables: OutboxTables, which: Which) -> Moved:
    """Delete them for good, unsent; what waited behind them is sent."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, which)
        freed = _let_go_behind(connection, tables, ids)
        connection.execute(delete(outbox).where(outbox.c.id.in_(ids)))
        return Moved(messages=len(ids), freed=freed)


def count(engine: Engine, tables: OutboxTables, which: Which) -> Moved:
    """What letting go or dropping would move; changes nothing."""
    outbox = tables.outbox
    with begin(engine, whose=f"Outbox {tables.name}") as connection:
        ids = _lock(connection, tables, which)
        behind = select(func.count()).select_from(outbox).where(outbox.c.behind.in_(ids))
        return Moved(messages=len(ids), freed=connection.execute(behind).scalar_one())


def _let_go_behind(connection: Connection, tables: OutboxTables, ids: list[UUID]) -> int:
    """What waited for these waits no longer; returns how many."""
    outbox = tables.outbox
    freed = update(outbox).where(outbox.c.behind.in_(ids)).values(parked_at=None, behind=None)
    return connection.execute(freed).rowcount


def _is_parked(tables: OutboxTables) -> ColumnElement[bool]:
    outbox = tables.outbox
    return and_(outbox.c.parked_at.is_not(None), outbox.c.behind.is_(None))


def _lock(connection: Connection, tables: OutboxTables, which: Which) -> list[UUID]:
    """The ids that are meant and parked, once no relay can write to their buckets any more."""
    outbox = tables.outbox
    asked = select(outbox.c.id, outbox.c.bucket).where(_is_parked(tables))
    if which.ids:
        asked = asked.where(outbox.c.id.in_(which.ids))
    if which.topic is not None:
        asked = asked.where(outbox.c.topic == which.topic)
    buckets = {row.bucket for row in connection.execute(asked)}
    lock_buckets(connection, tables.leases, tables.name, buckets)
    ids = [row.id for row in connection.execute(asked) if row.bucket in buckets]
    if unknown := sorted(str(one) for one in set(which.ids) - set(ids)):
        more = f", nor are {len(unknown) - 1} more of those" if len(unknown) > 1 else ""
        raise ConfigurationError(
            f"{unknown[0]} is not parked in {tables.name}{more}; nothing was changed. `oncehouse outbox status` lists "
            "what is parked; what waits behind a parked message goes with that one."
        )
    return ids
