"""The scheduler's words as frozen values: positions, topics, offsets. Nothing here does I/O.

A topic is the label of one Fact table that is built step by step from Stage tables. A position is (time, id); a
step covers the rows after `last` up to and including `next` of the topic's main source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oncehouse.clickhouse.identifiers import PIPELINE_CONSUMER
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_state import EMPTY, Book

__all__ = [
    "AHEAD_SECONDS",
    "GATE_SHARE",
    "LATE_EVERY_SECONDS",
    "LATE_WITHIN_SECONDS",
    "START",
    "Check",
    "Expectation",
    "Late",
    "Offset",
    "Otherwise",
    "Position",
    "SourceState",
    "Template",
    "Topic",
    "Value",
]


class Template(StrEnum):
    STEP = "step"
    RELOAD = "reload"
    RANGE = "range"


class Check(StrEnum):
    """What an expectation looks at."""

    ROWS = "rows"
    ROWS_PER_SOURCE_ROW = "rows_per_source_row"
    NULL_SHARE = "null_share"
    VALUE = "value"
    UNIQUE = "unique"


class Otherwise(StrEnum):
    """What happens when an expectation does not hold."""

    STOP = "stop"
    WARN = "warn"


Value = str | int | float
"""What YAML gives as a bound or a parameter; True and False are whole numbers here."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What must hold of the rows of a run, before anybody sees them."""

    check: Check
    columns: tuple[str, ...] = ()
    at_least: Value | None = None
    at_most: Value | None = None
    otherwise: Otherwise = Otherwise.STOP


GATE_SHARE = 0.5


class Late(StrEnum):
    """What becomes of rows that arrive with positions that a topic has passed."""

    IGNORE = "ignore"
    COUNT = "count"
    REPAIR = "repair"
    STOP = "stop"


LATE_WITHIN_SECONDS = 86400.0
LATE_EVERY_SECONDS = 60.0
AHEAD_SECONDS = 86400.0
"""Rows of a source that are further in the future than this are not taken for its time."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One line of the lineage."""

    topic: str
    dst: str
    """`database.table` of the Fact table."""
    depends_on: tuple[str, ...] = ()
    """Tables it is made of, the main source first; a table that is itself a `dst` is a dependency on that topic."""
    template: Template = Template.STEP
    transform: str | None = None
    """View or SQL file that yields the rows; `ETL.<Topic>Transform` when left out."""
    delay_seconds: float = 0.0
    repeat_seconds: float = 0.0
    maxstep_rows: int = 1_000_000
    comment: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    range_column: str | None = None
    """For `range`: the DateTime column of the destination whose partitions are replaced."""
    gate_share: float = GATE_SHARE
    """For `reload` and `range`: with fewer than this share of the rows it had, nothing is put in place."""
    expect: tuple[Expectation, ...] = ()
    template_file: str | None = None
    """The user's own template, whose rows go in the way that `template` says."""
    parameters: tuple[tuple[str, Value | tuple[Value, ...]], ...] = ()
    """Values that the user's own template may ask for."""
    late: Late = Late.COUNT
    late_within_seconds: float = LATE_WITHIN_SECONDS
    """How far behind `last` late rows are looked for."""


@dataclass(frozen=True, kw_only=True)
class Offset:
    """What the offsets table knows of a topic."""

    topic: str
    last: Position
    next: Position
    rows: int = 0
    run_ms: int = 0
    """When the row was last written, by the store's own clock."""
    consumer: str = ""
    state: str = ""
    hostid: str = ""
    """Who works on the topic; empty when nobody does."""
    generation: int = 0
    """Part of every token: after a rewind the same range is inserted anew."""
    lane: str = ""
    """`backfill` or `repair` while `last` and `next` are theirs; empty: the forward runs'."""
    resume: Position = START
    """Where the forward runs go on, while the row is lent to a lane."""
    book: Book = EMPTY

    @property
    def is_open(self) -> bool:
        """A step was begun and not finished: it must run again with the very same range."""
        return self.next != self.last

    @property
    def is_pipeline_declaration(self) -> bool:
        """A pipeline wrote it, for a source; after a seek the row is the topic's own again."""
        return self.consumer.startswith(f"{PIPELINE_CONSUMER} ") and not self.generation

    @property
    def reached(self) -> Position:
        """How far the forward runs have come."""
        return self.resume if self.lane else self.last


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """What a source table holds now."""

    table: str
    newest: Position | None
    """None: no rows at all, or none up to now."""
    is_ahead: bool = False
    """It has rows too far in the future, which are left alone until their time has come."""
