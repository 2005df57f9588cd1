"""Status of stored inboxes, and changes to single messages by an administrator: retry or drop.

A change waits for a handler that is processing the message, then finds the message settled and leaves it alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, null, or_, select, update

from oncehouse.common.database import DatabaseClock
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.bucket_leases import read_members
from oncehouse.messaging.inbox.ids import plain_id
from oncehouse.messaging.inbox.rows import message_of
from oncehouse.messaging.inbox.tables import InboxState, handled_ids, inbox, lease_tables
from oncehouse.messaging.message import Message


@dataclass(frozen=True, kw_only=True)
class InboxStatus:
    inbox: str
    waiting: int
    failing: int
    """Waiting messages whose attempts have failed so far."""
    parked: int
    done: int
    """Finished and not yet deleted."""
    dropped: int
    oldest_seconds: float | None
    """Age of the oldest waiting message."""
    workers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ConsumerStatus:
    consumer: str
    ids: int
    oldest_seconds: float


@dataclass(frozen=True, kw_only=True)
class InboxEntry:
    sequence: int
    inbox: str
    message_id: str
    state: InboxState
    attempts: int
    received_at: float
    settled_at: float | None
    held_until: float | None
    error: str | None
    message: Message


def read_inboxes(connection: Connection) -> list[InboxStatus]:
    columns = inbox.c
    waiting, error = columns.state == InboxState.WAITING, columns.error.is_not(None)
    rows = connection.execute(
        select(
            columns.inbox,
            _count(waiting).label("waiting"),
            _count(waiting & error).label("failing"),
            _count(columns.state == InboxState.PARKED).label("parked"),
            _count(columns.state == InboxState.DONE).label("done"),
            _count(columns.state == InboxState.DROPPED).label("dropped"),
            (DatabaseClock() - func.min(columns.received_at).filter(waiting)).label("oldest_seconds"),
        )
        .group_by(columns.inbox)
        .order_by(columns.inbox)
    )
    return [InboxStatus(**row._mapping, workers=_workers(connection, row.inbox)) for row in rows.all()]  # noqa: SLF001 - SQLAlchemy's public name for a row as a mapping


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count().filter(condition)


def _workers(connection: Connection, name: str) -> tuple[str, ...]:
    members = read_members(connection, lease_tables, f"inbox:{name}")
    return tuple(member.holder for member in members if member.live)


def read_consumers(connection: Connection) -> list[ConsumerStatus]:
    rows = connection.execute(
        select(
            handled_ids.c.consumer,
            func.count().label("ids"),
            (DatabaseClock() - func.min(handled_ids.c.seen_at)).label("oldest"),
        )
        .group_by(handled_ids.c.consumer)
        .order_by(handled_ids.c.consumer)
    )
    return [ConsumerStatus(consumer=row.consumer, ids=row.ids, oldest_seconds=row.oldest) for row in rows]


def list_entries(
    connection: Connection, *, name: str | None, states: Collection[InboxState], after: int, limit: int
) -> list[InboxEntry]:
    """In order of arrival, beginning after the sequence `after`."""
    query = select(inbox).where(inbox.c.sequence > after, inbox.c.state.in_(sorted(states)))
    if name is not None:
        query = query.where(inbox.c.inbox == name)
    return [_entry(row) for row in connection.execute(query.order_by(inbox.c.sequence).limit(limit))]


def find_entries(connection: Connection, message_id: str, *, name: str | None) -> list[InboxEntry]:
    """Messages with this id, as `list` shows it or as their producers set it; of all inboxes unless one is named."""

    def find(which: ColumnElement[bool]) -> list[InboxEntry]:
        query = select(inbox).where(which)
        if name is not None:
            query = query.where(inbox.c.inbox == name)
        return [_entry(row) for row in connection.execute(query.order_by(inbox.c.sequence))]

    exact = find(inbox.c.message_id == message_id)
    # No index supports the search by the producer's id; only administrators use it.
    return exact or [one for one in find(_ends_with(message_id)) if plain_id(one.message_id) == message_id]


def _entry(row: Row[Any]) -> InboxEntry:
    return InboxEntry(
        sequence=row.sequence,
        inbox=row.inbox,
        message_id=row.message_id,
        state=InboxState(row.state),
        attempts=row.attempts,
        received_at=row.received_at,
        settled_at=row.settled_at,
        held_until=row.held_until,
        error=row.error,
        message=message_of(row),
    )


def retry_entries(connection: Connection, name: str, ids: Sequence[str] | None) -> list[str]:
    """Retry parked and failing messages at once, with attempts counted from 0; all of the inbox without ids.

    Returns the changed ids. A message keeps its place before later ones of its key.
    """
    retryable = or_(inbox.c.state == InboxState.PARKED, inbox.c.error.is_not(None))
    changes = {
        "state": InboxState.WAITING,
        "attempts": 0,
        "answered": 0,
        "held_until": null(),
        "settled_at": null(),
    }
    return _change(connection, name, ids, retryable, changes)


def drop_entries(
    connection: Connection, name: str, ids: Sequence[str] | None, *, keep_seconds: float
) -> list[str]:
    """Never handle these parked messages. They are kept until they expire, so that repeats are skipped."""
    now = DatabaseClock()
    changes = {
        "state": InboxState.DROPPED, "settled_at": now, "keep_until": now + keep_seconds, "held_until": null()
    }  # fmt: skip
    return _change(connection, name, ids, inbox.c.state == InboxState.PARKED, changes)


def _change(
    connection: Connection,
    name: str,
    ids: Sequence[str] | None,
    which: ColumnElement[bool],
    changes: dict[str, Any],
) -> list[str]:
    mine = and_(inbox.c.inbox == name, inbox.c.state.in_([InboxState.WAITING, InboxState.PARKED]), which)
    wanted = None if ids is None else {_resolve(connection, mine, one) for one in ids}
    statement = update(inbox).where(mine)
    if wanted is not None:
        statement = statement.where(inbox.c.message_id.in_(wanted))
    changed = list(connection.execute(statement.values(**changes).returning(inbox.c.message_id)).scalars())
    missed = sorted((wanted or set()) - set(changed))
    if missed:
        raise ConfigurationError(
            f"Inbox {name}: {missed[0]!a} is not among its parked messages, so nothing was changed. "
            "`oncehouse inbox list` shows them."
        )
    return sorted(changed)


def _resolve(connection: Connection, mine: ColumnElement[bool], given: str) -> str:
    """The stored id of the one message that this id means."""
    rows = select(inbox.c.message_id).where(mine)
    if connection.execute(rows.where(inbox.c.message_id == given)).first() is not None:
        return given
    similar = connection.execute(rows.where(_ends_with(given))).scalars()
    found = sorted(one for one in similar if plain_id(one) == given)
    if len(found) > 1:
        raise ConfigurationError(
            f"{given!a} is the id of several messages, so nothing was changed; use one of {', '.join(found)}"
        )
    return found[0] if found else given


def _ends_with(given: str) -> ColumnElement[bool]:
    return inbox.c.message_id.endswith(given, autoescape=True)
