"""Dead letters for the CLI and the dashboard: a page at a time, newest first, with hints, and safe to print.

Reads the ledger only, and no more of its files than a page needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType
from oncehouse.common.formatting import escape_unprintable
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.dead_letters import find_open_file, walk_newest_files
from oncehouse.ledger.models import DeadLetterFile
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.dead_letters.hints import make_hint
from oncehouse.pipeline.dead_letters.reader import find_dead_letters

_BEGINNING_CHARACTERS = 200
# Hints look further into a value than the beginning that is shown.
_HINTED_BYTES = 64 << 10
# More than any file has rows, and still a number that fits everywhere.
_ROW_DIGITS = 19


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    epoch: int
    topic: str
    partition: int
    offset: int
    row: int
    """Its place in a message of several rows."""
    timestamp: str
    reason: str
    detail: str
    hint: str | None
    """Which value is at fault and what would fit, safe to print; none where nothing can be added."""
    begins: str | None
    """How the value begins, safe to print; none for a record without a value."""


@dataclass(frozen=True, kw_only=True)
class DeadLetterPage:
    dead_letters: tuple[DeadLetter, ...]
    """Newest first."""
    next: str | None
    """Where the next page begins; none when this is the last."""


def list_dead_letters(
    catalog: Catalog,
    store: FileStore,
    *,
    selection: Selection | None = None,
    limit: int = 100,
    after: str | None = None,
    fields: Mapping[str, ColumnType] | None = None,
) -> DeadLetterPage:
    """A page of the newest dead letters that were not replayed.

    `after` continues an earlier page; `fields` are the declared ones, for hints.
    """
    meant = selection or Selection()
    start, before = _find_place(catalog, after, meant)
    found: list[DeadLetter] = []
    place = None
    for file in walk_newest_files(catalog, reason=meant.reason, start=start):
        for row_number, dead_letter in _newest(store, file, meant, before, limit - len(found) + 1):
            if len(found) == limit:
                return DeadLetterPage(dead_letters=tuple(found), next=place)
            found.append(_describe(file.epoch, dead_letter, fields or {}))
            place = f"{file.dead_letter_file}:{row_number}"
        before = None
    return DeadLetterPage(dead_letters=tuple(found), next=None)


def choose_reason(reason: str | None) -> Selection:
    """All dead letters, or those with one reason."""
    return Selection(reason=reason)


def declared_fields(pipeline: Pipeline) -> dict[str, ColumnType]:
    """Of the pipeline file, for hints."""
    return {name: parse_type(text) for name, text in pipeline.source.fields.items()}


def _find_place(
    catalog: Catalog, after: str | None, selection: Selection
) -> tuple[DeadLetterFile | None, int | None]:
    """The file from which on to list, and the row in it before which to go on."""
    if after is None:
        return None, None
    name, _, row = after.rpartition(":")
    is_row = row.isascii() and row.isdecimal() and len(row) < _ROW_DIGITS
    file = find_open_file(catalog, name) if is_row else None
    if file is None or not selection.may_count(file.reasons):
        raise ConfigurationError(
            f"There is no place {after!r} among the dead letters (any more): they may have been tried again "
            "meanwhile. List them from the start."
        )
    return file, int(row)


def _newest(
    store: FileStore, file: DeadLetterFile, selection: Selection, before: int | None, most: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    for found in find_dead_letters(store, file.file, selection, newest_first=True, before=before):
        start = max(0, len(found.rows) - most)
        rows, dead_letters = found.rows[start:], found.dead_letters.slice(start)
        # A character has at most four bytes; the rest of a large value is never copied into Python.
        yield from zip(reversed(rows.tolist()), reversed(_cut(dead_letters).to_pylist()), strict=True)


def _cut(dead_letters: pa.Table) -> pa.Table:
    start = pc.binary_slice(dead_letters.column("value").cast(pa.large_binary()), 0, _HINTED_BYTES)
    return dead_letters.set_column(dead_letters.column_names.index("value"), "value", start).drop_columns(
        "key"
    )


def _describe(epoch: int, dead_letter: dict[str, Any], fields: Mapping[str, ColumnType]) -> DeadLetter:
    value, detail = dead_letter["value"], dead_letter["detail"] or ""
    hint = make_hint(dead_letter["reason"], detail, value, fields)
    return DeadLetter(
        epoch=epoch,
        topic=dead_letter["topic"],
        partition=dead_letter["partition"],
        offset=dead_letter["offset"],
        row=dead_letter["row"] or 0,
        timestamp=dead_letter["timestamp"].isoformat(),
        reason=dead_letter["reason"],
        detail=escape_unprintable(detail),
        hint=None if hint is None else escape_unprintable(hint),
        begins=None if value is None else show_beginning(value),
    )


def show_beginning(value: bytes) -> str:
    """How a value begins, as text on one line without anything that a terminal would obey."""
    text = value[: _BEGINNING_CHARACTERS * 4 + 4].decode("utf-8", errors="backslashreplace")
    return escape_unprintable(text[:_BEGINNING_CHARACTERS])
