"""Names and ids as the inbox stores them: bounded, printable, and always the same for the same message.

Any producer can choose ids and keys, so an id is valid for its kind and topic only: `header:orders/42` for the header
`oncehouse-id` in the topic orders and its retry topics, `place:orders/0/7` for a position in Kafka, `inlet:orders/42`
for an `Idempotency-Key`. An id that a text column or an index could not hold is stored as its SHA-256. Keys are
compared by 64 bits of their SHA-256, so two keys can at worst share a queue.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from oncehouse.config.field_types import check_name, check_topic, parse_duration
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.message import MESSAGE_ID, ORIGIN, Message, find_replayed

BUCKETS = 64
"""Into how many buckets an inbox is divided for its workers. Stored in rows, so this never changes."""

MAX_ID_LENGTH = 200
MAX_NAME_LENGTH = 100
_HASHED = "sha256:"
_HEADER, _PLACE, _INLET = "header", "place", "inlet"
_IDENTITY = re.compile(rf"(?:{_HEADER}|{_INLET}):[^/]*/(.+)|{_PLACE}:([^/]*/-?[0-9]+/-?[0-9]+)")

Sources = Mapping[str, str]
"""Topics that share the ids of another topic: its mirror, its new name, the target of `dlq replay --to`."""
NO_SOURCES: Sources = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageIdentity:
    id: str
    before: str
    """The id that version 0.1 stored, without kind and topic. Such rows still count."""
    repeats: str
    """The position that it claims to repeat, or `id`. Looked up and never stored: any producer can claim it."""


def identify(message: Message, sources: Sources = NO_SOURCES) -> MessageIdentity:
    named = message.text_header(MESSAGE_ID)
    before = bound_id(named or message.text_header(ORIGIN) or message.position)
    source = message.source_topic
    if message.partition < 0:
        found = f"{_INLET}:{message.topic}/{bound_id(named)}"
    elif named:
        found = f"{_HEADER}:{sources.get(source, source)}/{bound_id(named)}"
    else:
        found = f"{_PLACE}:{message.first_position}"
    # A header in the form of an inbox id must not match the message that it names.
    before = found if _IDENTITY.fullmatch(before) else before
    replayed = None if named or message.partition < 0 else find_replayed(message, source)
    return MessageIdentity(
        id=found, before=before, repeats=found if replayed is None else f"{_PLACE}:{replayed}"
    )


def names_kind(written: str) -> bool:
    """Whether an id names its kind; ids of version 0.1 do not."""
    return _IDENTITY.fullmatch(written) is not None


def plain_id(written: str) -> str:
    """The producer's own id of the message that is stored under this id."""
    found = _IDENTITY.fullmatch(written)
    return (found[1] or found[2]) if found else written


def bound_id(message_id: str) -> str:
    if (
        0 < len(message_id) <= MAX_ID_LENGTH
        and message_id.isprintable()
        and not message_id.startswith(_HASHED)
    ):
        return message_id
    return _HASHED + hashlib.sha256(message_id.encode("utf-8", errors="backslashreplace")).hexdigest()


def hash_key(message: Message) -> int:
    """Messages with the same hash are handled in order: those of one key. A message without a key is alone."""
    if message.key is None:
        return _hash64(b"id\0" + identify(message).id.encode())
    return _hash64(b"key\0" + message.key)


def bucket_of(key_hash: int) -> int:
    return key_hash % BUCKETS


def digest_value(value: bytes | None) -> bytes:
    """Distinguishes bodies, and no body from an empty one."""
    return hashlib.sha256(b"" if value is None else b"\1" + value).digest()


def check_consumer(name: str, *, what: str = "consumer") -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None


def check_keep(keep: str | float, *, what: str = "keep") -> float:
    try:
        seconds = parse_duration(keep)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigurationError(f'{what} must be more than 0, such as "7d"; it is {keep!r}')
    return float(seconds)


def check_sources(sources: Sources) -> Sources:
    try:
        for topic in (*sources, *sources.values()):
            check_topic(topic)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"sources: {error}") from None
    return sources


def check_inbox_name(name: str) -> str:
    try:
        check_topic(name)
    except ValueError:
        ok = False
    else:
        ok = len(name) <= MAX_NAME_LENGTH
    if not ok:
        raise ConfigurationError(
            f"{name[:200]!a} is not a name for an inbox; use letters, digits, '.', '_' and '-', at most "
            f"{MAX_NAME_LENGTH}"
        )
    return name


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)
