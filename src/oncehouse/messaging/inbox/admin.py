"""Stored inboxes as a person looks at them, and a person's hand on single messages: tried again, or dropped.

A change by hand waits for a handler that is at the message, and then finds it settled and leaves it alone.
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
from oncehouse.messaging.inbox.tables import State, inbox, lease_tables, seen
from oncehouse.messaging.message import Message


@dataclass(frozen=True, kw_only=True)
class InboxStatus:
    inbox: str
    waiting: int
    failing: int
    """Of those waiting: tried in vain so far, to be tried again."""
    parked: int
    done: int
    """Finished and not yet forgotten."""
    dropped: int
    oldest_seconds: float | None
    """For how long the oldest waiting message has been waiting."""
    workers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ConsumerStatus:
    consumer: str
    ids: int
    oldest_seconds: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    sequence: int
    inbox: str
    message_id: str
    state: State
    attempts: int
    received_at: float
    settled_at: float | None
    held_until: float | None
    error: str | None
    message: Message


def read_inboxes(connection: Connection) -> list[InboxStatus]:
    columns = inbox.c
    waiting, error = columns.state == State.WAITING, columns.error.is_not(None)
    rows = connection.execute(
        select(
            columns.inbox,
            _count(waiting).label("waiting"),
            _count(waiting & error).label("failing"),
            _count(columns.state == State.PARKED).label("parked"),
            _count(columns.state == State.DONE).label("done"),
            _count(columns.state == State.DROPPED).label("dropped"),
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
            seen.c.consumer,
            func.count().label("ids"),
            (DatabaseClock() - func.min(seen.c.seen_at)).label("oldest"),
        )
        .group_by(seen.c.consumer)
        .order_by(seen.c.consumer)
    )
    return [ConsumerStatus(consumer=row.consumer, ids=row.ids, oldest_seconds=row.oldest) for row in rows]


def list_entries(
    connection: Connection, *, name: str | None, states: Collection[State], after: int, limit: int
) -> list[Entry]:
    """In order of arrival, from behind `after` on."""
    asked = select(inbox).where(inbox.c.sequence > after, inbox.c.state.in_(sorted(states)))
    if name is not None:
        asked = asked.where(inbox.c.inbox == name)
    return [_entry(row) for row in connection.execute(asked.order_by(inbox.c.sequence).limit(limit))]


def find_entries(connection: Connection, message_id: str, *, name: str | None) -> list[Entry]:
    """Messages of this id, as `list` shows it or as their producers call them; of every inbox, unless one is named."""

    def find(which: ColumnElement[bool]) -> list[Entry]:
        asked = select(inbox).where(which)
        if name is not None:
            asked = asked.where(inbox.c.inbox == name)
        return [_entry(row) for row in connection.execute(asked.order_by(inbox.c.sequence))]

    exact = find(inbox.c.message_id == message_id)
    # No index helps to find what a producer calls a message; only a person asks for it.
    return exact or [one for one in find(_ends_with(message_id)) if plain_id(one.message_id) == message_id]


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        sequence=row.sequence,
        inbox=row.inbox,
        message_id=row.message_id,
        state=State(row.state),
        attempts=row.attempts,
        received_at=row.received_at,
        settled_at=row.settled_at,
        held_until=row.held_until,
        error=row.error,
        message=message_of(row),
    )


def retry_entries(connection: Connection, name: str, ids: Sequence[str] | None) -> list[str]:
    """Let parked and failing messages be tried at once, counted from nothing; all of the inbox where no ids are given.

    Gives the ids that this was done to. A message keeps its place: it comes before those of its key that wait.
    """
    troubled = or_(inbox.c.state == State.PARKED, inbox.c.error.is_not(None))
    changes = {
        "state": State.WAITING,
        "attempts": 0,
        "answered": 0,
        "held_until": null(),
        "settled_at": null(),
    }
    return _change(connection, name, ids, troubled, changes)


def drop_entries(
    connection: Connection, name: str, ids: Sequence[str] | None, *, keep_seconds: float
) -> list[str]:
    """Never handle these parked messages. They stay known until their time is over, so that repeats are skipped."""
    now = DatabaseClock()
    changes = {
        "state": State.DROPPED, "settled_at": now, "keep_until": now + keep_seconds, "held_until": null()
    }  # fmt: skip
    return _change(connection, name, ids, inbox.c.state == State.PARKED, changes)


def _change(
    connection: Connection,
    name: str,
    ids: Sequence[str] | None,
    which: ColumnElement[bool],
    changes: dict[str, Any],
) -> list[str]:
    mine = and_(inbox.c.inbox == name, inbox.c.state.in_([State.WAITING, State.PARKED]), which)
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
    """The id as it is written down, of the one message that is meant by this id."""
    rows = select(inbox.c.message_id).where(mine)
    if connection.execute(rows.where(inbox.c.message_id == given)).first() is not None:
        return given
    similar = connection.execute(rows.where(_ends_with(given))).scalars()
    found = sorted(one for one in similar if plain_id(one) == given)
    if len(found) > 1:
        raise ConfigurationError(
            f"{given!a} is the id of several messages, so nothing was changed; write one of {', '.join(found)}"
        )
    return found[0] if found else given


def _ends_with(given: str) -> ColumnElement[bool]:
    return inbox.c.message_id.endswith(given, autoescape=True)
