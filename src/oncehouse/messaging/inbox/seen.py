"""Ids of handled messages, remembered in whatever transaction the given connection is in.

`remember` is one INSERT … ON CONFLICT DO NOTHING RETURNING for any number of ids. On PostgreSQL a second transaction
with the same id waits there until the first has ended: then it finds the id taken, or, after a rollback, free.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, Connection, Float, Text, bindparam, delete, func, literal_column, select, text
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.databases import DatabaseClock
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.database import check_dialect, wrapped_errors
from oncehouse.messaging.inbox.tables import ABSENT, seen


def remember(connection: Connection, consumer: str, ids: Collection[str], keep_seconds: float) -> set[str]:
    """Those of the ids that were not remembered yet, and are from now on if the transaction commits."""
    refuse_autocommit(connection, consumer)
    with wrapped_errors(f"Inbox of {consumer}: looking up {len(ids)} message ids", absent=ABSENT):
        statement, values = remembering(connection.dialect.name, consumer, ids, keep_seconds)
        return set(connection.execute(statement, values).scalars())


def remembering(
    dialect: str, consumer: str, ids: Iterable[str], keep_seconds: float
) -> tuple[Any, dict[str, Any]]:
    """The statement behind `remember` and its values, for those who have a cursor and no SQLAlchemy."""
    # In one order for everybody: two batches that overlap would otherwise wait for each other.
    ordered = sorted(set(ids))
    given = ordered if check_dialect(dialect) == "postgresql" else json.dumps(ordered)
    values = {"the_consumer": consumer, "the_ids": given, "the_keep": keep_seconds}
    return _insertion(dialect), values


@cache
def _insertion(dialect: str) -> Any:
    """Made once: it runs for every message."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(seen)
    consumer, now = bindparam("the_consumer", type_=Text), DatabaseClock()
    keep_until = DatabaseClock() + bindparam("the_keep", type_=Float(53))
    if dialect == "postgresql":
        each = func.unnest(bindparam("the_ids", type_=ARRAY(Text)))
        rows = select(consumer, each, now, keep_until)
    else:
        given = func.json_each(bindparam("the_ids", type_=Text))
        rows = select(consumer, literal_column("value", Text), now, keep_until).select_from(given)
        # Without a WHERE SQLite takes the ON of ON CONFLICT for one of a join.
        rows = rows.where(text("1 = 1"))
    columns = ["consumer", "message_id", "seen_at", "keep_until"]
    return insert.from_select(columns, rows).on_conflict_do_nothing().returning(seen.c.message_id)


def forget(connection: Connection, consumer: str, ids: Collection[str]) -> None:
    """Take back what this very transaction has remembered."""
    connection.execute(delete(seen).where(seen.c.consumer == consumer, seen.c.message_id.in_(ids)))


def refuse_autocommit(connection: Connection, consumer: str) -> None:
    # psycopg's own switch; SQLite's says nothing, because there SQLAlchemy begins transactions by hand.
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise ConfigurationError(
            f"Inbox of {consumer}: the connection commits every statement by itself, so the message could be "
            "remembered without its effects. Hand over a session or connection inside a transaction."
        )
