"""Views of the etl scheduler: the state of each topic as text, and the graph of the lineage. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.common.formatting import format_elapsed
from oncehouse.etl.lineage.svg import draw_svg
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.position import format_position_time
from oncehouse.etl.status import TopicStatus
from oncehouse.etl.status_text import format_decision, format_lag, format_position, list_notes


@dataclass(frozen=True, kw_only=True)
class EtlView:
    lineage: tuple[Topic, ...]
    topics: tuple[TopicStatus, ...]


@dataclass(frozen=True, kw_only=True)
class TopicView:
    topic: str
    dst: str
    position: str
    rows: int
    behind: str
    """How far the main source is ahead."""
    sources: dict[str, str]
    """Each source and how far it is ahead."""
    now: str
    """What it does, and why it waits."""
    decision: str
    failures: int
    held_by: str
    notes: tuple[str, ...]

    @property
    def is_paused(self) -> bool:
        return self.decision == "paused"


def view_topic(one: TopicStatus) -> TopicView:
    return TopicView(
        topic=one.topic,
        dst=one.dst,
        position=format_position(one.last),
        rows=one.rows,
        behind=format_lag(one),
        sources={
            table: "empty" if seconds is None else format_elapsed(seconds)
            for table, seconds in one.lag_seconds.items()
        },
        now=format_decision(one),
        decision=one.decision,
        failures=one.failures,
        held_by=one.hostid,
        notes=tuple(list_notes(one)),
    )


def draw_graph(view: EtlView) -> str:
    """An SVG without rules of its own, for a page that has them; names in it are escaped."""
    states = {one.topic: _format_state(one) for one in view.topics}
    return draw_svg(view.lineage, states, styled=False)


def _format_state(one: TopicStatus) -> str:
    """What fits a box: what it does, how far behind, and up to where it is built."""
    does = format_decision(one).partition(":")[0].partition(",")[0]
    at = format_position_time(one.last)[len("2026-") : -len(".000")]
    return " · ".join([does, f"{format_lag(one)} behind", *([f"at {at}"] if at else [])])
