"""Property: however several hosts take turns, stand still and take topics over, every row is in both Facts once, and
the second Fact, which is joined with the first, never reads a time of which the first has only some rows. The table
remembers its latest insert alone. The store and the tables are simulated; planning, offsets, mutex and the order of
operations are the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_etl_simulation import LEASE_MS, MemoryOffsets

from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.due_steps import due_steps
from oncehouse.etl.state import transitions
from oncehouse.etl.state.decision import DueStep, ResumeStep
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.position import Position, Range
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.steps.operation_builder import step_operations
from oncehouse.etl.steps.operations import Insert, WriteLast, WriteNext
from oncehouse.etl.steps.transforms import Transform

STAGE = "stage.main"
FIRST = Topic(topic="First", dst="dwh.first", depends_on=(STAGE,), maxstep_rows=3)
JOINED = Topic(topic="Joined", dst="dwh.joined", depends_on=(STAGE, FIRST.dst), maxstep_rows=5)
TOPICS = (FIRST, JOINED)
TRANSFORM = Transform(name="t", select="SELECT 1", offsets_table=None, has_range=True)


@dataclass
class EtlSimulation:
    looks_who_holds: bool = True
    tells_splits: bool = True
    store: MemoryOffsets = field(default_factory=MemoryOffsets)
    stage: list[Position] = field(default_factory=list)
    facts: dict[str, list[Position]] = field(default_factory=lambda: {"First": [], "Joined": []})
    remembered: dict[str, str] = field(default_factory=dict)
    """Topic and the token of the latest insert into its table."""
    hosts: dict[int, Iterator[None]] = field(default_factory=dict)

    def arrive(self, count: int) -> None:
        """All rows of a millisecond at once."""
        time_ms = self.stage[-1].time_ms + 1 if self.stage else 1
        first = len(self.stage) + 1
        self.stage += [Position(time_ms=time_ms, id=first + number) for number in range(count)]

    def advance(self, host: int, operations: int) -> None:
        """A host does so much and then stands still, in the middle of a step or between two."""
        for _ in range(operations):
            going = self.hosts.setdefault(
                host, self.work(TopicWorker(hostid=f"host{host}", lease_seconds=60))
            )
            try:
                next(going)
            except (StopIteration, MutexError):
                del self.hosts[host]

    def work(self, worker: TopicWorker) -> Iterator[None]:
        snapshot = self.store.read_all()
        sources = {STAGE: SourceState(table=STAGE, newest=self.stage[-1] if self.stage else None)}
        decisions = due_steps(
            TOPICS, snapshot.offsets, sources, snapshot.now_ms, hostid=worker.hostid, lease_seconds=60
        )
        for decision in decisions:
            span = self.find(decision) if isinstance(decision, DueStep | ResumeStep) else None
            if span is not None:
                yield from self.perform(worker, decision.topic, decision.offset, span)
        yield

    def find(self, decision: DueStep | ResumeStep) -> Range | None:
        last = decision.offset.last
        if isinstance(decision, ResumeStep):
            return self.range_of(last, decision.offset.next, is_cut=True)
        rows = [one for one in self.stage if one > last and one.time_ms <= decision.upper_ms]
        taken = rows[: decision.topic.maxstep_rows]
        return (
            self.range_of(last, taken[-1], is_cut=len(taken) == decision.topic.maxstep_rows)
            if taken
            else None
        )

    def range_of(self, last: Position, end: Position, *, is_cut: bool) -> Range:
        rest = [one for one in self.stage if one > end and one.time_ms == end.time_ms]
        rows = [one for one in self.stage if last < one <= end]
        return Range(last=last, next=end, rows=len(rows), is_cut=is_cut, splits_time=bool(rest))

    def perform(self, worker: TopicWorker, topic: Topic, seen: Offset, span: Range) -> Iterator[None]:
        operations = step_operations(
            topic, TRANSFORM, {"id": "UInt64"}, span, hostid=worker.hostid, is_fixed=True, generation=0
        )
        for operation in operations:
            yield
            match operation:
                case WriteNext():
                    transitions.begin(
                        self.store, worker, seen, next_=operation.next, state=operation.state, rows=span.rows
                    )
                case Insert():
                    self.insert(operation, worker, topic, span)
                case WriteLast():
                    transitions.commit(
                        self.store,
                        worker,
                        topic.topic,
                        rows=operation.rows,
                        state=operation.state,
                        splits_time=operation.splits_time and self.tells_splits,
                    )

    def insert(self, operation: Insert, worker: TopicWorker, topic: Topic, span: Range) -> None:
        row = self.store.rows[topic.topic]
        if self.looks_who_holds and (row.hostid, row.last, row.next) != (worker.hostid, span.last, span.next):
            raise MutexError("the range of this topic has changed")
        if self.remembered.get(topic.topic) == operation.token:
            return
        self.remembered[topic.topic] = operation.token
        rows = [one for one in self.stage if span.last < one <= span.next]
        if topic is JOINED:
            assert set(rows) <= set(self.facts["First"]), "joined with rows that were not there yet"
        self.facts[topic.topic] += rows

    def finish(self) -> None:
        """Whoever stood still wakes, and then one host ends what is open."""
        for host in tuple(self.hosts):
            self.advance(host, 20)
        self.arrive(1)
        for _ in range(60):
            self.store.now_ms += LEASE_MS
            self.advance(99, 12)
            if all(len(rows) >= len(self.stage) for rows in self.facts.values()):
                return

    def check(self) -> None:
        for rows in self.facts.values():
            assert rows == self.stage


ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 8), st.just(0)),
    st.tuples(st.just("host"), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("lease runs out"), st.just(0), st.just(0)),
)


def play(simulation: EtlSimulation, actions: list[tuple[str, int, int]]) -> None:
    for kind, first, second in actions:
        match kind:
            case "arrive":
                simulation.arrive(first)
            case "host":
                simulation.advance(first, second)
            case _:
                simulation.store.now_ms += LEASE_MS
    simulation.finish()
    simulation.check()


@given(st.lists(ACTIONS, max_size=30))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_row_is_built_once_by_hosts_that_stand_still_and_wake(actions):
    play(EtlSimulation(), actions)


SLEPT = [
    ("arrive", 2, 0),
    ("host", 0, 2),
    ("lease runs out", 0, 0),
    ("host", 1, 4),
    ("arrive", 1, 0),
    ("host", 1, 9),
]
"""One host stands still before its insert; another one does that range and the next; then the first one wakes."""
CUT = [("arrive", 5, 0), ("host", 0, 4), ("host", 0, 3), ("host", 1, 9)]
"""One host stands still in the second step of the first Fact, which has three of the five rows of a time by then."""


@pytest.mark.parametrize("actions", [SLEPT, CUT])
def test_the_known_cases_end_exactly(actions):
    play(EtlSimulation(), actions)


def test_an_insert_that_does_not_look_who_holds_the_topic_would_be_caught():
    with pytest.raises(AssertionError):
        play(EtlSimulation(looks_who_holds=False), SLEPT)


def test_a_step_that_does_not_tell_where_it_was_cut_would_be_caught():
    with pytest.raises(AssertionError, match="not there yet"):
        play(EtlSimulation(tells_splits=False), CUT)
