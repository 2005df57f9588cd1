"""Ids of handled messages, stored in the transaction of the caller's connection.

`insert_new_ids` is one INSERT … ON CONFLICT DO NOTHING RETURNING for any number of ids. On PostgreSQL a second
transaction with the same id waits until the first has ended: then the id is taken or, after a rollback, free. Ids as
version 0.1 wrote them are looked up in the same statement and never inserted; such rows expire like all others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Float,
    Text,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.common.database import DatabaseClock
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.database import check_dialect, wrapped_errors
from oncehouse.messaging.inbox.ids import MessageIdentity
from oncehouse.messaging.inbox.tables import ABSENT, handled_ids


def insert_new_ids(
    connection: Connection, consumer: str, ids: Collection[MessageIdentity], keep_seconds: float
) -> set[str]:
    """Insert those ids that are not stored yet, and return them."""
    refuse_autocommit(connection, consumer)
    with wrapped_errors(f"Inbox of {consumer}: looking up {len(ids)} message ids", absent=ABSENT):
        statement, values = build_insert(connection.dialect.name, consumer, ids, keep_seconds)
        return set(connection.execute(statement, values).scalars())


def build_insert(
    dialect: str, consumer: str, ids: Iterable[MessageIdentity], keep_seconds: float
) -> tuple[Any, dict[str, Any]]:
    """The statement of `insert_new_ids` and its values, for callers that have a cursor and no SQLAlchemy connection."""
    # In one order for all callers: overlapping batches would otherwise deadlock.
    ordered = sorted({one.id: (one.id, one.before, one.repeats) for one in ids}.values())
    values: dict[str, Any] = {"the_consumer": consumer, "the_keep": keep_seconds}
    if check_dialect(dialect) == "postgresql":
        values["the_ids"] = [one for one, _, _ in ordered]
        values["the_ids_before"] = [before for _, before, _ in ordered]
        values["the_ids_repeated"] = [repeated for _, _, repeated in ordered]
    else:
        values["the_ids"] = json.dumps(ordered)
    return _insertion(dialect), values


@cache
def _insertion(dialect: str) -> Any:
    """Built once: it runs for every message."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(handled_ids)
    consumer, now = bindparam("the_consumer", type_=Text), DatabaseClock()
    keep_until = DatabaseClock() + bindparam("the_keep", type_=Float(53))
    if dialect == "postgresql":
        arrays = [
            bindparam(name, type_=ARRAY(Text)) for name in ("the_ids", "the_ids_before", "the_ids_repeated")
        ]
        given: Any = (
            func.unnest(*arrays).table_valued("id", "before", "repeats", name="given").render_derived()
        )
        one, before, repeats = given.c.id, given.c.before, given.c.repeats
    else:
        given = func.json_each(bindparam("the_ids", type_=Text))
        one, before, repeats = (
            func.json_extract(literal_column("value"), path) for path in ("$[0]", "$[1]", "$[2]")
        )
    known = handled_ids.alias("known")
    rows = (
        select(consumer, one, now, keep_until)
        .select_from(given)
        .where(~exists().where(known.c.consumer == consumer, known.c.message_id.in_([before, repeats])))
    )
    columns = ["consumer", "message_id", "seen_at", "keep_until"]
    return insert.from_select(columns, rows).on_conflict_do_nothing().returning(handled_ids.c.message_id)


def delete_ids(connection: Connection, consumer: str, ids: Collection[str]) -> None:
    """Delete ids that this transaction has inserted."""
    connection.execute(
        delete(handled_ids).where(handled_ids.c.consumer == consumer, handled_ids.c.message_id.in_(ids))
    )


def refuse_autocommit(connection: Connection, consumer: str) -> None:
    # psycopg's own attribute; SQLite's has no meaning, because SQLAlchemy begins transactions itself there.
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise ConfigurationError(
            f"Inbox of {consumer}: the connection commits every statement by itself, so the message could be "
            "remembered without its effects. Hand over a session or connection inside a transaction."
        )
