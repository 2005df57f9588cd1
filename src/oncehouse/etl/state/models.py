"""What the offsets table knows of a topic, and what a source table holds, as frozen values. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncehouse.clickhouse.identifiers import PIPELINE_CONSUMER
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.topic_state import EMPTY, TopicState


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
    """The process that works on the topic; empty: none does."""
    generation: int = 0
    """Part of every token: after a rewind the same range is inserted again."""
    job_kind: str = field(default="", metadata={"output": "lane"})
    """`backfill` or `repair` while `last` and `next` are theirs; empty: the forward runs'."""
    resume: Position = START
    """Where the forward runs go on, while the row is lent to a job."""
    topic_state: TopicState = field(default=EMPTY, metadata={"output": "book"})

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
        return self.resume if self.job_kind else self.last


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """What a source table holds now."""

    table: str
    newest: Position | None
    """None: no rows at all, or none up to now."""
    is_ahead: bool = False
    """It has rows too far in the future, which are left alone until their time has come."""
