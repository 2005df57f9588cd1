"""Message headers as the tables of outbox and inbox store them: a JSON list of [name, value].

Text values are stored as text, other bytes as {"base64": …}. Decoding returns the bytes that were encoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

Pairs = list[tuple[str, bytes | None]]


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """None where there are no headers, which holds for most rows."""
    listed = [[name, _encode_value(value)] for name, value in headers]
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":")) if listed else None


def decode_headers(text: str | None) -> Pairs:
    """Raises ValueError for any other content: programs other than oncehouse may write rows."""
    if not text:
        return []
    try:
        listed = json.loads(text)
    except RecursionError:
        raise ValueError("headers are nested too deeply to be read") from None
    if not isinstance(listed, list):
        raise ValueError("headers must be a JSON list of [name, value]")  # noqa: TRY004 - one error for bad text
    return [_decode_pair(pair) for pair in listed]


def _encode_value(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}
    # PostgreSQL's text type cannot store the character 0, nor can a jsonb that a user converts it to.
    return {"base64": base64.b64encode(value).decode("ascii")} if "\0" in text else text


def _decode_pair(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), str(value)]:
            return name, value.encode("utf-8")
        case [str(name), None]:
            return name, None
        case [str(name), {"base64": str(value)}]:
            return name, base64.b64decode(value, validate=True)
        case _:
            raise ValueError(
                "headers must be a JSON list of [name, value], a value text, null or {base64: …}"
            )
