"""A line of the lineage as frozen values: a topic, its template, its expectations. Nothing here does I/O.

A topic is the label of one Fact table that is built step by step from Stage tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Template(StrEnum):
    STEP = "step"
    RELOAD = "reload"
    RANGE = "range"


class ExpectationKind(StrEnum):
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
    """What must hold of the rows of a run, before readers see them."""

    check: ExpectationKind
    columns: tuple[str, ...] = ()
    at_least: Value | None = None
    at_most: Value | None = None
    otherwise: Otherwise = Otherwise.STOP


GATE_SHARE = 0.5


class LatePolicy(StrEnum):
    """What becomes of rows that arrive with positions that a topic has passed."""

    IGNORE = "ignore"
    COUNT = "count"
    REPAIR = "repair"
    STOP = "stop"


LATE_WITHIN_SECONDS = 86400.0


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
    late: LatePolicy = LatePolicy.COUNT
    late_within_seconds: float = LATE_WITHIN_SECONDS
    """How far behind `last` late rows are looked for."""

    @property
    def is_source(self) -> bool:
        """The line only declares a table that something else fills."""
        return not self.depends_on and self.template != Template.RELOAD
