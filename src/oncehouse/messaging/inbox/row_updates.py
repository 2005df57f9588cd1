"""What workers write to `oncehouse_inbox`; each function runs in the caller's transaction.

`claim` and the fence are part of the handler's own transaction, so a message is done exactly if its effects are
committed. Rows that another transaction holds are skipped: a suspended worker blocks only its own messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, Select, bindparam, null, select, text, update

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.inbox.ids import BUCKETS
from oncehouse.messaging.inbox.rows import pending_of
from oncehouse.messaging.inbox.tables import InboxState, inbox
from oncehouse.messaging.inbox.types import AttemptFailed, PendingMessage, WorkerSettings

FOREVER = 1e18
MAX_ERROR_LENGTH = 2_000


def read_waiting(
    connection: Connection, name: str, *, buckets: Collection[int], without_keys: Collection[int], limit: int
) -> list[PendingMessage]:
    """The oldest messages that are due, in order of arrival. A key is delayed together with its failed message."""
    columns = inbox.c
    held = inbox.alias("held")
    resting = select(held.c.sequence).where(
        held.c.inbox == name, held.c.key_hash == columns.key_hash, held.c.held_until > DatabaseClock()
    )
    query = select(inbox).where(columns.inbox == name, columns.state == InboxState.WAITING, ~resting.exists())
    if len(buckets) < BUCKETS:
        query = query.where(columns.bucket.in_(sorted(buckets)))
    if without_keys:
        query = query.where(columns.key_hash.not_in(sorted(without_keys)))
    rows = connection.execute(query.order_by(columns.sequence).limit(limit))
    return [pending_of(row) for row in rows]


def mark_begun(connection: Connection, rows: Sequence[PendingMessage]) -> dict[int, int]:
    """Count an attempt before it begins, so that it counts even if the worker dies.

    Returns the attempts of the messages that may begin, by sequence; others are settled or held by another transaction.
    """
    if connection.dialect.name == "postgresql":
        # Losing this count in a power failure does no harm, so the commit need not wait for the disk.
        connection.execute(text("SET LOCAL synchronous_commit = off"))
    begun = (
        update(inbox)
        .where(inbox.c.sequence.in_(_free(row.sequence for row in rows)))
        .values(attempts=inbox.c.attempts + 1)
        .returning(inbox.c.sequence, inbox.c.attempts)
    )
    return {row.sequence: row.attempts for row in connection.execute(begun)}


def claim(connection: Connection, row: PendingMessage, *, keep_seconds: float) -> bool:
    """Mark a message as done in the handler's transaction, before the handler runs. False if it is settled or held."""
    found = connection.execute(_CLAIM, {"the_sequence": row.sequence, "the_keep": keep_seconds})
    return found.rowcount == 1


# Built once: it runs for every message.
_CLAIM = (
    update(inbox)
    .where(
        inbox.c.sequence
        == select(inbox.c.sequence)
        .where(inbox.c.sequence == bindparam("the_sequence"), inbox.c.state == InboxState.WAITING)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    .values(
        state=InboxState.DONE,
        answered=inbox.c.attempts,
        settled_at=DatabaseClock(),
        keep_until=DatabaseClock() + bindparam("the_keep", type_=Float(53)),
        held_until=null(),
        error=null(),
    )
)


def _free(sequences: Iterable[int]) -> Select[Any]:
    free = select(inbox.c.sequence).where(
        inbox.c.sequence.in_(sorted(sequences)), inbox.c.state == InboxState.WAITING
    )
    return free.with_for_update(skip_locked=True)


def record_answer(connection: Connection, row: PendingMessage) -> None:
    """Record that an attempt ended without a result, and that its worker lives."""
    connection.execute(
        update(inbox)
        .where(
            inbox.c.sequence == row.sequence,
            inbox.c.state == InboxState.WAITING,
            inbox.c.answered < row.attempts,
        )
        .values(answered=row.attempts)
    )


def record_failure(
    connection: Connection, failed: AttemptFailed, settings: WorkerSettings, *, jitter: float
) -> InboxState:
    """Delay the message, or park it: after its last attempt, or at once if no further attempt is useful."""
    attempts = failed.waiting.attempts
    parked = failed.final or attempts >= settings.max_attempts
    now = DatabaseClock()
    held: ColumnElement[Any] | float | None = None
    if not parked:
        held = now + settings.backoff.wait_seconds(attempts, jitter=jitter)
    elif settings.parked_holds_key:
        held = FOREVER
    state = InboxState.PARKED if parked else InboxState.WAITING
    connection.execute(
        update(inbox)
        .where(inbox.c.sequence == failed.waiting.sequence, inbox.c.state == InboxState.WAITING)
        .values(
            state=state,
            answered=inbox.c.attempts,
            held_until=held,
            error=failed.error[:MAX_ERROR_LENGTH].replace("\0", "\\0"),
            settled_at=now if parked else null(),
        )
    )
    return state
