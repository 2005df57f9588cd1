"""Which topics are due, decided from lineage, offsets, what the sources hold, and the time: pure, no I/O.

No step goes past what its slowest source may still bring, nor past now less the delay (`topic_bound.py`). A range
that was begun and not finished comes before all else, unchanged. What cannot run says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.scheduler.topic_bound import TopicBound, TopicBounds
from oncehouse.etl.state.coverage import count_late
from oncehouse.etl.state.decision import Decision, DueStep, EmptyRange, PausedTopic, ResumeStep, WaitingTopic
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.next_backfill import is_stopped, next_job, retry_seconds
from oncehouse.etl.state.position import Position, format_position_time
from oncehouse.etl.state.topic_lease import LEASE_SECONDS, MORE, PAUSED, SIZING, failures, is_held, new_offset


def due_steps(
    topics: Sequence[Topic],
    offsets: Mapping[str, Offset],
    sources: Mapping[str, SourceState],
    now_ms: int,
    *,
    hostid: str = "",
    lease_seconds: float = LEASE_SECONDS,
    known_empty: Mapping[str, EmptyRange] = MappingProxyType({}),
    clock_ms: int | None = None,
    declared: Mapping[str, Position] = MappingProxyType({}),
) -> tuple[Decision, ...]:
    """One decision a topic, in their order. `now_ms` is the clock of the store that holds the offsets, `clock_ms` that
    of ClickHouse when the sources were read (the same, when left out).

    `known_empty`: topics, and where their source was found to have no rows. `declared`: source tables, and how far
    they have come by what their loaders say.
    """
    built = {topic.topic for topic in topics if not topic.is_source}
    # What a pipeline declared of a topic that is built is not how far that topic has come.
    sound = {
        name: offset
        for name, offset in offsets.items()
        if not (name in built and offset.is_pipeline_declaration)
    }
    reaches = TopicBounds(topics, sound, sources, now_ms if clock_ms is None else clock_ms, declared)

    def decide(topic: Topic) -> Decision:
        offset = offsets.get(topic.topic) or new_offset(topic.topic)
        if offset.state == PAUSED:
            return PausedTopic(topic=topic, offset=offset)
        if topic.topic in built and offset.is_pipeline_declaration:
            reason = _describe_misplaced(offset)
        else:
            reason = _reason_to_hold_back(offset, now_ms, hostid, lease_seconds)
        if reason:
            return WaitingTopic(topic=topic, offset=offset, reason=reason)
        if (
            offset.topic_state.is_pause_asked
        ):  # its holder is gone, and the pause was meant to follow its step
            return PausedTopic(topic=topic, offset=offset)
        if offset.is_open and offset.state != SIZING:
            return ResumeStep(topic=topic, offset=offset)
        forward = _decide_forward(topic, offset, reaches, now_ms, known_empty.get(topic.topic))
        if not isinstance(forward, WaitingTopic):
            return forward
        return next_job(topic, offset, reaches.settled_of(topic), now_ms) or forward

    return tuple(decide(topic) for topic in topics)


def _describe_misplaced(offset: Offset) -> str:
    return (
        f"{offset.consumer} has declared it as a source, and it is built: let tables[].declare.topic of that pipeline "
        f"name the source's own topic, then `oncehouse etl seek {offset.topic} start`"
    )


def _decide_forward(
    topic: Topic, offset: Offset, reaches: TopicBounds, now_ms: int, known_empty: EmptyRange | None
) -> DueStep | WaitingTopic:
    reason = (
        _describe_late(topic, offset) if is_stopped(topic, offset) else _reason_to_pace(topic, offset, now_ms)
    )
    if reason:
        return WaitingTopic(topic=topic, offset=offset, reason=reason)
    decision = _decide_by_sources(topic, offset, reaches)
    if isinstance(decision, DueStep) and known_empty is not None and known_empty.covers(decision):
        return wait_for_rows(decision)
    return decision


def wait_for_rows(due: DueStep) -> WaitingTopic:
    """The topic may go on, but its main source has no rows up to there."""
    return WaitingTopic(topic=due.topic, offset=due.offset, reason=f"its new rows are after {due.limit}")


def _describe_late(topic: Topic, offset: Offset) -> str:
    return (
        f"{count_late(offset.topic_state.segments)} rows came late; look at them, then `oncehouse etl resume "
        f"{topic.topic}` lets them pass, and `late: repair` in the lineage builds them"
    )


def _reason_to_hold_back(offset: Offset, now_ms: int, hostid: str, lease_seconds: float) -> str:
    if is_held(offset, hostid, now_ms, lease_seconds):
        return f"{offset.hostid} works on it"
    if failed := failures(offset.state):
        rest_ms = offset.run_ms + retry_seconds(failed) * 1000 - now_ms
        if rest_ms > 0:
            return f"tried again in {rest_ms / 1000:.0f} s; it has {offset.state}"
    return ""


def _reason_to_pace(topic: Topic, offset: Offset, now_ms: int) -> str:
    if offset.state == MORE or failures(offset.state) or not offset.run_ms:
        return ""
    rest_ms = (offset.topic_state.forward_ms or offset.run_ms) + topic.repeat_seconds * 1000 - now_ms
    return f"runs again in {rest_ms / 1000:.0f} s" if rest_ms > 0 else ""


def _decide_by_sources(topic: Topic, offset: Offset, reaches: TopicBounds) -> DueStep | WaitingTopic:
    bound = reaches.bound_of(topic)
    if bound is None:
        reason = f"no rows yet in {', '.join(reaches.unknown_of(topic))}"
        return WaitingTopic(topic=topic, offset=offset, reason=reason)
    if topic.template in (Template.RELOAD, Template.RANGE):
        return _decide_rebuild(topic, offset, bound, reaches)
    newest = reaches.newest_of(topic)
    if newest is None or newest <= offset.last:
        return WaitingTopic(topic=topic, offset=offset, reason="nothing new")
    if bound.upto < offset.last:
        return WaitingTopic(topic=topic, offset=offset, reason=_describe_behind(topic, bound))
    return _due(topic, offset, bound.upto, bound)


def _decide_rebuild(
    topic: Topic, offset: Offset, bound: TopicBound, reaches: TopicBounds
) -> DueStep | WaitingTopic:
    """Built whole from what its sources hold: due again once they hold something newer."""
    until = Position(time_ms=bound.upto.time_ms, id=0)
    newest = reaches.newest_content(topic) if topic.depends_on else until
    upper = newest if newest is not None and newest <= bound.upto else until
    if newest is None or upper <= offset.last:
        return WaitingTopic(topic=topic, offset=offset, reason="nothing new")
    return _due(topic, offset, upper, bound)


def _due(topic: Topic, offset: Offset, upper: Position, bound: TopicBound) -> DueStep:
    return DueStep(
        topic=topic,
        offset=offset,
        upper_ms=upper.time_ms,
        upper_id=upper.id,
        limit=_describe_limit(topic, bound),
        is_delayed=not bound.table,
    )


def _describe_limit(topic: Topic, bound: TopicBound) -> str:
    at = format_position_time(bound.upto)
    if not bound.table:
        return f"{at}, now less its delay of {topic.delay_seconds:g} s"
    return f"{at}, up to which {bound.table} {'is declared to have' if bound.is_declared else 'has'} come"


def _describe_behind(topic: Topic, bound: TopicBound) -> str:
    """The topic stands further than it may go: a source is slower, was declared back, or a clock or delay changed."""
    if not bound.table:
        return f"it stands after {_describe_limit(topic, bound)}"
    how = "is declared to be" if bound.is_declared else "is"
    return f"{bound.table} {how} at {format_position_time(bound.upto)}, behind the others"
