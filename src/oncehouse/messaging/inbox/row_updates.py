"""What workers do to rows of `oncehouse_inbox`, each function in the caller's transaction.

`claim` and its fence stand in the handler's own transaction, so that a message is done exactly if its effects are.
Rows that another transaction holds are passed over, never waited for: a frozen worker holds up its own messages only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, Select, bindparam, null, select, text, update

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.inbox.ids import BUCKETS
from oncehouse.messaging.inbox.rows import waiting_of
from oncehouse.messaging.inbox.tables import State, inbox
from oncehouse.messaging.inbox.types import Failed, Waiting, WorkerSettings

FOREVER = 1e18
MAX_ERROR_LENGTH = 2_000


def read_waiting(
    connection: Connection, name: str, *, buckets: Collection[int], without_keys: Collection[int], limit: int
) -> list[Waiting]:
    """The oldest messages that may be handled, in order of arrival. A key rests while its failed message does."""
    columns = inbox.c
    held = inbox.alias("held")
    resting = select(held.c.sequence).where(
        held.c.inbox == name, held.c.key_hash == columns.key_hash, held.c.held_until > DatabaseClock()
    )
    asked = select(inbox).where(columns.inbox == name, columns.state == State.WAITING, ~resting.exists())
    if len(buckets) < BUCKETS:
        asked = asked.where(columns.bucket.in_(sorted(buckets)))
    if without_keys:
        asked = asked.where(columns.key_hash.not_in(sorted(without_keys)))
    rows = connection.execute(asked.order_by(columns.sequence).limit(limit))
    return [waiting_of(row) for row in rows]


def mark_begun(connection: Connection, rows: Sequence[Waiting]) -> dict[int, int]:
    """Count an attempt before it is made, so that one that ends with its worker counts too.

    Gives the attempts of those that may be begun, by sequence; others are settled or another transaction holds them.
    """
    if connection.dialect.name == "postgresql":
        # A count that a power cut takes back does no harm, and nobody should wait for the disk because of it.
        connection.execute(text("SET LOCAL synchronous_commit = off"))
    begun = (
        update(inbox)
        .where(inbox.c.sequence.in_(_free(row.sequence for row in rows)))
        .values(attempts=inbox.c.attempts + 1)
        .returning(inbox.c.sequence, inbox.c.attempts)
    )
    return {row.sequence: row.attempts for row in connection.execute(begun)}


def claim(connection: Connection, row: Waiting, *, keep_seconds: float) -> bool:
    """Mark a message as done in the handler's transaction, before the handler runs. False: it is not ours to handle."""
    found = connection.execute(_CLAIM, {"the_sequence": row.sequence, "the_keep": keep_seconds})
    return found.rowcount == 1


# Made once: this one runs for every message.
_CLAIM = (
    update(inbox)
    .where(
        inbox.c.sequence
        == select(inbox.c.sequence)
        .where(inbox.c.sequence == bindparam("the_sequence"), inbox.c.state == State.WAITING)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    .values(
        state=State.DONE,
        answered=inbox.c.attempts,
        settled_at=DatabaseClock(),
        keep_until=DatabaseClock() + bindparam("the_keep", type_=Float(53)),
        held_until=null(),
        error=null(),
    )
)


def _free(sequences: Iterable[int]) -> Select[Any]:
    free = select(inbox.c.sequence).where(
        inbox.c.sequence.in_(sorted(sequences)), inbox.c.state == State.WAITING
    )
    return free.with_for_update(skip_locked=True)


def record_answer(connection: Connection, row: Waiting) -> None:
    """An attempt came to nothing, and its worker lives."""
    connection.execute(
        update(inbox)
        .where(
            inbox.c.sequence == row.sequence,
            inbox.c.state == State.WAITING,
            inbox.c.answered < row.attempts,
        )
        .values(answered=row.attempts)
    )


def record_failure(
    connection: Connection, failed: Failed, settings: WorkerSettings, *, chance: float
) -> State:
    """Let the message rest, or park it: after the last attempt, or at once where no attempt can help."""
    attempts = failed.waiting.attempts
    parked = failed.final or attempts >= settings.max_attempts
    now = DatabaseClock()
    held: ColumnElement[Any] | float | None = None
    if not parked:
        held = now + settings.backoff.wait_seconds(attempts, chance=chance)
    elif settings.parked_holds_key:
        held = FOREVER
    state = State.PARKED if parked else State.WAITING
    connection.execute(
        update(inbox)
        .where(inbox.c.sequence == failed.waiting.sequence, inbox.c.state == State.WAITING)
        .values(
            state=state,
            answered=inbox.c.attempts,
            held_until=held,
            error=failed.error[:MAX_ERROR_LENGTH].replace("\0", "\\0"),
            settled_at=now if parked else null(),
        )
    )
    return state
