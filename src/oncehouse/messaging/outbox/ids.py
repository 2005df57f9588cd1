"""Ids of outbox messages: UUIDs of version 7, which begin with their time of creation.

They grow with the table, which keeps its index small and cached, and show from what time on to search Kafka for a
message whose row was deleted.
"""

from __future__ import annotations

import secrets
import time
from uuid import UUID

_RANDOM_BITS = 62
_VERSION = 7
_VARIANT = 0b10


def make_id(now_ms: int | None = None) -> UUID:
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    high = (milliseconds & ((1 << 48) - 1)) << 16 | _VERSION << 12 | secrets.randbits(12)
    return UUID(int=high << 64 | _VARIANT << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS))


def time_of(message_id: UUID) -> float | None:
    """Seconds since 1970 at which the id was created; None for other UUID versions."""
    return (message_id.int >> 80) / 1000 if message_id.version == _VERSION else None
