"""Headers as an outbox row holds them: a JSON list of [name, value], readable where they are text.

Bytes that are no UTF-8 stand as {"base64": …}. What is encoded here is decoded to the same bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

Pairs = list[tuple[str, bytes | None]]


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """None for no headers at all, which is what most rows have."""
    listed = [[name, _spell(value)] for name, value in headers]
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":")) if listed else None


def decode_headers(text: str | None) -> Pairs:
    """Raises ValueError for what is no such list: rows may be written by others."""
    if not text:
        return []
    try:
        listed = json.loads(text)
    except RecursionError:
        raise ValueError("headers are nested too deeply to be read") from None
    if not isinstance(listed, list):
        raise ValueError("headers must be a JSON list of [name, value]")  # noqa: TRY004 - one error for bad text
    return [_read(pair) for pair in listed]


def _spell(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}
    # PostgreSQL's text cannot hold the character 0, not even escaped in a jsonb somebody makes of it.
    return {"base64": base64.b64encode(value).decode("ascii")} if "\0" in text else text


def _read(pair: object) -> tuple[str, bytes | None]:
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
