"""Inserts messages into a stored inbox, in the caller's transaction. Stored message ids stay as they are.

Rows are in the order of arrival, for messages that are inserted one after the other or in one call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from sqlalchemy import ARRAY, Connection, Text, exists, func, literal, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import check_dialect, wrapped_errors
from oncehouse.messaging.inbox.ids import NO_SOURCES, MessageIdentity, Sources, digest_value, identify
from oncehouse.messaging.inbox.rows import row_of
from oncehouse.messaging.inbox.tables import ABSENT, inbox
from oncehouse.messaging.inbox.types import StoreResult
from oncehouse.messaging.message import Message


class Receipt(Enum):
    """The result for one message whose sender waits for an answer."""

    NEW = "stored"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    """Its id is stored with another body."""


def store_messages(
    connection: Connection, name: str, messages: Sequence[Message], sources: Sources = NO_SOURCES
) -> StoreResult:
    if not messages:
        return StoreResult(new=0, repeated=0)
    store = _store_arrays if check_dialect(connection.dialect.name) == "postgresql" else _store_rows
    with wrapped_errors(f"Inbox {name}: storing {len(messages)} messages", absent=ABSENT):
        rows = [row_of(name, message, sources) for message in messages]
        new = store(connection, name, rows, [identify(message, sources) for message in messages])
    return StoreResult(new=new, repeated=len(messages) - new)


def _store_arrays(
    connection: Connection, name: str, rows: Sequence[dict[str, Any]], ids: Sequence[MessageIdentity]
) -> int:
    """One statement with an array per column, numbered in the order of the messages."""
    names = list(rows[0])
    arrays = [literal([row[column] for row in rows], ARRAY(inbox.c[column].type)) for column in names]
    arrays.append(literal([one.before for one in ids], ARRAY(Text)))
    arrays.append(literal([one.repeats for one in ids], ARRAY(Text)))
    given = func.unnest(*arrays).table_valued(
        *names, "before", "repeats", with_ordinality="place", name="given"
    )
    columns = given.render_derived().c
    known = inbox.alias("known")
    ordered = (
        select(*(columns[column] for column in names), DatabaseClock())
        .where(
            ~exists().where(known.c.inbox == name, known.c.message_id.in_([columns.before, columns.repeats]))
        )
        .order_by(columns.place)
    )
    statement = postgresql.insert(inbox).from_select([*names, "received_at"], ordered)
    return len(connection.execute(statement.on_conflict_do_nothing().returning(inbox.c.sequence)).all())


def _store_rows(
    connection: Connection, name: str, rows: Sequence[dict[str, Any]], ids: Sequence[MessageIdentity]
) -> int:
    given = (
        func.json_each(json.dumps([known for one in ids for known in (one.before, one.repeats)]))
        .table_valued("value")
        .alias("given")
    )
    known = select(inbox.c.message_id).where(
        inbox.c.inbox == name,
        inbox.c.message_id.in_(select(literal_column("given.value")).select_from(given)),
    )
    before = set(connection.execute(known).scalars())
    new = [row for row, one in zip(rows, ids, strict=True) if not {one.before, one.repeats} & before]
    if not new:
        return 0
    statement = sqlite.insert(inbox).values(received_at=DatabaseClock()).on_conflict_do_nothing()
    return len(connection.execute(statement.returning(inbox.c.sequence), new).all())


def store_one_message(
    connection: Connection, name: str, message: Message, sources: Sources = NO_SOURCES
) -> Receipt:
    if store_messages(connection, name, [message], sources).new:
        return Receipt.NEW
    mine = identify(message, sources)
    with wrapped_errors(f"Inbox {name}: looking up a message", absent=ABSENT):
        known = connection.execute(
            select(inbox.c.digest).where(
                inbox.c.inbox == name, inbox.c.message_id.in_([mine.id, mine.before, mine.repeats])
            )
        ).scalar()
    same = known is None or known == digest_value(
        message.value
    )  # None: cleaned up between the two statements
    return Receipt.REPEATED if same else Receipt.CONFLICT
