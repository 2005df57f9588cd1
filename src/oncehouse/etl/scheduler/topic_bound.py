"""How far each source of a topic has come, and so how far the topic may go. Pure.

A step may cover a position only when nothing can come any more at it or before it. What has come of a source says:
- its declaration, where a loader writes one: nothing comes at or before that position, whatever rows the table has;
- else its newest row, since rows come in the order of their times;
- of a table that a topic builds: how far that topic has come; with nothing left to build, as far as it may go itself.
The youngest rows wait in any case for the topic's delay, by ClickHouse's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.position import MAX_ID, START, Position, before


@dataclass(frozen=True, kw_only=True)
class SourceBound:
    """Nothing comes any more at `upto` or before it."""

    upto: Position
    exceeds_rows: bool = False
    """It may be ahead of the newest row."""


@dataclass(frozen=True, kw_only=True)
class TopicBound:
    """How far a topic may go, and what keeps it from going further."""

    upto: Position
    table: str = ""
    """The slowest source; empty: the topic's delay."""
    is_declared: bool = False
    """By a loader, and not by the table's rows."""


def find_declared(lineage: Iterable[Topic], offsets: Mapping[str, Offset]) -> dict[str, Position]:
    """Source tables and how far they are declared to have come: `last` in the offsets of the source's own topic."""
    return {
        topic.dst: offsets[topic.topic].last
        for topic in lineage
        if topic.is_source and topic.topic in offsets and offsets[topic.topic].last > START
    }


def find_decisive_tables(topics: Sequence[Topic], declared: Mapping[str, Position]) -> set[str]:
    """Tables whose newest rows decide: where nothing new is in them, others go ahead by what is declared.

    So a row that a replica does not show yet must not be missed there: in a declared source, nor in a table that one
    topic builds and another one reads first.
    """
    if not declared:
        return set()
    builders = {topic.dst for topic in topics if not topic.is_source}
    return {
        *declared,
        *(topic.depends_on[0] for topic in topics if topic.depends_on and topic.depends_on[0] in builders),
    }


class TopicBounds:
    """What is known at one moment. The declarations must have been read before the sources: what is declared to be
    in a table is then among the rows that were seen."""

    def __init__(
        self,
        topics: Sequence[Topic],
        offsets: Mapping[str, Offset],
        sources: Mapping[str, SourceState],
        clock_ms: int,
        declared: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        """`clock_ms` is ClickHouse's time, not later than that at which the sources were read."""
        self._builders = {topic.dst: topic for topic in topics if not topic.is_source}
        self._offsets = offsets
        self._sources = sources
        self._clock_ms = clock_ms
        self._declared = {table: upto for table, upto in declared.items() if table not in self._builders}
        self._bounds: dict[str, TopicBound | None] = {}

    def bound_of(self, topic: Topic) -> TopicBound | None:
        """None while nothing is known of one of its sources."""
        if topic.topic not in self._bounds:
            self._bounds[topic.topic] = self._find_bound(topic)
        return self._bounds[topic.topic]

    def settled_of(self, topic: Topic) -> Position | None:
        """How far a back-fill may cover a gap, past the last row that it found there.

        A forward run covers up to a row, and later rows have a larger id or a later time. Unless the main source is
        declared, or idle, it may bring more rows of its newest time: then a gap is covered up to its newest row.
        """
        bound = self.bound_of(topic)
        if bound is None:
            return None
        settled = _whole_times(bound.upto)
        main = self._reach_of(topic.depends_on[0], is_main=True) if topic.depends_on else None
        if main is None or main.exceeds_rows or settled < main.upto:
            return settled
        newest = self.newest_of(topic) or START
        return min(settled, max(newest, before(settled.time_ms)))

    def unknown_of(self, topic: Topic) -> list[str]:
        """Sources without rows or declaration."""
        return [table for table, reach in self._reaches_of(topic).items() if reach is None]

    def newest_of(self, topic: Topic) -> Position | None:
        """The newest row of the main source."""
        main = self._sources.get(topic.depends_on[0]) if topic.depends_on else None
        return main.newest if main else None

    def newest_content(self, topic: Topic) -> Position | None:
        """The newest of what is there of all sources, which something that is built whole has to take in."""
        return max(filter(None, (self._content(topic, table) for table in topic.depends_on)), default=None)

    def _find_bound(self, topic: Topic) -> TopicBound | None:
        delayed_ms = max(0, self._clock_ms - round(topic.delay_seconds * 1000))
        bounds = [TopicBound(upto=Position(time_ms=delayed_ms, id=MAX_ID))]
        for table, reach in self._reaches_of(topic).items():
            if reach is None:
                return None
            bounds.append(TopicBound(upto=reach.upto, table=table, is_declared=table in self._declared))
        return min(bounds, key=lambda bound: bound.upto)

    def _reaches_of(self, topic: Topic) -> dict[str, SourceBound | None]:
        return {
            table: self._reach_of(table, is_main=number == 0) for number, table in enumerate(topic.depends_on)
        }

    def _reach_of(self, table: str, *, is_main: bool) -> SourceBound | None:
        if table in self._builders:
            return self._reach_of_built(self._builders[table], is_main=is_main)
        if (declared := self._declared.get(table)) is not None:
            return SourceBound(upto=declared if is_main else _whole_times(declared), exceeds_rows=True)
        state = self._sources.get(table)
        if state is None or state.newest is None:
            return None
        return SourceBound(upto=Position(time_ms=state.newest.time_ms, id=MAX_ID))

    def _reach_of_built(self, topic: Topic, *, is_main: bool) -> SourceBound | None:
        """As far as the topic's `last`. Where its step ended between rows of one time, it has not come to that time
        yet; as the main source it has, because its rows are read by their ids."""
        built = self._offsets.get(topic.topic)
        reached = built.reached if built else START
        if (bound := self._bound_when_idle(topic, built)) is not None and bound.upto > reached:
            return SourceBound(upto=bound.upto if is_main else _whole_times(bound.upto), exceeds_rows=True)
        if built is None or not reached.time_ms:
            return None
        is_split = not is_main and built.topic_state.splits_time
        return SourceBound(upto=Position(time_ms=reached.time_ms - is_split, id=MAX_ID))

    def _bound_when_idle(self, topic: Topic, built: Offset | None) -> TopicBound | None:
        """How far a topic may go that has built all there is: as far as that, it brings nothing any more.

        Only where its main source is known to have come further than its rows: else its own `last` says as much.
        """
        if not topic.depends_on or (built is not None and built.is_open):
            return None
        main = self._reach_of(topic.depends_on[0], is_main=True)
        if main is None or not main.exceeds_rows:
            return None
        reached = built.reached if built else START
        newest = (
            self.newest_of(topic) if topic.template is Template.STEP else self.newest_content(topic)
        ) or START
        return self.bound_of(topic) if newest <= reached else None

    def _content(self, topic: Topic, table: str) -> Position | None:
        if table == topic.depends_on[0]:
            return self.newest_of(topic)
        if table in self._builders:
            built = self._offsets.get(self._builders[table].topic)
            return Position(time_ms=built.reached.time_ms, id=0) if built and built.reached > START else None
        state = self._sources.get(table)
        return Position(time_ms=state.newest.time_ms, id=0) if state and state.newest else None


def _whole_times(upto: Position) -> Position:
    """Rows of that very time may still come, unless it is the last id."""
    return upto if upto.id == MAX_ID else before(upto.time_ms)
