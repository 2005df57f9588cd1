"""The status of an outbox: waiting and parked messages, and the relays that work on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.bucket_leases import read_leases, read_members
from oncehouse.messaging.outbox.parked import ParkedMessage, list_parked
from oncehouse.messaging.outbox.tables import OutboxTables

PARKED_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class RelayStatus:
    holder: str
    buckets: int
    asleep: bool
    live: bool
    """False: it has died or cannot reach the database; other relays take its buckets."""


@dataclass(frozen=True, kw_only=True)
class OutboxStatus:
    table: str
    waiting: int
    oldest_seconds: float | None
    """Age of the oldest waiting message; None if none waits."""
    failing: int
    """Waiting messages that failed before; the relay counts at the oldest of each bucket."""
    attempts: int
    """The most attempts of any of those."""
    last_error: str | None
    parked: int
    behind: int
    """Messages that wait for a parked one of their key."""
    sent_kept: int
    """Sent messages that are still in the table."""
    relays: tuple[RelayStatus, ...]
    free_buckets: int
    """Buckets without a live relay."""
    parked_messages: tuple[ParkedMessage, ...]
    """The oldest of them."""


def read_status(
    connection: Connection, tables: OutboxTables, *, parked_shown: int = PARKED_SHOWN
) -> OutboxStatus:
    outbox = tables.outbox
    waiting = and_(outbox.c.sent_at.is_(None), outbox.c.parked_at.is_(None))
    parked = outbox.c.parked_at.is_not(None)
    total = connection.execute(
        select(
            func.count().filter(waiting).label("waiting"),
            (DatabaseClock() - func.min(outbox.c.created_at).filter(waiting)).label("oldest_seconds"),
            func.count().filter(waiting, outbox.c.attempts > 0).label("failing"),
            func.max(outbox.c.attempts).filter(waiting).label("attempts"),
            func.count().filter(parked, outbox.c.behind.is_(None)).label("parked"),
            func.count().filter(outbox.c.behind.is_not(None)).label("behind"),
            func.count().filter(outbox.c.sent_at.is_not(None)).label("sent_kept"),
        ).select_from(outbox)
    ).one()
    last_error = connection.execute(
        select(outbox.c.last_error).where(waiting, outbox.c.attempts > 0).order_by(outbox.c.seq).limit(1)
    ).scalar()
    relays, free = _read_relays(connection, tables)
    return OutboxStatus(
        table=tables.name,
        waiting=total.waiting,
        oldest_seconds=total.oldest_seconds,
        failing=total.failing,
        attempts=total.attempts or 0,
        last_error=last_error,
        parked=total.parked,
        behind=total.behind,
        sent_kept=total.sent_kept,
        relays=relays,
        free_buckets=free,
        parked_messages=list_parked(connection, tables, limit=parked_shown),
    )


def _read_relays(connection: Connection, tables: OutboxTables) -> tuple[tuple[RelayStatus, ...], int]:
    leases = read_leases(connection, tables.leases, tables.name)
    held = Counter(lease.holder for lease in leases if lease.live)
    members = read_members(connection, tables.leases, tables.name)
    relays = tuple(
        RelayStatus(holder=member.holder, buckets=held[member.holder], asleep=member.asleep, live=member.live)
        for member in members
    )
    return relays, sum(not lease.live for lease in leases)
