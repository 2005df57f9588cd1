"""Positions: where a row of a source stands, by its time and its id; ranges between two of them. Pure.

A step covers the rows after `last` up to and including `next` of the topic's main source.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

MAX_ID = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """Milliseconds since 1970 of the row's `pos` column, and its `id`."""

    time_ms: int
    id: int


START = Position(time_ms=0, id=0)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Rows after `last` up to and including `next`."""

    last: Position
    next: Position
    rows: int
    """Rows of the main source in it."""
    is_cut: bool
    """There may be more rows that could be read at once."""
    splits_time: bool = False
    """There are, or may be, more rows of the time at which it ends."""


def before(time_ms: int) -> Position:
    """The position before all rows of a time, whatever their ids."""
    return Position(time_ms=time_ms - 1, id=MAX_ID) if time_ms > 0 else START


def format_position_time(position: Position) -> str:
    if not position.time_ms:
        return "-"
    moment = datetime.fromtimestamp(position.time_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{position.time_ms % 1000:03d}"


def format_seek_argument(position: Position) -> str:
    """As a shell hands it to `oncehouse etl seek`."""
    return f"'{format_position_time(position)},{position.id}'" if position != START else "start"
