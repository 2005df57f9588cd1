"""What the inbox may forget: ids and finished messages whose time is over, in batches of bounded size.

Each row says until when it is kept, so nothing younger is ever touched, whoever cleans up and whatever they were told.
A batch is a transaction of its own: other writers wait for it at most as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Delete, Engine, delete, select, tuple_

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import transact, wrapped_errors
from oncehouse.messaging.inbox.tables import ABSENT, inbox, seen

BATCH_ROWS = 5_000


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    ids: int
    """Message ids that were forgotten."""
    messages: int
    """Finished messages of stored inboxes that were deleted."""


def expire_ids(connection: Connection, rows: int = BATCH_ROWS) -> int:
    with wrapped_errors("Cleaning up message ids", absent=ABSENT):
        return connection.execute(expiring_ids(rows)).rowcount


def expiring_ids(rows: int) -> Delete:
    """The statement behind `expire_ids`, for those who have a cursor and no SQLAlchemy."""
    identity = (seen.c.consumer, seen.c.message_id)
    old = (
        select(*identity)
        .where(seen.c.keep_until < DatabaseClock())
        .order_by(seen.c.keep_until)
        .limit(rows)
        .with_for_update(skip_locked=True)
    )
    return delete(seen).where(tuple_(*identity).in_(old))


def expire_messages(connection: Connection, rows: int = BATCH_ROWS) -> int:
    """Only what is done or dropped says until when it is kept; what waits or is parked never does."""
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
