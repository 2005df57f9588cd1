"""Converts messages to rows of `oncehouse_inbox` and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from oncehouse.config.field_types import check_topic
from oncehouse.messaging.header_encoding import decode_headers, encode_headers
from oncehouse.messaging.inbox.ids import Sources, bucket_of, digest_value, hash_key, identify, names_kind
from oncehouse.messaging.inbox.tables import InboxState
from oncehouse.messaging.inbox.types import PendingMessage
from oncehouse.messaging.message import Message

_SOURCE = "oncehouse-source"
"""A header of our own that stores the message's source, which the consumer knows."""


def row_of(name: str, message: Message, sources: Sources) -> dict[str, Any]:
    key_hash = hash_key(message)
    headers = [header for header in message.headers if header[0] != _SOURCE]
    if message.source is not None:
        headers.append((_SOURCE, message.source.encode()))
    return {
        "inbox": name,
        "message_id": identify(message, sources).id,
        "key_hash": key_hash,
        "bucket": bucket_of(key_hash),
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": encode_headers(headers),
        "timestamp_ms": message.timestamp_ms,
        "digest": digest_value(message.value),
        "state": InboxState.WAITING,
        "attempts": 0,
        "answered": 0,
    }


def pending_of(row: Row[Any]) -> PendingMessage:
    return PendingMessage(
        sequence=row.sequence,
        key_hash=row.key_hash,
        bucket=row.bucket,
        attempts=row.attempts,
        answered=row.answered,
        message=message_of(row),
    )


def message_of(row: Row[Any]) -> Message:
    headers = decode_headers(row.headers)
    source = _read_source(headers, row.message_id)
    return Message(
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        key=row.key,
        value=row.value,
        headers=tuple(header for header in headers if header[0] != _SOURCE),
        timestamp_ms=row.timestamp_ms,
        source=source,
    )


def _read_source(headers: Sequence[tuple[str, bytes | None]], message_id: str) -> str | None:
    """Rows of version 0.1, whose ids name no kind, may have a producer's header of this name: it does not count."""
    if not headers or headers[-1][0] != _SOURCE or not names_kind(message_id):
        return None
    try:
        return check_topic((headers[-1][1] or b"").decode())
    except ValueError:
        return None
