"""Deletes expired ids and finished messages, in batches of bounded size.

Each row stores until when it is kept, so no process can delete it earlier, whatever its settings. Each batch is a
transaction of its own: other writers wait for one batch at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Delete, Engine, delete, select, tuple_

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import transact, wrapped_errors
from oncehouse.messaging.inbox.tables import ABSENT, handled_ids, inbox

BATCH_ROWS = 5_000


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    ids: int
    """Message ids that were deleted."""
    messages: int
    """Finished messages of stored inboxes that were deleted."""


def expire_ids(connection: Connection, rows: int = BATCH_ROWS) -> int:
    with wrapped_errors("Cleaning up message ids", absent=ABSENT):
        return connection.execute(build_expiry_delete(rows)).rowcount


def build_expiry_delete(rows: int) -> Delete:
    """The statement of `expire_ids`, for callers that have a cursor and no SQLAlchemy connection."""
    identity = (handled_ids.c.consumer, handled_ids.c.message_id)
    old = (
        select(*identity)
        .where(handled_ids.c.keep_until < DatabaseClock())
        .order_by(handled_ids.c.keep_until)
        .limit(rows)
        .with_for_update(skip_locked=True)
    )
    return delete(handled_ids).where(tuple_(*identity).in_(old))


def expire_messages(connection: Connection, rows: int = BATCH_ROWS) -> int:
    """Only done and dropped messages have an expiry time; waiting and parked ones never have."""
    old = (
        select(inbox.c.sequence)
        .where(inbox.c.keep_until < DatabaseClock())
        .order_by(inbox.c.keep_until)
        .limit(rows)
        .with_for_update(skip_locked=True)
    )
    with wrapped_errors("Cleaning up finished messages", absent=ABSENT):
        return connection.execute(delete(inbox).where(inbox.c.sequence.in_(old))).rowcount


def clean_up(
    in_transaction: Callable[[Callable[[Connection], int]], int],
    *,
    batch_rows: int = BATCH_ROWS,
    max_batches: int = 1_000,
) -> Cleaned:
    """`in_transaction` runs a change in a transaction of its own."""

    def drain(expire: Callable[[Connection, int], int]) -> int:
        total = 0
        for _ in range(max_batches):
            deleted = in_transaction(lambda connection: expire(connection, batch_rows))
            total += deleted
            if deleted < batch_rows:
                break
        return total

    return Cleaned(ids=drain(expire_ids), messages=drain(expire_messages))


def clean_database(engine: Engine) -> Cleaned:
    """Forget what is past its time, of every inbox in this database."""

    def run(change: Callable[[Connection], int]) -> int:
        with transact(engine, "Cleaning up", absent=ABSENT) as connection:
            return change(connection)

    return clean_up(run)
