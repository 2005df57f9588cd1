"""Messages as rows of the outbox table, for SQLAlchemy and Django. Pure, except for the id and its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from oncehouse.messaging.header_encoding import encode_headers
from oncehouse.messaging.outbox.encoding import EncodedMessage, OutboxMessage, encode_message
from oncehouse.messaging.outbox.ids import make_id
from oncehouse.messaging.outbox.tables import bucket_of


@dataclass(frozen=True, kw_only=True)
class NewRow:
    """The columns that the writer sets; the database and the relay set the others."""

    id: UUID
    bucket: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None

    def as_parameters(self) -> dict[str, Any]:
        return asdict(self)


def make_rows(messages: Iterable[OutboxMessage], *, max_bytes: int) -> list[NewRow]:
    """All of them, or a ConfigurationError for the first that cannot be sent."""
    return [_make_row(encode_message(message, max_bytes=max_bytes)) for message in messages]


def _make_row(message: EncodedMessage) -> NewRow:
    message_id = make_id()
    return NewRow(
        id=message_id,
        bucket=bucket_of(message.key, message_id),
        topic=message.topic,
        key=message.key,
        value=message.value,
        headers=encode_headers(message.headers),
    )
