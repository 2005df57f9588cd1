"""Names and ids as the inbox writes them down: bounded, printable, and the same for the same message every time.

Ids and keys come from any producer, so an id counts for its kind and its topic only: `header:orders/42` for the header
`oncehouse-id` in the topic orders and its retry topics, `place:orders/0/7` for a place in Kafka, `inlet:orders/42` for
an `Idempotency-Key`. An id that a text column or an index could not take is kept as its SHA-256; a key counts by 64
bits of its SHA-256, so that two keys may at worst share a queue.
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
"""Into how many shares an inbox is cut for its workers. Rows remember theirs, so this never changes."""

MAX_ID_LENGTH = 200
MAX_NAME_LENGTH = 100
_HASHED = "sha256:"
_HEADER, _PLACE, _INLET = "header", "place", "inlet"
_IDENTITY = re.compile(rf"(?:{_HEADER}|{_INLET}):[^/]*/(.+)|{_PLACE}:([^/]*/-?[0-9]+/-?[0-9]+)")

Sources = Mapping[str, str]
"""Topics whose ids are those of another topic: a mirror of it, its new name, what `dlq replay --to` writes to."""
NO_SOURCES: Sources = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    id: str
    before: str
    """What 0.1 wrote down for this message, for one kind and all topics together. Such rows are still believed."""
    repeats: str
    """The place that it claims to repeat: looked up, and never written, since any producer can claim it. Else `id`."""


def identify(message: Message, sources: Sources = NO_SOURCES) -> Identity:
    named = message.text_header(MESSAGE_ID)
    before = spell_id(named or message.text_header(ORIGIN) or message.position)
    source = message.source_topic
    if message.partition < 0:
        found = f"{_INLET}:{message.topic}/{spell_id(named)}"
    elif named:
        found = f"{_HEADER}:{sources.get(source, source)}/{spell_id(named)}"
    else:
        found = f"{_PLACE}:{message.first_position}"
    # A producer who writes an id of ours into a header must not reach what it names.
    before = found if _IDENTITY.fullmatch(before) else before
    replayed = None if named or message.partition < 0 else find_replayed(message, source)
    return Identity(id=found, before=before, repeats=found if replayed is None else f"{_PLACE}:{replayed}")


def names_kind(written: str) -> bool:
    """Whether an id says of what kind it is; those of 0.1 do not."""
    return _IDENTITY.fullmatch(written) is not None


def plain_id(written: str) -> str:
    """What the producer calls the message of which the inbox has written down this id."""
    found = _IDENTITY.fullmatch(written)
    return (found[1] or found[2]) if found else written


def spell_id(message_id: str) -> str:
    if (
        0 < len(message_id) <= MAX_ID_LENGTH
        and message_id.isprintable()
        and not message_id.startswith(_HASHED)
    ):
        return message_id
    return _HASHED + hashlib.sha256(message_id.encode("utf-8", errors="backslashreplace")).hexdigest()


def hash_key(message: Message) -> int:
    """What messages in one order have in common: their key. A message without a key is alone."""
    if message.key is None:
        return _hash64(b"id\0" + identify(message).id.encode())
    return _hash64(b"key\0" + message.key)


def bucket_of(key_hash: int) -> int:
    return key_hash % BUCKETS


def digest_value(value: bytes | None) -> bytes:
    """Tells one body from another, and none from an empty one."""
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
        raise ConfigurationError(f'{what} must be longer than nothing, such as "7d"; it is {keep!r}')
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
