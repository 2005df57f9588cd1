"""Which topics are due, decided from lineage, offsets, what the sources hold, and the time: pure, no I/O.

No step reads past its slowest source: the newest time of every dependency, less the delay, bounds it. A range
that was begun and not finished comes before all else, unchanged. What cannot run says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from oncehouse.etl.coverage import count_late
from oncehouse.etl.lineage import is_source
from oncehouse.etl.mutex import LEASE_SECONDS, MORE, PAUSED, SIZING, blank, failures, is_held
from oncehouse.etl.records import Offset, Position, SourceState, Template, Topic
from oncehouse.etl.sides import Side, is_stopped, next_side, retry_seconds


@dataclass(frozen=True, kw_only=True)
class Due:
    """Rows after `offset.last` up to `upper_ms` may be read."""

    topic: Topic
    offset: Offset
    upper_ms: int


@dataclass(frozen=True, kw_only=True)
class Resume:
    """An open range: it runs again unchanged."""

    topic: Topic
    offset: Offset


@dataclass(frozen=True, kw_only=True)
class Waiting:
    topic: Topic
    offset: Offset
    reason: str


@dataclass(frozen=True, kw_only=True)
class Paused:
    topic: Topic
    offset: Offset


Decision = Due | Resume | Side | Waiting | Paused


def due_steps(
    topics: Sequence[Topic],
    offsets: Mapping[str, Offset],
    sources: Mapping[str, SourceState],
    now_ms: int,
    *,
    hostid: str = "",
    lease_seconds: float = LEASE_SECONDS,
    known_empty: Mapping[str, tuple[Position, int]] = MappingProxyType({}),
) -> tuple[Decision, ...]:
    """One decision a topic, in their order. `now_ms` is the clock of the store that holds the offsets.

    `known_empty`: topics, and the position and bound between which their source was found to have no rows.
    """
    builders = {topic.dst: topic for topic in topics if not is_source(topic)}

    def decide(topic: Topic) -> Decision:
        offset = offsets.get(topic.topic) or blank(topic.topic)
        if offset.state == PAUSED:
            return Paused(topic=topic, offset=offset)
        reason = _reason_to_hold_back(offset, now_ms, hostid, lease_seconds)
        if reason:
            return Waiting(topic=topic, offset=offset, reason=reason)
        if offset.book.is_pause_asked:  # its holder is gone, and the pause was meant to follow its step
            return Paused(topic=topic, offset=offset)
        if offset.is_open and offset.state != SIZING:
            return Resume(topic=topic, offset=offset)
        times = _newest_times(topic, builders, offsets, sources)
        forward = _decide_forward(topic, offset, times, sources, now_ms, known_empty.get(topic.topic))
        if not isinstance(forward, Waiting):
            return forward
        return next_side(topic, offset, _bound_ms(topic, times, now_ms), now_ms) or forward

    return tuple(decide(topic) for topic in topics)


def _decide_forward(
    topic: Topic,
    offset: Offset,
    times: dict[str, int | None],
    sources: Mapping[str, SourceState],
    now_ms: int,
    known_empty: tuple[Position, int] | None,
) -> Due | Waiting:
    reason = (
        _tell_late(topic, offset) if is_stopped(topic, offset) else _reason_to_pace(topic, offset, now_ms)
    )
    if reason:
        return Waiting(topic=topic, offset=offset, reason=reason)
    decision = _decide_by_sources(topic, offset, times, sources, now_ms)
    if isinstance(decision, Due) and known_empty == (offset.last, decision.upper_ms):
        return Waiting(
            topic=topic, offset=offset, reason="its new rows are after where its slowest source is"
        )
    return decision


def _tell_late(topic: Topic, offset: Offset) -> str:
    return (
        f"{count_late(offset.book.segments)} rows came late; look at them, then `oncehouse etl resume "
        f"{topic.topic}` lets them pass, and `late: repair` in the lineage builds them"
    )


def _bound_ms(topic: Topic, times: Mapping[str, int | None], now_ms: int) -> int | None:
    """As far as the slowest source has come, less the delay; None while one has no rows."""
    known = [time_ms for time_ms in times.values() if time_ms is not None]
    if len(known) < len(times):
        return None
    return min(known, default=now_ms) - round(topic.delay_seconds * 1000)


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
    rest_ms = (offset.book.forward_ms or offset.run_ms) + topic.repeat_seconds * 1000 - now_ms
    return f"runs again in {rest_ms / 1000:.0f} s" if rest_ms > 0 else ""


def _newest_times(
    topic: Topic,
    builders: Mapping[str, Topic],
    offsets: Mapping[str, Offset],
    sources: Mapping[str, SourceState],
) -> dict[str, int | None]:
    """How far each dependency has come. A table that a topic builds has come as far as that topic's `last`.

    Where that topic's step ended between rows of one time, it has not come to that time yet; as the main source it
    has, because its rows are read by their ids.
    """
    times: dict[str, int | None] = {}
    for number, table in enumerate(topic.depends_on):
        if table in builders:
            built = offsets.get(builders[table].topic)
            is_split = number > 0 and built is not None and built.book.splits_time
            times[table] = built.reached.time_ms - is_split if built and built.reached.time_ms else None
        else:
            state = sources.get(table)
            times[table] = state.newest.time_ms if state and state.newest else None
    return times


def _decide_by_sources(
    topic: Topic,
    offset: Offset,
    times: dict[str, int | None],
    sources: Mapping[str, SourceState],
    now_ms: int,
) -> Due | Waiting:
    empty = [table for table, time_ms in times.items() if time_ms is None]
    if empty:
        return Waiting(topic=topic, offset=offset, reason=f"no rows yet in {', '.join(empty)}")
    known = {table: time_ms for table, time_ms in times.items() if time_ms is not None}
    slowest = min(known, key=lambda table: known[table], default="")
    upper_ms = (known[slowest] if slowest else now_ms) - round(topic.delay_seconds * 1000)
    if topic.template in (Template.RELOAD, Template.RANGE):
        # Built whole from what its sources hold: due again once they hold something newer.
        if upper_ms > offset.last.time_ms:
            return Due(topic=topic, offset=offset, upper_ms=upper_ms)
        return Waiting(topic=topic, offset=offset, reason="nothing new")
    main = sources.get(topic.depends_on[0]) if topic.depends_on else None
    newest = main.newest if main else None
    if newest is None or newest <= offset.last:
        return Waiting(topic=topic, offset=offset, reason="nothing new")
    if upper_ms < offset.last.time_ms:
        bound = datetime.fromtimestamp(known[slowest] / 1000, UTC).isoformat(timespec="milliseconds")
        return Waiting(topic=topic, offset=offset, reason=f"{slowest} is at {bound}, behind the others")
    return Due(topic=topic, offset=offset, upper_ms=upper_ms)
