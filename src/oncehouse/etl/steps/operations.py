"""What a step does, as frozen operations: `plan` prints them, `run` performs the very same ones.

Nothing here decides or acts: which operations make a step, and in which order, is for `operation_builder.py`; carrying
them out is for the runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehouse.etl.lineage.topic import Expectation
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_state import JobKind, OpenRange


@dataclass(frozen=True, kw_only=True)
class WriteNext:
    topic: str
    next: Position
    state: str


@dataclass(frozen=True, kw_only=True)
class WriteJobRange:
    """Lend the topic's row to a job: its range becomes `last` and `next`."""

    topic: str
    job_kind: JobKind
    opened: OpenRange


@dataclass(frozen=True, kw_only=True)
class MarkCovered:
    """The source has no rows in this piece of a gap."""

    topic: str
    after: Position
    upto: Position


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """Write down which rows of the range the Fact table does not hold."""

    table: str
    number: int
    last: Position
    next: Position


@dataclass(frozen=True, kw_only=True)
class RangeSize:
    """Count what the transform yields for `next`, and halve `next` until that fits one block."""

    select: str


@dataclass(frozen=True, kw_only=True)
class Expect:
    """Look at the rows of the run in one query; stop when they are not what was expected."""

    topic: str
    sql: str
    parameters: Mapping[str, Any]
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class FixRange:
    """From here on the range is what it is: its rows may be in the table."""

    topic: str
    next: Position
    rows: int
    """Rows of the main source in it."""


@dataclass(frozen=True, kw_only=True)
class Execute:
    """A statement that is harmless when it runs again."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    """Of a statement of the user's own: topic, key and number, with which a failure of it begins."""


@dataclass(frozen=True, kw_only=True)
class Insert:
    sql: str
    token: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DropStagingTables:
    """Drop the staging tables of earlier runs: a process that stalled in one can no longer put it in place."""

    dst: str


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Put the table built aside in place, if it has rows enough."""

    dst: str
    staging: str
    gate_share: float


@dataclass(frozen=True, kw_only=True)
class ReplacePartitions:
    """Put each partition built aside in place, if every one has rows enough."""

    dst: str
    staging: str
    gate_share: float


@dataclass(frozen=True, kw_only=True)
class WriteLast:
    topic: str
    rows: int
    state: str
    is_whole: bool = False
    """All of the table was rebuilt."""
    splits_time: bool = False
    """Rows of the time of `last` are left for the next step."""


Begin = WriteNext | WriteJobRange
Operation = (
    Begin
    | MarkCovered
    | Freeze
    | RangeSize
    | Expect
    | FixRange
    | Execute
    | Insert
    | DropStagingTables
    | Exchange
    | ReplacePartitions
    | WriteLast
)
