"""Dead letters as lines of JSON, for people and their editors, and back again.

A line carries the letter's whole position, why it is dead, and its value: as text where it is UTF-8, else in
base64. Only the value may be edited; everything else says which letter is meant.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oncehouse.errors import ConfigurationError

TEXT, BASE64 = "value", "value_base64"


@dataclass(frozen=True, kw_only=True, order=True)
class DeadLetterPosition:
    """Where a letter was read; `row` is its place in a message of several rows."""

    topic: str
    partition: int
    offset: int
    row: int = 0

    def __str__(self) -> str:
        place = f"{self.topic}/{self.partition}/{self.offset}"
        return f"{place}/{self.row}" if self.row else place


@dataclass(frozen=True, kw_only=True)
class Edit:
    position: DeadLetterPosition
    value: bytes | None


def position_of(dead_letter: dict[str, Any]) -> DeadLetterPosition:
    return DeadLetterPosition(
        topic=dead_letter["topic"],
        partition=dead_letter["partition"],
        offset=dead_letter["offset"],
        row=dead_letter["row"] or 0,
    )


def write_line(dead_letter: dict[str, Any]) -> str:
    """One letter as a line of JSON, without its end."""
    at: datetime | None = dead_letter["timestamp"]
    line: dict[str, Any] = {
        "topic": dead_letter["topic"],
        "partition": dead_letter["partition"],
        "offset": dead_letter["offset"],
        "row": dead_letter["row"] or 0,
        "timestamp": None if at is None else at.isoformat(),
        "reason": dead_letter["reason"],
        "detail": dead_letter["detail"],
        **_encode_bytes("key", dead_letter["key"]),
        **_encode_bytes("value", dead_letter["value"]),
    }
    return json.dumps(line, ensure_ascii=False)


def _encode_bytes(name: str, raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode("ascii")}


def read_lines(lines: Iterable[str]) -> Iterator[Edit]:
    """Edits out of lines; ConfigurationError names the line that cannot be read."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _read(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"line {number}: {_describe(error)}. Nothing was changed; each line is one dead letter as "
                    "`oncehouse dead-letters export` wrote it, with only its value edited."
                ) from error


def _read(found: Any) -> Edit:
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - reported like every other fault of the line
    position = DeadLetterPosition(
        topic=str(found["topic"]),
        partition=_whole(found, "partition"),
        offset=_whole(found, "offset"),
        row=_whole(found, "row") if "row" in found else 0,
    )
    return Edit(position=position, value=_value(found))


def _whole(found: dict[str, Any], name: str) -> int:
    if type(found[name]) is not int or found[name] < 0:
        raise ValueError(f"{name} is no whole number")
    return int(found[name])


def _value(found: dict[str, Any]) -> bytes | None:
    if (TEXT in found) == (BASE64 in found):
        raise ValueError(f"it needs either {TEXT!r} or {BASE64!r}")
    if BASE64 in found:
        try:
            return base64.b64decode(found[BASE64], validate=True)
        except binascii.Error:
            raise ValueError(f"{BASE64} is not base64") from None
    value = found[TEXT]
    if value is None:
        return None
    if not isinstance(value, str):
        # An editor of JSON inside JSON may have removed the quotes; the meaning is clear.
        return json.dumps(value, ensure_ascii=False).encode()
    return value.encode()


def _describe(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg} at character {error.pos + 1})"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
