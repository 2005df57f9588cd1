"""Log lines with fields: text for people, JSON for whatever gathers them; Python's own logging, so libraries join in.

Code logs by `logging.getLogger("oncehouse.…")`. What a line is about is bound around the work, `bound(epoch=7)`, and
holds for everything that the thread logs inside, libraries included; what holds for a whole process is given to
`start`. Nothing is set up by importing: until `start`, records go wherever the program that uses oncehouse sends them.
Secrets are struck out of every line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TextIO

from oncehouse.common.formatting import escape_unprintable
from oncehouse.common.redaction import redact

FORMAT_VARIABLE = "ONCEHOUSE_LOG_FORMAT"
"""Where a process finds the format when no option sets it; Spark's workers get it so."""
OWN = "oncehouse"
_FIELDS = "fields"

Fields = Mapping[str, Any]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_bound: ContextVar[Fields] = ContextVar("oncehouse_log_fields", default=MappingProxyType({}))
_process_fields: dict[str, Any] = {}
_formats_before: list[str | None] = []
_handler: logging.Handler | None = None


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Fields of all lines that this thread, or this task, logs inside."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def write(logger: logging.Logger, level: int, message: str, /, **fields: Any) -> None:
    """One line with fields of its own."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", message, extra={_FIELDS: fields})


def start(log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Write log lines from now on: of oncehouse from INFO on, of libraries and Python's warnings from WARNING on."""
    global _handler  # noqa: PLW0603 - logging is of the process, and so is this
    stop()
    _handler = logging.StreamHandler(stream or sys.stderr)
    _handler.setFormatter(_JsonFormatter() if log_format is LogFormat.JSON else _TextFormatter())
    root = logging.getLogger()
    root.addHandler(_handler)
    logging.getLogger(OWN).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    # Spark's Java, and the Python workers that it starts, are children of this process.
    _formats_before.append(os.environ.get(FORMAT_VARIABLE))
    os.environ[FORMAT_VARIABLE] = log_format


def start_if_configured() -> None:
    """In a process of Spark's, if the one that started it writes log lines."""
    log_format = os.environ.get(FORMAT_VARIABLE)
    if log_format in set(LogFormat):
        start(LogFormat(log_format))


def add_process_fields(**fields: Any) -> None:
    """Fields of all lines of this process, whatever thread they come from, until `stop`."""
    if is_started():
        _process_fields.update(fields)


def is_started() -> bool:
    return _handler is not None


def stop() -> None:
    """Leave logging as it was before `start`."""
    global _handler  # noqa: PLW0603 - as above
    if _handler is None:
        return
    logging.getLogger().removeHandler(_handler)
    logging.getLogger(OWN).setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)
    before = _formats_before.pop()
    if before is None:
        del os.environ[FORMAT_VARIABLE]
    else:
        os.environ[FORMAT_VARIABLE] = before
    _process_fields.clear()
    _handler = None


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    own = getattr(record, _FIELDS, None)
    return {**_process_fields, **_bound.get(), **(own if isinstance(own, dict) else {})}


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


class _JsonFormatter(logging.Formatter):
    """An object a line; a field that is called as one of ours is kept under `field_…`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for name, value in _fields_of(record).items():
            line[f"field_{name}" if name in line or name == "trace" else name] = value
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        # Redacted as values, before JSON spells them: a secret may hold what it escapes.
        return json.dumps(_redacted(line), ensure_ascii=True, default=str)


class _TextFormatter(logging.Formatter):
    """A line; what would end it or speak to a terminal is spelt out."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(
            f" {name}={_format_value(_redacted(value))}" for name, value in _fields_of(record).items()
        )
        head = f"{_time_of(record)} {record.levelname.lower():<7} {record.name}: "
        trace = f"\n{redact(self.formatException(record.exc_info))}" if record.exc_info else ""
        return head + escape_unprintable(redact(record.getMessage())) + escape_unprintable(fields) + trace


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {redact(str(key)): _redacted(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_redacted(inner) for inner in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return redact(str(value))


def _format_value(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(sign in text for sign in ' "=') else text
