"""What an attempt to insert a batch needs to know, and how it may end: frozen values that can be pickled."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncehouse.clickhouse.insert.deadline import Deadline


@dataclass(frozen=True, kw_only=True)
class InsertRequest:
    table: str
    columns: tuple[str, ...]
    """Columns of the rows to send, in order, without the batch column."""
    batch_column: str
    batch_id: str
    attempt: int
    """Counts from 1."""
    rows: int
    earlier_query_ids: tuple[str, ...]
    earlier_began: float | None = None
    """When the first of them that may have sent rows began, by the catalog's clock."""
    clock_difference: float = 0.0
    """By how much that clock and ClickHouse's may differ."""
    attempts_since: int = 0
    """How many inserts into the table the catalog has begun since then; of a table that merges rows."""
    outcome_unknown: bool
    """An earlier attempt may have written rows (`Attempt.may_have_sent` of the catalog)."""
    may_be_forgotten: bool
    """The table may no longer remember the batch's token (see `TableFacts.remembers`)."""
    merges_rows: bool
    """The table may drop rows by itself, so fewer rows than were sent prove nothing."""
    deadline: Deadline | None = None
    """After it nothing of the INSERT may leave any more."""
    session: str | None = None
    """The session that was opened for this attempt, without which the server refuses its INSERT."""
    earlier_sessions: tuple[str, ...] = ()
    """Those of earlier attempts whose INSERT may still be under way."""


class Stopwatch:
    """Measures how long an attempt took."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._started


@dataclass(frozen=True, kw_only=True)
class Inserted:
    rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AlreadyThere:
    rows: int
    seconds: float
    views_unproven: bool
    """The table has materialized views, and nothing proves that they got the rows."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A retry will not help: the batch is parked until an operator acts."""

    message: str
    code: int | None
    seconds: float
    outcome_unknown: bool


@dataclass(frozen=True, kw_only=True)
class Retryable:
    """It failed, or its answer was lost; a later attempt may succeed."""

    message: str
    code: int | None
    seconds: float
    outcome_unknown: bool
    too_many_parts: bool
    misconfigured: bool = False
    """It failed before anything was sent, and does so until a person changes the set-up."""


@dataclass(frozen=True, kw_only=True)
class PartlyThere:
    """The table holds another number of the batch's rows than it should, and a retry could double some."""

    message: str
    found: int
    rows: int
    partitions: tuple[tuple[str, int], ...]
    seconds: float


InsertOutcome = Inserted | AlreadyThere | Refused | Retryable | PartlyThere
