"""What an attempt to insert a batch is given, and what may come of it: frozen values that pickle."""

from __future__ import annotations

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
    """When the first of them began."""
    outcome_unknown: bool
    """An earlier attempt may have written rows."""
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


@dataclass(frozen=True, kw_only=True)
class Inserted:
    rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AlreadyThere:
    rows: int
    seconds: float
    views_unproven: bool
    """Materialized views hang on the table, and nothing shows that they got the rows."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Trying again will not help: somebody has to look."""

    message: str
    code: int | None
    seconds: float
    outcome_unknown: bool


@dataclass(frozen=True, kw_only=True)
class TryAgain:
    message: str
    code: int | None
    seconds: float
    outcome_unknown: bool
    too_many_parts: bool


@dataclass(frozen=True, kw_only=True)
class PartlyThere:
    """The table holds another number of the batch's rows than it should, and a retry could double some."""

    message: str
    found: int
    rows: int
    partitions: tuple[tuple[str, int], ...]
    seconds: float


Outcome = Inserted | AlreadyThere | Refused | TryAgain | PartlyThere
