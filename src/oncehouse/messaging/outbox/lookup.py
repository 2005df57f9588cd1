"""One message in the outbox table, for `oncehouse outbox trace`. Reads only; ages are by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, Row, select
from sqlalchemy.exc import DBAPIError

from oncehouse.common.database import DatabaseClock, locate, wrap_error
from oncehouse.messaging.outbox.open import open_outbox
from oncehouse.messaging.outbox.tables import OutboxTables


class RowState(StrEnum):
    WAITING = "waiting"
    """For a relay; has an error if sending failed so far."""
    PARKED = "parked"
    """Kafka refuses it."""
    BEHIND = "behind a parked one"
    """It waits for a parked message of its key."""
    SENT = "sent"


@dataclass(frozen=True, kw_only=True)
class OutboxRowView:
    message_id: str
    state: RowState
    topic: str
    bucket: int
    size_bytes: int
    created_at: float
    age_seconds: float
    attempts: int
    last_error: str | None
    parked_at: float | None
    behind: str | None
    sent_at: float | None
    partition: int | None
    offset: int | None


def find_row(engine: Engine, tables: OutboxTables, message_id: UUID) -> OutboxRowView | None:
    """None if there is no such row (any more). Raises TransientError or PermanentError for database errors."""
    outbox = tables.outbox
    query = select(outbox, DatabaseClock().label("now")).where(outbox.c.id == message_id)
    try:
        with engine.connect() as connection:
            row = connection.execute(query).first()
    except DBAPIError as error:
        raise wrap_error(error, what=f"Outbox {tables.name}", where=locate(engine)) from error
    return None if row is None else _view(row)


def _view(row: Row[Any]) -> OutboxRowView:
    return OutboxRowView(
        message_id=str(row.id),
        state=_state(row),
        topic=row.topic,
        bucket=row.bucket,
        size_bytes=len(row.key or b"") + len(row.value or b"") + len((row.headers or "").encode()),
        created_at=row.created_at,
        age_seconds=max(0.0, row.now - row.created_at),
        attempts=row.attempts,
        last_error=row.last_error,
        parked_at=row.parked_at,
        behind=None if row.behind is None else str(row.behind),
        sent_at=row.sent_at,
        partition=row.sent_partition,
        offset=row.sent_offset,
    )


def _state(row: Row[Any]) -> RowState:
    if row.sent_at is not None:
        return RowState.SENT
    if row.behind is not None:
        return RowState.BEHIND
    return RowState.WAITING if row.parked_at is None else RowState.PARKED


def load_row_view(url: str, table: str, message_id: UUID) -> OutboxRowView | None:
    """As `find_row`, in the database of a messaging file."""
    with open_outbox(url, table) as opened:
        return find_row(opened.engine, opened.tables, message_id)
