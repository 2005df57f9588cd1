"""Messages as rows of `oncehouse_inbox`, and back."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from oncehouse.messaging.inbox.ids import bucket_of, digest_value, hash_key, spell_id
from oncehouse.messaging.inbox.records import Waiting
from oncehouse.messaging.inbox.tables import State
from oncehouse.messaging.message import Message
from oncehouse.messaging.outbox.headers import decode_headers, encode_headers


def row_of(name: str, message: Message) -> dict[str, Any]:
    key_hash = hash_key(message)
    return {
        "inbox": name,
        "message_id": spell_id(message.message_id),
        "key_hash": key_hash,
        "bucket": bucket_of(key_hash),
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": encode_headers(message.headers),
        "timestamp_ms": message.timestamp_ms,
        "digest": digest_value(message.value),
        "state": State.WAITING,
        "attempts": 0,
        "answered": 0,
    }


def waiting_of(row: Row[Any]) -> Waiting:
    return Waiting(
        sequence=row.sequence,
        key_hash=row.key_hash,
        bucket=row.bucket,
        attempts=row.attempts,
        answered=row.answered,
        message=message_of(row),
    )


def message_of(row: Row[Any]) -> Message:
    return Message(
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        key=row.key,
        value=row.value,
        headers=tuple(decode_headers(row.headers)),
        timestamp_ms=row.timestamp_ms,
    )
