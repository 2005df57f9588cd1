"""What a topic does next, as frozen values: a step, an open range once more, a job, or waiting. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.next_backfill import DueJob
from oncehouse.etl.state.position import MAX_ID, Position


@dataclass(frozen=True, kw_only=True)
class DueStep:
    """Rows after `offset.last` up to (`upper_ms`, `upper_id`) may be read."""

    name: ClassVar[str] = "due"
    topic: Topic
    offset: Offset
    upper_ms: int
    upper_id: int = MAX_ID
    limit: str = field(default="", compare=False)
    """What keeps it from going further, in words."""
    is_delayed: bool = field(default=False, compare=False)
    """That is its delay, so it may go further with every moment."""

    @property
    def upper(self) -> Position:
        return Position(time_ms=self.upper_ms, id=self.upper_id)


@dataclass(frozen=True, kw_only=True)
class EmptyRange:
    """A range in which a topic's main source was found to have no rows."""

    last: Position
    upper: Position
    first: Position | None = None
    """The first row after it; None where that is of no use."""

    def covers(self, due: DueStep) -> bool:
        """Whether looking again is in vain. Behind a slow source rows may come in before the first one."""
        if due.offset.last != self.last:
            return False
        return due.upper == self.upper or (
            due.is_delayed and self.first is not None and due.upper < self.first
        )


@dataclass(frozen=True, kw_only=True)
class ResumeStep:
    """An open range: it runs again unchanged."""

    name: ClassVar[str] = "resume"
    topic: Topic
    offset: Offset


@dataclass(frozen=True, kw_only=True)
class WaitingTopic:
    name: ClassVar[str] = "waiting"
    topic: Topic
    offset: Offset
    reason: str


@dataclass(frozen=True, kw_only=True)
class PausedTopic:
    name: ClassVar[str] = "paused"
    topic: Topic
    offset: Offset


Decision = DueStep | ResumeStep | DueJob | WaitingTopic | PausedTopic
