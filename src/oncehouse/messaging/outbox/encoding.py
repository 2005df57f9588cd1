"""From what a program wants to say to the bytes that an outbox row holds: checked here, where the mistake is made.

Pure. A message that passes can be sent: its topic is a name Kafka allows, and it is small enough for a broker. What
is refused is refused before anything is written, so the caller's transaction is still whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncehouse.config.field_types import check_name, check_topic
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.message import MESSAGE_ID

Key = str | bytes | None
Value = str | bytes | dict[str, Any] | list[Any] | tuple[Any, ...] | None
HeaderValues = Mapping[str, str | bytes]

RESERVED_PREFIX = "oncehouse-"
DEFAULT_MAX_BYTES = 1_000_000
"""What librdkafka lets through by default; brokers allow a little more."""
_ID_BYTES = len(MESSAGE_ID) + 36


@dataclass(frozen=True, kw_only=True)
class OutboxMessage:
    """One message for `Outbox.add_many`, as `Outbox.add` takes it."""

    topic: str
    key: Key = None
    value: Value = None
    headers: HeaderValues | None = None


@dataclass(frozen=True, kw_only=True)
class EncodedMessage:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """With the header that the relay adds."""
        headers = sum(len(name.encode()) + len(value) for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + _ID_BYTES


def encode_message(message: OutboxMessage, *, max_bytes: int = DEFAULT_MAX_BYTES) -> EncodedMessage:
    try:
        topic = check_topic(message.topic)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"The outbox cannot take this message: {error}.") from None
    encoded = EncodedMessage(
        topic=topic,
        key=_encode_key(message.key, topic),
        value=_encode_value(message.value, topic),
        headers=_encode_headers(message.headers or {}, topic),
    )
    if encoded.size_bytes > max_bytes:
        raise _refusal(
            topic,
            f"it has {encoded.size_bytes:,} bytes with key and headers, the limit is {max_bytes:,}. Send a "
            "reference to what is large; or raise max_bytes here, and message.max.bytes of the relay, and "
            "max.message.bytes of the topic",
        )
    return encoded


def _encode_key(key: Key, topic: str) -> bytes | None:
    match key:
        case None | bytes():
            return key
        case str():
            return _encode_text(key, topic, "the key")
        case _:
            raise _refusal(topic, f"the key is {_kind(key)}; give it as str or bytes, or None for no key")


def _encode_value(value: Value, topic: str) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return _encode_text(value, topic, "the value")
        case dict() | list() | tuple():
            return _encode_json(value, topic)
        case _:
            raise _refusal(
                topic,
                f"the value is {_kind(value)}; give it as bytes, as str, or as dict or list that becomes JSON "
                "(None is a tombstone)",
            )


def _encode_json(value: object, topic: str) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        # A deep value, a value within itself, a NaN, or something that JSON has no word for.
        raise _refusal(
            topic, f"the value cannot be written as JSON ({error}); bring what is inside to text or numbers"
        ) from None
    return _encode_text(text, topic, "the value")


def _encode_headers(headers: HeaderValues, topic: str) -> tuple[tuple[str, bytes], ...]:
    if not isinstance(headers, Mapping):
        raise _refusal(topic, f"the headers are {_kind(headers)}; give a mapping of names to str or bytes")
    return tuple((name, _encode_header(name, value, topic)) for name, value in headers.items())


def _encode_header(name: str, value: str | bytes, topic: str) -> bytes:
    try:
        check_name(name)
    except (ValueError, AttributeError, TypeError) as error:
        raise _refusal(topic, f"a header is named {name!a} ({error})") from None
    if name.lower().startswith(RESERVED_PREFIX):
        raise _refusal(
            topic, f"the header {name!a} begins with {RESERVED_PREFIX!r}, which is kept for oncehouse itself"
        )
    match value:
        case bytes():
            return value
        case str():
            return _encode_text(value, topic, f"the header {name!a}")
        case _:
            raise _refusal(topic, f"the header {name!a} is {_kind(value)}; give it as str or bytes")


def _encode_text(text: str, topic: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _refusal(
            topic, f"{what} holds half of a surrogate pair, which UTF-8 cannot write; give bytes instead"
        ) from None


def _refusal(topic: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The outbox cannot take a message for topic {topic}: {why}. Nothing was written."
    )


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
