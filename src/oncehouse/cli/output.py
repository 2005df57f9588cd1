"""What commands print: tables and facts for people, JSON for programs, errors on standard error.

Everything shown may come from a stranger's record, so no text is read as markup and no control character
reaches the terminal. With JSON asked for, standard output holds JSON and nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, TextIO

from pydantic import BaseModel, SecretStr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncehouse.cli.pager import open_page
from oncehouse.common import structured_logging
from oncehouse.common.formatting import escape_unprintable
from oncehouse.common.json_documents import Answer, is_inlined, output_name
from oncehouse.common.redaction import HIDDEN, redact

_log = logging.getLogger("oncehouse.cli")

_PIPE_WIDTH = 100_000
_TEXT_WIDTH = 80


def open_console(stream: TextIO | None = None) -> Console:
    """A console for one answer. Without a terminal nothing is wrapped or cut, so that other tools read it."""
    if stream is None and (page := open_page()) is not None:
        return _plain_console(page, Console().width, force_terminal=True)
    file = stream or sys.stdout
    return _plain_console(file, None if file.isatty() else _PIPE_WIDTH)


def _plain_console(file: TextIO, width: int | None, *, force_terminal: bool | None = None) -> Console:
    return Console(
        file=file,
        width=width,
        force_terminal=force_terminal,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
    )


def text_width() -> int:
    """How wide running text is set: the terminal's width, and what every terminal has where there is none."""
    return open_console().width if sys.stdout.isatty() else _TEXT_WIDTH


def show_json(answer: Answer) -> None:
    """One JSON document in one line."""
    sys.stdout.write(json.dumps(plain(answer), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    open_console().print(Text(visible(text)))


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table without lines; numbers stand to the right. `empty` is said when there are no rows."""
    listed = [list(row) for row in rows]
    if not listed:
        say(empty)
        return
    table = Table(box=None, pad_edge=False)
    for at, heading in enumerate(headings):
        numbers = all(isinstance(row[at], int | float | None) for row in listed)
        table.add_column(
            heading, justify="right" if numbers else "left", header_style="bold", overflow="fold"
        )
    for row in listed:
        table.add_row(*(Text(format_value(value)) for value in row))
    open_console().print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(name), Text(format_value(value)))
    open_console().print(table)


def print_note(text: str, level: int = logging.INFO, /, **fields: object) -> None:
    """Next to the answer: a log line where those are written, else on standard error; it never mixes with JSON."""
    if structured_logging.is_started():
        structured_logging.write(_log, level, text, **fields)
        return
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def show_error(message: str, *, hint: str | None = None) -> None:
    if structured_logging.is_started():
        structured_logging.write(_log, logging.ERROR, message, **({} if hint is None else {"hint": hint}))
        return
    console = open_console(sys.stderr)
    console.print(Text.assemble(("error: ", "bold red"), visible(message)))
    if hint is not None:
        console.print(Text(hint, style="dim"))


def format_value(value: object) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return visible(str(plain(value)))


def decode_text(raw: bytes | None) -> str | None:
    """Bytes as text; what is not UTF-8 is shown as escapes."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def format_time(seconds: float | None) -> str:
    """Seconds since 1970 as a moment in UTC."""
    if not seconds:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def visible(text: str) -> str:
    """Text with every control and invisible character spelt out, line ends aside, and no secret."""
    return escape_unprintable(redact(text), keep="\n")


def plain(value: object) -> Any:  # noqa: C901, PLR0911 - one case a type
    """A value as JSON holds it. Secrets stay hidden; bytes are base64."""
    match value:
        case SecretStr():
            return HIDDEN
        case BaseModel():
            return value.model_dump(mode="json")
        case Enum():
            return value.value
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case PurePath():
            return str(value)
        case Mapping():
            return {str(plain(key)): plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner) for inner in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _plain_fields(value)
        case float() if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - finds NaN
            return None
        case None | int() | float():
            return value
        case _:
            return redact(str(value))


def _plain_fields(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = plain(getattr(record, field.name))
        fields |= (value or {}) if is_inlined(field) else {output_name(field): value}
    return fields
