"""Messages written into a stored inbox, in the caller's transaction. A message id that is there stays as it is.

The order of arrival is the order of the rows, for messages that are written one after the other or in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.databases import DatabaseClock
from oncehouse.messaging.database import check_dialect, wrapped_errors
from oncehouse.messaging.inbox.ids import digest_value, spell_id
from oncehouse.messaging.inbox.records import Stored
from oncehouse.messaging.inbox.rows import row_of
from oncehouse.messaging.inbox.tables import ABSENT, inbox
from oncehouse.messaging.message import Message


class Receipt(Enum):
    """What became of one message whose sender waits for an answer."""

    NEW = "stored"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    """Its id is there with another body."""


def store_messages(connection: Connection, name: str, messages: Sequence[Message]) -> Stored:
    if not messages:
        return Stored(new=0, repeated=0)
    dialect = check_dialect(connection.dialect.name)
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(inbox).values(received_at=DatabaseClock()).on_conflict_do_nothing()
    with wrapped_errors(f"Inbox {name}: storing {len(messages)} messages", absent=ABSENT):
        rows = [row_of(name, message) for message in messages]
        new = len(connection.execute(statement.returning(inbox.c.sequence), rows).all())
    return Stored(new=new, repeated=len(messages) - new)


def store_answered(connection: Connection, name: str, message: Message) -> Receipt:
    if store_messages(connection, name, [message]).new:
        return Receipt.NEW
    with wrapped_errors(f"Inbox {name}: looking up a message", absent=ABSENT):
        known = connection.execute(
            select(inbox.c.digest).where(
                inbox.c.inbox == name, inbox.c.message_id == spell_id(message.message_id)
            )
        ).scalar()
    same = known is None or known == digest_value(
        message.value
    )  # None: cleaned up between the two statements
    return Receipt.REPEATED if same else Receipt.CONFLICT
